"""Mutants of the lit tests' texts, and pipelines, right and wrong, to run on them."""

import random
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from steelyard.dialect import make_context, parse_module, print_module
from steelyard.errors import AssemblyError
from steelyard.passes import all_passes
from steelyard.passes.pipeline.named import all_pipelines

TESTS = Path(__file__).parents[2]
PIPELINES = (
    "",
    "scaled-canonicalize",
    "cse,scaled-canonicalize",
    "steelyard-quantized{recipe=mxfp8}",
    "steelyard-quantized{recipe=nvfp4},canonicalize",
    "scaled-apply-recipe{recipe=fp8-delayed without-parameters},scaled-insert-quantize,scaled-hoist-weights",
    "steelyard-raised,steelyard-quantized{recipe=fp8-current},steelyard-fused,scaled-hoist-weights",
    "scaled-merge-quantize,scaled-fuse-producer,scaled-fuse-epilogue,cse",
)
TO_LOWERED = (
    "steelyard-raised,steelyard-quantized{recipe=%s},steelyard-fused,steelyard-partitioned,steelyard-lowered{target=%s}"
)
RECIPES = ("mxfp8", "nvfp4", "fp8-current", "fp8-delayed", "fp8-block")
TARGETS = ("cpu", "cuda:sm_89", "cuda:sm_90a", "cuda:sm_90a+cublaslt12.6", "cuda:sm_100a", "cuda:sm_121a")
OF_MLIR = ("cse", "canonicalize", "symbol-dce", "inline", "func.func(cse)", "inline{default-pipeline=cse}")
WRONG_ELEMENTS = ("scaled-frobnicate", "func.func(scaled-canonicalize)", "cse{", "", "inline{default-pipeline=no-such}")
LARGE = (b"2147483647", b"2147483648", b"4294967295", b"1099511627776", b"9223372036854775807", b"18446744073709551615")
SNIPPETS = (
    *("0", "-1", "1", "99999999999999999999", "9223372036854775808", "1.0e400", "0x7FF", "?", "*", "tensor<", "none"),
    *("unit", "!scaled.tensor<", "#scaled.scheme<", "!torch.vtensor<[", '"', "{{", "}}", "->", "loc(unknown)"),
    *("\\", "é"),
    *("scaled.gemm", "scaled.", "fprop", "bias(", "at", 'at "up"', "epilogue(none)", "#mxfp8_1x32", "8x64xf32, ", ":"),
    *("f8E4M3FN", "f4E2M1FN", "f32", "i1", "index", "array<i32: 1, 2, 3>", "array<i64>", "dense<0> : ", "@", "^bb0"),
    *("\x00", "\x7f", "// -----\n", "module {", "func.func @f() {", "return", "<" * 300, "(" * 300),
)
_NUMBER = re.compile(rb"(?:(?<![\w.])|(?<=[\d?]x))\d+")
"""A number, also among the sizes of 8x64xf32 or 1x32, but not in f32."""
_WORD = re.compile(rb"[\w.?#!%-]+|\"[^\"]*\"|[^\w\s]")


def corpus() -> tuple[list[bytes], list[bytes]]:
    """The valid functions of the lit tests, in both forms, and the parts of those that are wrong on purpose."""
    paths = sorted(path for folder in ("dialect", "passes", "tools") for path in (TESTS / folder).glob("*.mlir"))
    right, wrong = [], []
    for path in paths:
        for part in path.read_bytes().split(b"// -----\n"):
            if b"expected-error" in part or b"not steelyard-opt" in part:
                wrong.append(part)
            else:
                right += _functions(part)
    return [*right, *_generic_forms(right)], wrong


def _functions(text: bytes) -> list[bytes]:
    """Each function of a text alone, with the aliases it may use, so that a mutation breaks only one."""
    aliases = b"".join(line + b"\n" for line in text.splitlines() if line.startswith((b"#", b"!")))
    return [aliases + match.group() for match in re.finditer(rb"^func\.func .*?^}\n", text, re.DOTALL | re.MULTILINE)]


def _generic_forms(texts: list[bytes]) -> Iterator[bytes]:
    """The same functions in MLIR's generic form, but for those that call one of another text."""
    context = make_context()
    for text in texts:
        with suppress(AssemblyError):
            module = parse_module(text.decode(), context)
            yield print_module(module.operation, generic=True).encode()


def mutants(seed: int, count: int) -> Iterator[tuple[bytes, str]]:
    """Mutated texts, each with a pipeline to run on it; some are still right, so that passes run too."""
    chance = random.Random(seed)
    right, wrong = corpus()
    for _ in range(count):
        yield _text(right, wrong, chance), _pipeline(chance)


