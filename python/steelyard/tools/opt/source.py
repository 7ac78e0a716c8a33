"""The input text: reading it, splitting it, and refusing what MLIR's parser cannot survive."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from steelyard.errors import FileError

MAX_DIGITS = 2048
"""Longest integer. MLIR converts digits in quadratic time: a hundred thousand of them take minutes."""

MAX_NESTING = 256
"""Deepest bracket nesting. MLIR's parser recurses once per level and overflows the stack at some thousands."""

MAX_RESULTS = 65536
"""Most results of an op. For `%0#4294967295`, MLIR's parser allocates a place for each result up to that number."""

_BYTECODE_MAGIC = b"ML\xefR"
_SEPARATOR = re.compile(r"^// -----.*$", re.MULTILINE)
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|[(){}\[\]<>]|->')
_OPENING, _CLOSING = "({[<", ")}]>"
_RESULT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|%[\w$.-]+(?:#|:)\s*(\d+)')
_DIGITS = re.compile(rf"[0-9a-fA-FxX]{{{MAX_DIGITS + 1}}}")


@dataclass(frozen=True)
class SourceError(Exception):
    """Something in the input that stops it from being parsed at all."""

    line: int
    column: int
    message: str


@dataclass(frozen=True)
class Source:
    """An input: text, or bytecode."""

    name: str
    data: bytes

    @property
    def is_bytecode(self) -> bool:
        return self.data.startswith(_BYTECODE_MAGIC)

    def chunks(self, split: bool) -> list[str | bytes]:
        """The parts to process. Each is padded with empty lines so that its lines keep their numbers."""
        if self.is_bytecode:
            return [self.data]
        text = self.data.decode()
        if not split:
            return [text]
        chunks, start = [], 0
        for match in [*_SEPARATOR.finditer(text), None]:
            end = len(text) if match is None else match.start()
            chunks.append("\n" * text.count("\n", 0, start) + text[start:end])
            start = end if match is None else match.end()
        return chunks


def read_source(path: str) -> Source:
    """Read a file, or standard input for `-`; raises `FileError`."""
    if path == "-" and sys.stdin is None:
        raise FileError("cannot read standard input: it is closed; give a file, or redirect one into it")
    try:
        return Source("<stdin>", sys.stdin.buffer.read()) if path == "-" else Source(path, Path(path).read_bytes())
    except OSError as error:
        raise FileError(f"cannot read '{path}': {error.strerror}; give a file that can be read") from error


def check_text(source: Source) -> None:
    """Raise `SourceError` for text that must not reach MLIR's parser."""
    if source.is_bytecode:
        return
    nul = source.data.find(b"\0")
    if nul >= 0:
        # MLIR would treat this as the end of the text and ignore the rest.
        raise SourceError(*_position(source.data, nul), "text must not contain NUL bytes")
    try:
        text = source.data.decode()
    except UnicodeDecodeError as error:
        line, column = _position(source.data, error.start)
        raise SourceError(line, column, f"text must be UTF-8, got byte 0x{source.data[error.start]:02x}") from None
    _check_nesting(text)
    _check_digits(text)
    _check_results(text)


def _check_nesting(text: str) -> None:
    depth = 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token in _OPENING:
            depth += 1
            if depth > MAX_NESTING:
                line, column = _position(text.encode(), len(text[: match.start()].encode()))
                raise SourceError(line, column, f"brackets must not nest deeper than {MAX_NESTING}")
        elif token in _CLOSING:
            depth = max(depth - 1, 0)


def _check_digits(text: str) -> None:
    # Hexadecimal data inside a string may have any length.
    for match in _DIGITS.finditer(_STRING.sub(lambda found: " " * len(found.group()), text)):
        line, column = _position(text.encode(), len(text[: match.start()].encode()))
        raise SourceError(line, column, f"numbers must not be longer than {MAX_DIGITS} digits")


def _check_results(text: str) -> None:
    for match in _RESULT.finditer(text):
        if match.group(1) and int(match.group(1)) >= MAX_RESULTS:
            line, column = _position(text.encode(), len(text[: match.start()].encode()))
            raise SourceError(line, column, f"an op must have fewer than {MAX_RESULTS} results, got {match.group()}")


def _position(data: bytes, offset: int) -> tuple[int, int]:
    line_start = data.rfind(b"\n", 0, offset) + 1
    return data.count(b"\n", 0, offset) + 1, offset - line_start + 1
