"""Constants of the PTX changed one by one: the comparison with the reference must notice nearly all of them."""

import random
import re
from collections.abc import Callable

import ptx_interpreter
import pytest
import torch
from kernel_cases import nvfp4, same_bytes
from simulation import memory_of

from steelyard import reference
from steelyard.codegen.compilation import compile_kernel
from steelyard.formats.schemes import Scheme
from steelyard.reference.grouped import stored_parts
from steelyard.runtime import cpu
from steelyard.runtime.cuda.kernels import Kernels
from steelyard.targets.architectures import TARGETS

MX = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU")
FP8 = Scheme("f8E4M3FN", "tensor", "f32")
SCHEMES = {
    "tensor": (FP8, FP8),
    "mx": (MX, None),
    "mx columns": (None, Scheme("f8E4M3FN", "32x1", "f8E8M0FNU")),
    "nvfp4": (nvfp4(), None),
    "nvfp4 stochastic": (nvfp4(rounding="stochastic"), None),
    "nvfp4 transformed": (None, nvfp4(rht=True)),
    "block": (Scheme("f8E4M3FN", "1x128", "f32", power_of_two=True), None),
    "tile": (Scheme("f8E4M3FN", "128x128", "f32"), None),
}
# Some of the others cannot change a result: bounds that are never reached, counters of which only the sign is read.
LEAST_SCORE = 0.7
# Ten of the 35 constants of this small kernel cannot change a result; each was examined. Five tell an amax of NaN from
# one of 0, which both keep the old scale. Three are bounds of values that are never negative or have another bound. One
# is the value of a choice that is never taken, and one says which lane stores what all lanes hold.
LEAST_SCORES = {"update_scale": 25 / 35}

Family = tuple[str, Callable[[Kernels], list], Callable[[], list]]
"""The prefix of its kernel's name, what it computes, and the expected result."""


class Mutant:
    """Runs launches; one kind of kernel runs with a changed text."""

    target = TARGETS["sm_90a"]

    def __init__(self, prefix: str, rewrite: Callable[[str], str]):
        self.prefix, self.rewrite = prefix, rewrite

    def __call__(self, launch) -> None:
        compiled = compile_kernel(launch.kernel, self.target)
        text = self.rewrite(compiled.ptx) if launch.kernel.name.startswith(self.prefix) else compiled.ptx
        memory = memory_of([argument for argument in launch.arguments if isinstance(argument, torch.Tensor)])
        words = [value for value, _ in launch.words()]
        ptx_interpreter.run(text, words, launch.blocks, memory, compiled.shared_bytes)


def matrix() -> torch.Tensor:
    x = torch.randn(70, 144, generator=torch.Generator().manual_seed(0)) * 3
    x[3, 5], x[9, 40] = float("nan"), float("inf")
    x[30, 16:80] = 1e-40
    # Blocks of zeros that cross the edge, in every part of a tile: their scale shows what is read outside.
    x[4::16], x[64:, 60:100] = 0.0, 0.0
    return x


def tiles() -> torch.Tensor:
    """Tiles with a NaN, with ordinary values, with values whose scale would be infinite, and with zeros at the edge."""
    ordinary = matrix()[:, 16:].nan_to_num(0.0, 1.0)
    return torch.cat((matrix()[:, :128], ordinary, torch.full((70, 128), 1e-40), torch.zeros(70, 16)), dim=1)


def parts_of(copies) -> list:
    return [getattr(copy, part) for copy in copies if copy is not None for part in ("codes", "scales", "amax")]


def quantize_family(name: str) -> Family:
    x, pair, rng = tiles() if name == "tile" else matrix(), SCHEMES[name], (7, 1)
    return (
        "quantize",
        lambda kernels: parts_of(kernels.quantize(x, *pair, rng=rng)),
        lambda: parts_of(reference.quantize(x, *pair, rng=rng)),
    )