def _text(right: list[bytes], wrong: list[bytes], chance: random.Random) -> bytes:
    text = chance.choice(right)
    match chance.randrange(10):
        case 0:
            return text
        case 1 | 2:
            return _resize(text, chance)
        case 3:
            return _enlarge(text, chance)
        case 4:
            return _without_attribute(text, chance)
        case 5:
            return _splice(text, chance.choice(right), chance)
        case 6:
            return chance.choice((b"", text + chance.choice(right)))
    text = chance.choice(chance.choice((right, wrong)))
    for _ in range(chance.choice((1, 1, 2, 4))):
        text = _mutate(text, right + wrong, chance)
    return text


def _pipeline(chance: random.Random) -> str:
    """One of the usual pipelines, or passes in an order that makes sense only by accident."""
    if chance.random() < 0.3:
        return chance.choice(PIPELINES)
    lowering = TO_LOWERED % (chance.choice(RECIPES), chance.choice(TARGETS))
    if chance.random() < 0.2:
        return lowering
    elements = [_element(chance) for _ in range(chance.choice((1, 1, 2, 3, 5)))]
    return ",".join(([lowering] if chance.random() < 0.3 else []) + elements)


def _element(chance: random.Random) -> str:
    kind = chance.random()
    if kind < 0.02:
        return chance.choice(WRONG_ELEMENTS)
    if kind < 0.15:
        return chance.choice(OF_MLIR)
    if kind < 0.3:
        return chance.choice(list(all_pipelines()))
    name = chance.choice(list(all_passes()))
    values = {"recipe": RECIPES, "target": TARGETS, "stage": ("raised", "quantized", "fused", "partitioned", "lowered")}
    values |= {"save": ("", "compact"), "max-rewrites": ("0", "1000")}
    known = [option.name for option in all_passes()[name].options]
    chosen = [f'{option}="{chance.choice(values[option])}"' for option in known if option in values]
    return f"{name}{{{' '.join(chosen)}}}" if chosen else name


def _enlarge(text: bytes, chance: random.Random) -> bytes:
    """Replace one number by one that is too large for something."""
    numbers = list(_NUMBER.finditer(text))
    if not numbers:
        return text
    here = chance.choice(numbers)
    return text[: here.start()] + chance.choice(LARGE) + text[here.end() :]


def _without_attribute(text: bytes, chance: random.Random) -> bytes:
    """Leave out one attribute."""
    attributes = list(re.finditer(rb"\b[\w.]+ = (?:\[[^\]]*\]|\{[^}]*\}|[^,}\n]+)(?:, )?", text))
    if not attributes:
        return text
    here = chance.choice(attributes)
    return text[: here.start()] + text[here.end() :]


def _splice(text: bytes, other: bytes, chance: random.Random) -> bytes:
    """Put lines of one text between those of another."""
    lines, others = text.splitlines(keepends=True), other.splitlines(keepends=True)
    at, start = chance.randrange(len(lines)), chance.randrange(len(others))
    return b"".join([*lines[:at], *others[start : chance.randrange(start, len(others)) + 1], *lines[at:]])


def _resize(text: bytes, chance: random.Random) -> bytes:
    """Replace one or two numbers everywhere in a text: the result is mostly still right, with unusual sizes."""
    numbers = sorted({match.group() for match in _NUMBER.finditer(text)})
    if not numbers:
        return text
    # One and zero are mostly not sizes, and two is the rank of matrices.
    sizes = [number for number in numbers if int(number) > 2] or numbers
    values = chance.choice(((b"0", b"1", b"3", b"33", b"127", b"65536"), LARGE))
    changes = {old: chance.choice(values) for old in chance.sample(sizes, min(len(sizes), chance.choice((1, 2))))}
    return _NUMBER.sub(lambda found: changes.get(found.group(), found.group()), text)


def _mutate(text: bytes, parts: list[bytes], chance: random.Random) -> bytes:
    words = list(_WORD.finditer(text))
    if not words:
        return text + chance.choice(SNIPPETS).encode()
    here, there = chance.choice(words), chance.choice(words)
    start, end = sorted((here.start(), there.start()))
    match chance.randrange(8):
        case 0:
            return text[: here.start()] + text[here.end() :]
        case 1:
            return text[: here.start()] + there.group() + text[here.end() :]
        case 2:
            return text[: here.start()] + chance.choice(SNIPPETS).encode() + text[here.end() :]
        case 3:
            return text[: here.start()] + chance.choice(SNIPPETS).encode() + text[here.start() :]
        case 4:
            return text[: here.start()]
        case 5:
            return text[:end] + text[start:end] + text[end:]
        case 6:
            flipped = bytearray(text)
            flipped[here.start()] ^= 1 << chance.randrange(8)
            return bytes(flipped)
        case _:
            other = chance.choice(parts)
            return text[: here.start()] + other[chance.randrange(len(other) + 1) :]
