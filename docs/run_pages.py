"""Runs the code blocks of the documents, and compares what they print with what the documents show.

    python docs/run_pages.py [PAGE ...]          # all pages by default
    python docs/run_pages.py --write [PAGE ...]  # put what was printed in place of what was shown

Each page is one program, run from its first block to its last in a folder of its own:

- `python` blocks run in order and share their names.
- `console` blocks hold commands after `$ `, each followed by what it prints, if that is shown.
- A block titled "Output" is what the `python` block before it prints.
- A block with any other title is a file, written before the page runs.
- `text` blocks are shown and not run.

`...` in shown output stands for any text. A block of any other kind is an error.
"""

import argparse
import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUTPUT = "Output"
COMMAND = "$ "
SECONDS = 300
_FENCE = re.compile(r'^(?P<indent>\s*)```(?P<language>[^\s`]*)(?: title="(?P<title>[^"]*)")?(?P<rest>.*)$')


class PageError(Exception):
    """A page shows what does not happen; the message says where."""


@dataclass
class Block:
    """A fenced block; `line` is the number of its first line of text in the page."""

    language: str
    title: str
    line: int
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Its text, every line ended."""
        return "".join(f"{line}\n" for line in self.lines)


@dataclass(frozen=True)
class Difference:
    """Shown lines `first` to `last` (numbers in the page, the last excluded), and what was printed instead."""

    first: int
    last: int
    printed: str


def pages() -> list[Path]:
    """Every document that is read by people."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page; a kind that has no rule is an error."""
    blocks: list[Block] = []
    current: Block | None = None
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        fence = _FENCE.match(line)
        if current is not None and line == "```":
            current = None
        elif current is not None:
            current.lines.append(line)
        elif fence:
            current = Block(fence["language"], fence["title"] or "", number + 1)
            blocks.append(current)
            if fence["indent"] or fence["rest"] or not _has_rule(blocks):
                raise PageError(f"{_place(page, number)}: no rule says how to run the block {line!r}")
    if current is not None:
        raise PageError(f"{_place(page, current.line - 1)}: the block is not closed")
    return blocks


def _has_rule(blocks: list[Block]) -> bool:
    *before, last = blocks
    if last.title == OUTPUT:
        return bool(before) and before[-1].language == "python" and not before[-1].title
    return bool(last.title) or last.language in ("python", "console", "text")


def run_page(page: Path) -> list[Difference]:
    """Run a page; what it shows differently from what happens, from top to bottom. Errors of its code are raised."""
    blocks = blocks_of(page)
    differences: list[Difference] = []
    names: dict = {"__name__": "__main__", "__file__": str(page)}
    with _own_folder() as folder:
        for block in blocks:
            if block.title and block.title != OUTPUT:
                (folder / block.title).write_text(block.text)
        printed = ""
        for block in blocks:
            if block.title == OUTPUT:
                differences += _compare(block.lines, block.line, printed)
            elif block.language == "python" and not block.title:
                printed = _run_python(page, block, names)
            elif block.language == "console" and not block.title:
                differences += _run_console(page, block, folder)
    return differences


@contextlib.contextmanager
def _own_folder() -> Iterator[Path]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def _run_python(page: Path, block: Block, names: dict) -> str:
    # Empty lines before it give errors the line numbers of the page.
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code, names)
    return output.getvalue()


def _run_console(page: Path, block: Block, folder: Path) -> list[Difference]:
    differences = []
    for number, command, shown in _commands(page, block):
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        run = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env={**os.environ, "PATH": path, "COLUMNS": "100"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )
        if run.returncode:
            raise PageError(f"{_place(page, number)}: `{command}` ends with code {run.returncode}:\n{run.stdout}")
        if shown:
            differences += _compare(shown, number + 1, run.stdout)
    return differences


def _commands(page: Path, block: Block) -> Iterator[tuple[int, str, list[str]]]:
    """The line, the text and the shown output of each command."""
    starts = [i for i, line in enumerate(block.lines) if line.startswith(COMMAND)]
    if not starts or starts[0] != 0:
        raise PageError(f"{_place(page, block.line)}: a console block must begin with a command after `{COMMAND}`")
    for start, end in zip(starts, [*starts[1:], len(block.lines)], strict=True):
        command = block.lines[start].removeprefix(COMMAND)
        yield block.line + start, command, block.lines[start + 1 : end]


def _compare(shown: list[str], line: int, printed: str) -> list[Difference]:
    text = _stripped("\n".join(shown))
    pattern = ".*?".join(re.escape(part) for part in text.split("..."))
    if re.fullmatch(pattern, _stripped(printed), re.DOTALL):
        return []
    return [Difference(line, line + len(shown), printed)]


def _stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def _place(page: Path, line: int) -> str:
    return f"{page.relative_to(ROOT) if page.is_relative_to(ROOT) else page}:{line}"


def report(page: Path, differences: list[Difference]) -> str:
    """What is shown and what was printed, for each difference."""
    lines = page.read_text().splitlines()
    parts = []
    for difference in differences:
        shown = "\n".join(lines[difference.first - 1 : difference.last - 1])
        head = f"{_place(page, difference.first)} shows what was not printed"
        parts.append(f"{head}. Shown:\n{shown}\nPrinted:\n{_stripped(difference.printed)}\n")
    return "\n".join(parts)


def rewrite(page: Path, differences: list[Difference]) -> None:
    """Put what was printed in the place of what was shown."""
    lines = page.read_text().splitlines()
    for difference in reversed(differences):
        lines[difference.first - 1 : difference.last - 1] = _stripped(difference.printed).splitlines()
    page.write_text("".join(f"{line}\n" for line in lines))


def main(arguments: list[str]) -> int:
    """Check pages, or rewrite their output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, help="all by default")
    parser.add_argument("--write", action="store_true", help="put what was printed in place of what was shown")
    options = parser.parse_args(arguments)
    # The programs of pages are of no use to the user's own cache.
    os.environ["STEELYARD_CACHE"] = "off"
    failed = False
    for page in [page.resolve() for page in options.pages] or pages():
        differences = run_page(page)
        if not differences:
            continue
        print(report(page, differences), file=sys.stderr)
        if options.write:
            rewrite(page, differences)
        failed = failed or not options.write
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