ENDS = torch.tensor([7, 7, 8, 41, 41, 68], dtype=torch.int32)
"""Groups of an odd number of rows, of none, of one, of more than a block, and two rows of none."""
DELAYED = (Scheme("f8E4M3FN", "tensor", "f32", source="delayed"),) * 2
GROUPED = {
    "tensor": SCHEMES["tensor"],
    "delayed": DELAYED,
    "row": (None, Scheme("f8E4M3FN", "row", "f32")),
    "mx columns": SCHEMES["mx columns"],
    "nvfp4 stochastic": SCHEMES["nvfp4 stochastic"],
    "nvfp4 transformed": SCHEMES["nvfp4 transformed"],
    "tile": SCHEMES["tile"],
}


def groups_family(name: str, *, stacked: bool = False) -> Family:
    """Rows in groups, or a stack of two matrices."""
    pair, rng = GROUPED[name], (7, 1)
    # A matrix with a NaN, and one whose amax shows each sign that is not taken off.
    negative = -matrix().nan_to_num(0.0, 1.0).abs()
    x, ends = (torch.stack((matrix(), negative)), None) if stacked else (matrix(), ENDS)
    scale = torch.arange(1, 3 if stacked else 7) * 0.75 if pair == DELAYED else None
    copies = reference.grouped_quantize(x, ends, *pair, scale=scale, rng=rng)
    wanted = [stored_parts(own) for own, scheme in zip(copies, pair, strict=True) if scheme is not None]

    def make(kernels: Kernels) -> list:
        found = [parts for parts in kernels.quantize_groups(x, ends, *pair, scale=scale, rng=rng) if parts]
        # There is room for more than these groups need.
        return [
            parts[name][: part.numel()] for parts, own in zip(found, wanted, strict=True) for name, part in own.items()
        ]

    return "quantize", make, lambda: [part for own in wanted for part in own.values()]


def dequantize_family() -> Family:
    row, _ = reference.quantize(matrix().nan_to_num(0.0, 1.0), nvfp4(), None)
    return "dequantize", lambda kernels: [kernels.dequantize(row)], lambda: [reference.dequantize(row)]


def transpose_family() -> Family:
    row, _ = reference.quantize(matrix(), nvfp4("16x16"), None)
    return "transpose", lambda kernels: [kernels.transpose(row).codes], lambda: [reference.transpose(row).codes]


def swizzle_family() -> Family:
    row, _ = reference.quantize(torch.cat((matrix(), matrix())), MX, None)  # two tiles of scales
    return "scales", lambda kernels: [kernels.swizzle(row)], lambda: [reference.swizzle(row)]


def amax_family() -> Family:
    x = matrix().nan_to_num(0.0, 1.0)
    return "amax", lambda kernels: [kernels.amax(x, per_row=True)], lambda: [x.abs().amax(1)]


def norm_family() -> Family:
    x = torch.randn(20, 700, generator=torch.Generator().manual_seed(0)) * 3
    inputs = x, x[0].clone(), x[1].clone(), 1e-5
    return (
        "row_statistics",
        lambda kernels: [kernels.produce("layer_norm", inputs)],
        lambda: [cpu.produce("layer_norm", inputs, torch.float32)],
    )


def activation_family() -> Family:
    values = torch.cat((torch.linspace(-8, 8, 9080), torch.linspace(-110, 30, 1000)))
    x = values[torch.randperm(10080, generator=torch.Generator().manual_seed(0))].reshape(70, 144)
    return "produce", lambda kernels: [kernels.produce("gelu", (x,))], lambda: [cpu.produce("gelu", (x,), x.dtype)]


def epilogue_family() -> Family:
    source, residual, bias = matrix().nan_to_num(0.0, 1.0), matrix().nan_to_num(1.0, 2.0).flip(0), matrix()[0]

    def make(kernels: Kernels) -> list:
        out, kept = torch.full_like(source, -1), torch.full_like(source, -1)
        kernels.epilogue(source, out, activation="silu", bias=bias, residual=residual, preactivation=kept)
        return [out, kept]

    given = source + bias
    return "epilogue", make, lambda: [cpu.produce("silu", (given,), given.dtype) + residual, given]


