"""Tokens of MLIR's text, as its lexer cuts them."""

import re
from typing import NamedTuple

STRING = r'"(?:[^"\\\n]|\\.)*"'
NAME = r"[A-Za-z_$.\-][\w$.\-]*"
"""What may follow the first character of a value's, an alias's or a dialect type's name."""
BLANK = re.compile(r"(?:[ \t\r\n]+|//[^\n]*)*", re.ASCII)
WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)

# Blanks and comments before a token are matched with it: one match for each token is most of what reading costs.
_TOKEN = re.compile(
    rf"""(?:[ \t\r\n]+|//[^\n]*)*(?:
    (?P<value>%(?:\d+|{NAME})(?:\#\d+)?)
    |(?P<word>[A-Za-z_][\w$.]*)
    |(?P<punctuation>->|[(){{}}\[\]<>,:=])
    |(?P<string>{STRING})
    |(?P<number>-?(?:0x[0-9a-fA-F]+|\d+(?:\.\d*(?:[eE][-+]?\d+)?)?))
    |(?P<name>[\#!]{NAME})
    |(?P<symbol>@(?:\d+|{NAME}|{STRING}))
    |(?P<other>.)
    |(?P<end>\Z))""",
    re.VERBOSE | re.ASCII,
)
# `->` and the comparisons of affine sets hold a `>` that closes nothing.
_BRACKET = re.compile(rf"{STRING}|//[^\n]*|->|[<>=]=|[(){{}}\[\]<>]")
_COMMA_OR_BRACKET = re.compile(rf"{STRING}|//[^\n]*|->|[<>=]=|[(){{}}\[\]<>,]")
_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}
SIMPLE_TYPE = re.compile(r'!?[A-Za-z_][\w$.\-]*(?:<[^<>"/(){}=]*>)?', re.ASCII)


class Token(NamedTuple):
    """A token, from `start` to `end`; the end of the text is a token of kind `end`."""

    kind: str
    text: str
    start: int
    end: int

    def describe(self) -> str:
        """The token as a diagnostic shows it."""
        return "the end of the text" if self.kind == "end" else f"'{self.text}'"


def skip_blank(text: str, position: int) -> int:
    """The first position from here that is neither white space nor in a comment."""
    found = BLANK.match(text, position)
    return found.end() if found else position


def token_at(text: str, position: int) -> Token:
    """The next token."""
    found = _TOKEN.match(text, position)
    assert found is not None
    assert found.lastgroup is not None
    return Token(found.lastgroup, found[found.lastgroup], *found.span(found.lastgroup))


def closing(text: str, position: int) -> int:
    """The position behind the bracket that closes the one here; -1 where none does."""
    expected: list[str] = []
    for found in _BRACKET.finditer(text, position):
        bracket = found.group()
        if bracket in _CLOSING:
            expected.append(_CLOSING[bracket])
        elif bracket in ")]}>":
            # A bracket that is a part of another token, such as the first of `<=>`, opens nothing.
            if not expected or expected.pop() != bracket:
                return -1
            if not expected:
                return found.end()
    return -1


def split_at_commas(text: str) -> list[str]:
    """The parts of a text between its commas, but for those in brackets, strings and comments."""
    parts: list[str] = []
    depth, start = 0, 0
    for found in _COMMA_OR_BRACKET.finditer(text):
        token = found.group()
        if token == ",":
            if depth == 0:
                parts.append(text[start : found.start()])
                start = found.end()
        elif token in "([{<":
            depth += 1
        elif token in ")]}>":
            depth -= 1
    return [*parts, text[start:]]


def type_end(text: str, position: int) -> int:
    """The position behind the type that starts here; -1 where none does."""
    simple = SIMPLE_TYPE.match(text, position)
    if simple is not None:
        end = simple.end()
        following = skip_blank(text, end)
        has_parameters = text[end - 1] != ">" and text.startswith("<", following)
        return closing(text, following) if has_parameters else end
    if not text.startswith("(", position):
        return -1
    # A function: (types) -> type, or (types) -> (types).
    inputs_end = closing(text, position)
    arrow = skip_blank(text, inputs_end) if inputs_end > 0 else -1
    if arrow < 0 or not text.startswith("->", arrow):
        return -1
    results = skip_blank(text, arrow + 2)
    return closing(text, results) if text.startswith("(", results) else type_end(text, results)
