"""The folder of the disk cache: files that its user's own processes wrote, and that have a limited size in all.

A file is read only if nobody else can have written it. It belongs to the user, no one else may write it, and it is
signed with a secret of the user's, together with its name. So a damaged file, another user's, and one that was copied
from elsewhere are all refused before anything looks into them.
"""

import hmac
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from steelyard import knobs
from steelyard.errors import FileError, SteelyardError, shown
from steelyard.files import replace_file
from steelyard.forks import make_lock

_MAGIC = b"steelyard cache 1\n"
_SECRET = "steelyard-secret"
_SECRET_BYTES = _SIGNATURE_BYTES = 32
_UNFINISHED = ".steelyard-"
_OWN_NAMES = re.compile(rf"[0-9a-f]{{64}}\.program|{re.escape(_UNFINISHED)}\w+")
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_LONGEST_WRITE = 3600
"""Seconds after which nobody will finish a file."""
_WRITABLE_BY_OTHERS, _OPEN_TO_OTHERS = 0o022, 0o077
_CHOOSE = "set STEELYARD_CACHE to another folder, or to off"

_rooms: dict[tuple[Path, int], int] = {}
"""By folder and limit, how many bytes may be written before the files are counted again."""
_lock = make_lock()


@dataclass(frozen=True)
class CachedFile:
    """A file of the cache."""

    path: Path
    size: int
    used: float
    """When it was last written or read, in seconds since 1970."""

    @property
    def is_program(self) -> bool:
        """Whether it is whole; otherwise, the process that wrote it has ended meanwhile."""
        return not self.path.name.startswith(_UNFINISHED)


class CacheFolder:
    """The files of one folder, each under a key of 64 hexadecimal digits."""

    def __init__(self, path: Path, limit: int):
        self.path, self.limit = path, limit

    def read(self, key: str) -> bytes | None:
        """What was written under a key; None if there is no file. Raises `FileError` where it must not be trusted."""
        path = self._path(key)
        try:
            self.check()
            given = _read_own(path, _WRITABLE_BY_OTHERS)
        except FileError:
            raise
        except OSError:
            # It is not there. Or it cannot be reached: then it cannot be written either, and writing says why.
            return None
        try:
            secret = self._secret()
        except FileNotFoundError:
            raise self.refused(key, f"the file '{_SECRET}' that it was signed with is gone") from None
        start = len(_MAGIC) + _SIGNATURE_BYTES
        data = given[start:]
        if not hmac.compare_digest(given[:start], _MAGIC + _signature(secret, key, data)):
            raise self.refused(key, "it is damaged, or no process of this user wrote it here")
        # What was used last is removed last. Where this cannot be recorded, the file is still good.
        with suppress(OSError):
            os.utime(path)
        return data

    def write(self, key: str, data: bytes) -> None:
        """Keep data under a key; where there is no room, what was not used for longest goes. Raises `FileError`."""
        try:
            with suppress(FileExistsError):
                self.path.mkdir(mode=0o700, parents=True)
            self.check()
            signed = _MAGIC + _signature(self._make_secret(), key, data) + data
            if len(signed) > self.limit:
                raise FileError(f"a program has more than the {self.limit} bytes of STEELYARD_CACHE_SIZE; raise it")
            replace_file(self._path(key), signed, 0o600, _UNFINISHED)
            self._keep_limit(len(signed))
        except FileError:
            raise
        except OSError as error:
            what = f"programs cannot be kept in the cache folder '{self.path}'"
            raise FileError(f"{what}: {error.strerror}; {_CHOOSE}") from None

    def check(self) -> None:
        """Refuse a folder that others can write into; raises `FileError`, or another `OSError` if it is not there."""
        found = self.path.stat()
        wrong = _not_own(found, _WRITABLE_BY_OTHERS) if stat.S_ISDIR(found.st_mode) else "it is not a folder"
        if wrong:
            raise FileError(f"the cache folder '{self.path}' is not used, because {wrong}; {_CHOOSE}")

    def refused(self, key: str, why: str) -> FileError:
        """The error for the file of a key, which must not be used."""
        return _refused(self._path(key), why)

    def files(self) -> list[CachedFile]:
        """Its files, beginning with the one that was not used for longest; files of others are none of them."""
        try:
            with os.scandir(self.path) as entries:
                return sorted(_cached_files(entries), key=lambda file: file.used)
        except FileNotFoundError:
            return []

    def clear(self) -> list[CachedFile]:
        """Remove its files, and return them."""
        removed = [file for file in self.files() if _remove(file.path)]
        _remove(self.path / _SECRET)
        return removed

    def _path(self, key: str) -> Path:
        return self.path / f"{key}.program"

    def _secret(self) -> bytes:
        path = self.path / _SECRET
        secret = _read_own(path, _OPEN_TO_OTHERS)
        if len(secret) != _SECRET_BYTES:
            raise _refused(path, "it is damaged")
        return secret

    def _make_secret(self) -> bytes:
        with suppress(FileNotFoundError):
            return self._secret()
        with tempfile.NamedTemporaryFile(dir=self.path, prefix=_UNFINISHED) as file:
            file.write(os.urandom(_SECRET_BYTES))
            file.flush()
            # Unlike a file that is replaced, this cannot take the place of a secret that another process just made.
            with suppress(FileExistsError):
                os.link(file.name, self.path / _SECRET)
        return self._secret()

    def _keep_limit(self, written: int) -> None:
        """Count the files if they may be too large by now, and remove some if they are.

        Other processes write as well, so that not all of what is free may be used before the next count.
        """
        known = self.path, self.limit
        with _lock:
            _rooms[known] = _rooms.get(known, 0) - written
            if _rooms[known] >= 0:
                return
            files = self.files()
            total = sum(file.size for file in files)
            if total > self.limit:
                for file in files:
                    if total <= self.limit * 3 // 4:
                        break
                    total -= file.size
                    _remove(file.path)
            _rooms[known] = (self.limit - total) // 4


