"""A parser of PTX text: entries with their parameters, labels and instructions. Anything unknown is an error."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache


class PtxError(Exception):
    """The text, or what it does, is outside of what PTX allows or this interpreter knows."""


@dataclass(frozen=True)
class Instruction:
    """An opcode with all its modifiers, its operands as text, and the predicate that guards it."""

    opcode: str
    operands: tuple[str, ...]
    guard: str | None = None
    negated: bool = False
    line: int = 0


@dataclass
class Entry:
    """A kernel."""

    name: str
    parameters: list[tuple[str, int]]  # name, bytes
    threads: int = 0
    registers: dict[str, str] = field(default_factory=dict)  # prefix -> pred, b16, b32, b64
    widths: dict[str, str] = field(default_factory=dict)  # of the registers that were asked for
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    steps: dict[int, Callable] = field(default_factory=dict)  # what the interpreter has decoded, by place in the code

    def width(self, register: str) -> str:
        """The declared class of a register."""
        if register not in self.widths:
            prefix = register.rstrip("0123456789")
            if prefix not in self.registers:
                raise PtxError(f"{register} is not declared")
            self.widths[register] = self.registers[prefix]
        return self.widths[register]


_PARAMETER = re.compile(r"\.param \.([usb])(8|16|32|64)(?: \.ptr \.global \.align \d+)? (\w+),?$")
_INSTRUCTION = re.compile(r"(?:@(!?)(%p\d+)\s+)?([a-z][\w.]*)(?:\s+(.*?))?\s*;$")
_REGISTERS = re.compile(r"\.reg \.(\w+)\s+(%\w+?)(?:<\d+>)?;$")
_IGNORED = re.compile(r"(\{|\}|\)|\(|\.pragma \"(nounroll|used_bytes_mask 0x[0-9a-fA-F]+)\";|\.minnctapersm \d+)$")


@lru_cache(maxsize=64)
def parse(text: str) -> tuple[dict[str, str], dict[str, Entry]]:
    """Version and target, and every entry by name."""
    header: dict[str, str] = {}
    entries: dict[str, Entry] = {}
    entry: Entry | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("//")[0].strip()
        if not line:
            continue
        if entry is not None and (found := _INSTRUCTION.match(line)):
            negated, guard, opcode, operands = found.groups()
            entry.code.append(Instruction(opcode, _split(operands or ""), guard, bool(negated), number))
        elif _IGNORED.match(line):
            continue
        elif found := re.match(r"\.(version|target|address_size) (.*)$", line):
            header[found.group(1)] = found.group(2)
        elif found := re.match(r"\.extern \.shared \.align 16 \.b8 (\w+)\[\];$", line):
            header["shared"] = found.group(1)
        elif found := re.match(r"\.visible \.entry (\w+)\(\)?$", line):
            entry = entries.setdefault(found.group(1), Entry(found.group(1), []))
        elif entry is None:
            raise PtxError(f"line {number}: {line!r} is not known")
        else:
            _parse_in_entry(entry, line, number)
    return header, entries


def _parse_in_entry(entry: Entry, line: str, number: int) -> None:
    if found := _PARAMETER.match(line):
        entry.parameters.append((found.group(3), int(found.group(2)) // 8))
    elif found := re.match(r"\.maxntid (\d+), 1, 1$", line):
        entry.threads = int(found.group(1))
    elif found := _REGISTERS.match(line):
        entry.registers[found.group(2)] = found.group(1)
    elif found := re.match(r"(\$\w+):$", line):
        entry.labels[found.group(1)] = len(entry.code)
    else:
        raise PtxError(f"line {number}: {line!r} is not known")


def _split(text: str) -> tuple[str, ...]:
    """Operands at the commas outside of braces."""
    parts = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", text)
    return tuple(part.strip() for part in parts)
