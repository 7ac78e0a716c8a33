"""`steelyard cache`: what the disk cache of lowered programs holds, and how to empty it."""

import argparse
import json
from datetime import datetime

from steelyard.cache_folder import CachedFile, CacheFolder, find_cache
from steelyard.tools.console import show
from steelyard.tools.sizes import size_text

_OFF = "the disk cache is off: STEELYARD_CACHE says so"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=("show", "clear"), default="show", help="the default is show")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Show the cache, or empty it."""
    folder = find_cache()
    text, data = (_shown if arguments.action == "show" else _cleared)(folder)
    show(json.dumps(data, indent=1) if arguments.json else text)
    return 0


def _shown(folder: CacheFolder | None) -> tuple[str, dict]:
    if folder is None:
        return _OFF, {"folder": None}
    files = folder.files()
    programs, size = sum(file.is_program for file in files), sum(file.size for file in files)
    uses = [
        datetime.fromtimestamp(file.used).astimezone().isoformat(" ", "seconds") for file in files if file.is_program
    ]
    lines = [
        f"folder    {folder.path}",
        f"programs  {programs}",
        f"size      {size_text(size)} of {size_text(folder.limit)}",
    ]
    if uses:
        lines.append(f"used      from {uses[0]} to {uses[-1]}")
    problem = _problem_of(folder)
    if problem:
        lines.append(f"problem   {problem}")
    data = {"folder": str(folder.path), "programs": programs, "bytes": size, "limit": folder.limit}
    data |= {"oldest_use": uses[0] if uses else None, "newest_use": uses[-1] if uses else None, "problem": problem}
    return "\n".join(lines), data


def _cleared(folder: CacheFolder | None) -> tuple[str, dict]:
    if folder is None:
        return _OFF, {"folder": None}
    removed: list[CachedFile] = folder.clear()
    programs, size = sum(file.is_program for file in removed), sum(file.size for file in removed)
    text = f"removed {programs} program{'' if programs == 1 else 's'}, {size_text(size)}, from {folder.path}"
    return text, {"folder": str(folder.path), "programs": programs, "bytes": size}


def _problem_of(folder: CacheFolder) -> str | None:
    """Why compiled programs are neither read from the folder nor written into it."""
    try:
        folder.check()
    except FileNotFoundError:
        return None
    except OSError as error:
        return str(error)
    return None