def find_cache() -> CacheFolder | None:
    """The cache that the environment asks for; None if it is off. Raises `SteelyardError`."""
    chosen = knobs.cache()
    if chosen.lower() in ("0", "off"):
        return None
    try:
        path = Path(knobs.user_cache(), "steelyard") if chosen.lower() in ("1", "on") else Path(chosen)
        return CacheFolder(path.expanduser().absolute(), parse_size(knobs.cache_size()))
    except (RuntimeError, OSError) as error:
        # There is no home folder, or no current one.
        raise FileError(f"the cache folder cannot be found: {str(error).rstrip('.')}; {_CHOOSE}") from None


def parse_size(text: str) -> int:
    """A number of bytes, as in `512M`; units are powers of 1024."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE | re.ASCII)
    if found is None:
        raise SteelyardError(f"STEELYARD_CACHE_SIZE must be a number of bytes, as in 512M or 2G, got {shown(text)}")
    return int(float(found[1]) * 2 ** _UNITS[found[2].upper()])


def _signature(secret: bytes, key: str, data: bytes) -> bytes:
    return hmac.digest(secret, _MAGIC + key.encode() + data, "sha256")


def _refused(path: Path, why: str) -> FileError:
    return FileError(f"'{path}' of the cache is ignored, because {why}; `steelyard cache clear` removes it")


def _read_own(path: Path, forbidden: int) -> bytes:
    """The bytes of a file that belongs to this user, and whose mode has none of the forbidden bits."""
    try:
        # A link may lead to any file, and a pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            found = os.fstat(descriptor)
            wrong = _not_own(found, forbidden) if stat.S_ISREG(found.st_mode) else "it is not a file"
            if wrong:
                raise _refused(path, wrong)
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(descriptor)
    except (FileNotFoundError, FileError):
        raise
    except OSError as error:
        raise _refused(path, f"it cannot be read: {error.strerror}") from None


def _not_own(found: os.stat_result, forbidden: int) -> str:
    """Why somebody else may have written a file or folder, or may read it; empty if nobody else can."""
    if found.st_uid != os.geteuid():
        return f"its owner must be user {os.geteuid()}, and is user {found.st_uid}"
    if stat.S_IMODE(found.st_mode) & forbidden:
        do = "write" if forbidden == _WRITABLE_BY_OTHERS else "read or write"
        return f"only its owner may {do} it, and its mode is {stat.S_IMODE(found.st_mode):04o}"
    return ""


def _cached_files(entries: Iterator[os.DirEntry[str]]) -> Iterator[CachedFile]:
    for entry in entries:
        # Another process may remove it at any moment.
        with suppress(FileNotFoundError):
            if _OWN_NAMES.fullmatch(entry.name) and not entry.is_dir(follow_symlinks=False):
                found = entry.stat(follow_symlinks=False)
                file = CachedFile(Path(entry.path), found.st_size, found.st_mtime)
                if file.is_program or file.used < time.time() - _LONGEST_WRITE:
                    yield file


def _remove(path: Path) -> bool:
    with suppress(FileNotFoundError):
        path.unlink()
        return True
    return False