def state_family() -> Family:
    scheme, scale = Scheme("f8E4M3FN", "tensor", "f32", source="delayed"), torch.tensor(0.5)
    generator = torch.Generator().manual_seed(0)
    nan = float("nan")
    newest = [torch.tensor(value) for value in (2.0, 0.0, float("inf"), nan, 1e-45, 7.0, 3e38, 1.5e-38, nan)]
    histories = [torch.rand(length, generator=generator) * 5 for length in (40, 33, 32, 1, 3, 70, 8, 2, 5)]
    histories[5][17] = nan
    for index in (4, 7, 8):
        histories[index].zero_()  # the last is a first step whose tensor holds a NaN
    histories[0][38] = 9.0
    scales, columns = torch.tensor([0.5, 3.0, 7.0]), torch.rand(40, 3, generator=generator) * 5
    of_experts = torch.tensor([2.0, 0.0, 9.0])

    def make(kernels: Kernels) -> list:
        pairs = zip(histories, newest, strict=True)
        found = [part for history, amax in pairs for part in kernels.update_scale(scale, history, amax, scheme)]
        return [*found, *kernels.update_scale(scales, columns, of_experts, scheme)]

    def expected() -> list:
        kept = [torch.cat((amax[None], history[1:])) for history, amax in zip(histories, newest, strict=True)]
        found = [part for history in kept for part in reference.update_scale(scale, history, scheme)]
        with_newest = torch.cat((of_experts[None], columns[1:]))
        return [*found, *reference.update_scale(scales, with_newest, scheme)]

    return "update_scale", make, expected


FAMILIES: dict[str, Callable[[], Family]] = {
    **{f"quantize {name}": (lambda name=name: quantize_family(name)) for name in SCHEMES},
    **{f"quantize {name} of groups": (lambda name=name: groups_family(name)) for name in GROUPED},
    "quantize delayed of a stack": lambda: groups_family("delayed", stacked=True),
    "dequantize": dequantize_family,
    "transpose": transpose_family,
    "swizzle": swizzle_family,
    "amax": amax_family,
    "norm": norm_family,
    "activation": activation_family,
    "epilogue": epilogue_family,
    "update_scale": state_family,
}


def constants_of(text: str) -> list[re.Match]:
    """The numbers that instructions compute with: float bits and integers, not offsets or sizes in the header."""
    body = text.index("ld.param")
    number = r"(?<=, )(0f[0-9A-F]{8}|0d[0-9A-F]{16}|-?\d+)(?=[,;])"
    return [m for m in re.finditer(number, text) if m.start() > body]


def changed(text: str, match: re.Match) -> str:
    old = match[0]
    if old.startswith("0f"):
        new = f"0f{int(old[2:], 16) ^ 0x00400000:08X}"
    elif old.startswith("0d"):
        new = f"0d{int(old[2:], 16) ^ 0x0008000000000000:016X}"
    else:
        new = str(2 * int(old) + 1 if int(old) != -1 else 3)
    return text[: match.start()] + new + text[match.end() :]


def is_noticed(family: Family, expected: list, number: int) -> bool:
    """Whether the result differs, or the interpreter raises."""
    prefix, make, _ = family
    try:
        found = make(Kernels(Mutant(prefix, lambda text: changed(text, constants_of(text)[number]))))
    except (ptx_interpreter.PtxError, ZeroDivisionError, ValueError):
        return True
    return not all(same_bytes(*parts) for parts in zip(found, expected, strict=True))


def score(name: str, most: int) -> tuple[int, int]:
    family = FAMILIES[name]()
    prefix, make, expect = family
    expected, numbers = expect(), []

    def count(text: str) -> str:
        numbers.append(len(constants_of(text)))
        return text

    found = make(Kernels(Mutant(prefix, count)))
    assert all(same_bytes(*parts) for parts in zip(found, expected, strict=True))
    chosen = random.Random(0).sample(range(numbers[0]), min(most, numbers[0]))
    return sum(is_noticed(family, expected, number) for number in chosen), len(chosen)


@pytest.mark.parametrize("name", ["quantize mx", "quantize nvfp4", "quantize delayed of groups", "epilogue"])
def test_some_changed_constants_are_noticed(name):
    noticed, tried = score(name, 12)
    assert noticed >= LEAST_SCORE * tried - 1, f"{noticed} of {tried}"


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_changed_constants_are_noticed(name):
    noticed, tried = score(name, 60)
    print(f"{name}: {noticed} of {tried} changes noticed")
    assert noticed >= LEAST_SCORES.get(name, LEAST_SCORE) * tried, f"{noticed} of {tried}"
