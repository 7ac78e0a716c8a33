"""Types and schemes in their short form, and back.

    #mxfp8_1x32                               #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
    !scaled.tensor<8x64xbf16, #row, #col>     !scaled.tensor<tensor<8x64xbf16>, #row, #col>
    !scaled.tensor<8x64xbf16, #row>           !scaled.tensor<tensor<8x64xbf16>, #row, none>
    !scaled.tensor<8x64xbf16 in 2, #row>      !scaled.tensor<tensor<8x64xbf16, 2 : i64>, #row, none>

The short form of a type starts with a size, as no type does, so that the two are never taken for each other.
"""

import re
from collections.abc import Container

from steelyard.dialect.assembly.scheme_names import full_by_name, name_by_full
from steelyard.dialect.assembly.tokens import STRING, closing, split_at_commas, token_at

_FULL = re.compile(rf"{STRING}|!scaled\.tensor<|#scaled\.scheme<")
_BASE = re.compile(r"tensor<((?:(?:\d+|\?)x)+[^,]+?)(?:, (\d+) : i64)?>")
_SHORT_BASE = re.compile(r"(.*\S)\s+in\s+(\d+)", re.DOTALL)
_SHORT_START = re.compile(r"!scaled\.tensor<[ \t\r\n]*[\d?]")


def shorten(text: str) -> str:
    """A text of MLIR's with every quantized type and every scheme in its short form."""
    if "scaled." not in text:
        return text
    pieces: list[str] = []
    position = 0
    while (found := _FULL.search(text, position)) is not None:
        if found.group().startswith('"'):
            end = found.end()
            pieces.append(text[position:end])
        else:
            end = closing(text, found.end() - 1)
            if end < 0:
                break
            pieces += (text[position : found.start()], _shorten_one(text[found.start() : end]))
        position = end
    return "".join(pieces) + text[position:]


_shortened: dict[str, str] = {}
_MOST_SHORTENED = 20_000


def _shorten_one(text: str) -> str:
    short = _shortened.get(text)
    if short is None:
        if len(_shortened) >= _MOST_SHORTENED:
            _shortened.clear()
        short = _shortened[text] = _short_scheme(text) if text.startswith("#") else _short_type(text)
    return short


def _short_scheme(text: str) -> str:
    return name_by_full().get(text, text)


def _short_type(text: str) -> str:
    """A type in its short form; one that stands for no ranked tensor stays as it is, but for its schemes."""
    parts = [part.strip() for part in split_at_commas(text[len("!scaled.tensor<") : -1])]
    base = _BASE.fullmatch(parts[0])
    copies = [_short_scheme(part) for part in parts[1:]]
    if base is None or len(copies) != 2:
        return f"!scaled.tensor<{', '.join([parts[0], *copies])}>"
    row, col = copies
    shape = base[1] if base[2] is None else f"{base[1]} in {base[2]}"
    return f"!scaled.tensor<{shape}, {row}>" if col == "none" else f"!scaled.tensor<{shape}, {row}, {col}>"


def is_short_type(text: str, position: int) -> bool:
    """Whether a quantized type in its short form starts here."""
    return _SHORT_START.match(text, position) is not None


def expand_type(text: str, aliases: Container[str]) -> str | None:
    """A type in full; None where its parameters are not a shape and one or two schemes."""
    parts = split_at_commas(text[len("!scaled.tensor<") : -1])
    if len(parts) not in (2, 3):
        return None
    copies = [expand_scheme(part, aliases) for part in parts[1:]]
    if len(copies) == 1:
        copies.append(" none")
    shape = parts[0].strip()
    if (grouped := _SHORT_BASE.fullmatch(shape)) is not None:
        shape = f"{grouped[1]}, {grouped[2]} : i64"
    return f"!scaled.tensor<tensor<{shape}>,{','.join(copies)}>"


def expand_scheme(text: str, aliases: Container[str]) -> str:
    """A scheme in full, unless its name is one of the file's own aliases, or is none of ours."""
    name = token_at(text, 0)
    full = None if name.text in aliases else full_by_name().get(name.text)
    return text if full is None else text[: name.start] + full + text[name.end :]
