"""`--verify-diagnostics`: comments that say which diagnostics are expected.

`// expected-error @+1 {{part of the message}}` on the line before; `@-1`, `@above`, `@below` and `@unknown` work too,
and so do expected-warning, expected-remark and expected-note.
"""

import re
from dataclasses import dataclass

from steelyard.tools.opt.diagnostics import Diagnostic

_EXPECTATION = re.compile(
    r"expected-(?P<severity>error|warning|remark|note)"
    r"(?:\s*@(?P<place>[+-]\d+|above|below|unknown))?\s*\{\{(?P<message>.*?)\}\}"
)


@dataclass(frozen=True)
class Expectation:
    """An expected diagnostic; line 0 if it has no place."""

    severity: str
    message: str
    line: int
    comment_line: int


def find_expectations(text: str) -> list[Expectation]:
    """The expectations in a text's comments."""
    found = []
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        for match in _EXPECTATION.finditer(line):
            target = _target_line(match["place"], number, lines)
            found.append(Expectation(match["severity"], match["message"], target, number))
    return found


def compare(expectations: list[Expectation], diagnostics: list[Diagnostic]) -> list[Diagnostic]:
    """What is wrong: unexpected diagnostics, and expectations that were not met."""
    pending = list(expectations)
    wrong = []
    for diagnostic in (d for top in diagnostics for d in (top, *top.notes)):
        met = next((e for e in pending if _meets(diagnostic, e)), None)
        if met is not None:
            pending.remove(met)
        elif diagnostic.severity != "note":
            message = f"unexpected {diagnostic.severity}: {diagnostic.message}"
            wrong.append(Diagnostic("error", message, diagnostic.file, diagnostic.line, diagnostic.column))
    for expectation in pending:
        message = f'expected {expectation.severity} "{expectation.message}" was not produced'
        wrong.append(Diagnostic("error", message, "", expectation.comment_line, 1))
    return wrong


def _meets(diagnostic: Diagnostic, expectation: Expectation) -> bool:
    same_place = diagnostic.line == expectation.line
    return same_place and diagnostic.severity == expectation.severity and expectation.message in diagnostic.message


def _target_line(place: str | None, number: int, lines: list[str]) -> int:
    if place is None:
        return number
    if place == "unknown":
        return 0
    if place in ("above", "below"):
        step = -1 if place == "above" else 1
        number += step
        while 0 < number <= len(lines) and "expected-" in lines[number - 1]:
            number += step
        return number
    return number + int(place)
