"""Files that are written whole or not at all, and what to do where they cannot be."""

import errno
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from steelyard.errors import FileError

_REMEDIES = {
    errno.ENOSPC: "free some space, or choose a path on another disk",
    errno.EDQUOT: "free some space, or choose a path on another disk",
    errno.EROFS: "choose a path that can be written",
    errno.EACCES: "choose a path that you may write",
    errno.EPERM: "choose a path that you may write",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.EEXIST: "choose another path, or move the file that is there",
    errno.ENOTDIR: "choose another path: a part of this one is a file",
    errno.EISDIR: "choose a path that is not a folder",
    errno.ENOENT: "choose a path in a folder that exists",
    errno.EPIPE: "let the program that reads it read to the end",
}


def failure(what: str, error: OSError) -> FileError:
    """The error to raise, which says what could not be done, why, and what to do."""
    remedy = _REMEDIES.get(error.errno or 0, "choose another path")
    return FileError(f"{what}: {error.strerror or error}; {remedy}")


def write_file(path: Path, data: bytes) -> None:
    """Write a file; where this fails, what was there before stays."""
    check_writable(path)
    try:
        # A device or a pipe is not replaced, and neither is a link: the file that it names is.
        if path.is_file() or not path.exists():
            mode = path.stat().st_mode if path.exists() else 0o666 & ~_umask()
            replace_file(path.resolve(), data, mode)
        else:
            path.write_bytes(data)
    except OSError as error:
        raise failure(f"cannot write '{path}'", error) from error


def check_writable(path: Path) -> None:
    """Refuse a path that no file can be written to, as far as this is known before."""
    try:
        if path.is_file() or path.is_dir():
            path.open("ab").close()
        if path.is_file() or not path.exists():
            # Its folder, too: an unfinished file is beside it.
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise failure(f"cannot write '{path}'", error) from error


def write_folder(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write files into a folder, which is made where there are any; where one cannot be written, none is.

    They are moved to their names when all are complete. Only if a name is that of a folder, those before it are there.
    """
    missing: list[Path] = []
    try:
        missing += [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as unfinished:
            for name, text in texts.items():
                Path(unfinished, name).write_text(text)
            for name in texts:
                Path(unfinished, name).replace(folder / name)
    except OSError as error:
        raise failure(f"cannot write into the folder '{folder}'", error) from error
    finally:
        for path in missing:
            # Folders that have files stay.
            with suppress(OSError):
                path.rmdir()
    return [folder / name for name in texts]


def replace_file(path: Path, data: bytes, mode: int, prefix: str = ".") -> None:
    """Make or replace a file in one step; until then, its data is in a file beside it whose name has this prefix."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=prefix, delete=False) as file:
        unfinished = Path(file.name)
        try:
            file.write(data)
            file.flush()
            unfinished.chmod(mode)
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
