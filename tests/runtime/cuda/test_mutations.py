"""Constants of the PTX changed one by one: the comparison with the reference must notice nearly all of them."""

import random
import re

import ptx_interpreter
import pytest
import torch
from kernel_cases import nvfp4, same_bytes
from simulation import memory_of

from steelyard import reference
from steelyard.runtime.cuda.compilation import compile_kernel
from steelyard.runtime.cuda.kernels import Kernels
from steelyard.runtime.cuda.targets import TARGETS
from steelyard.schemes import Scheme

MX = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU")
SCHEMES = {"mx": MX, "nvfp4": nvfp4(), "block": Scheme("f8E4M3FN", "1x128", "f32", power_of_two=True)}
# The rest leaves every result as it was: bounds that are never reached, counters that only their sign is read of.
LEAST_SCORE = 0.7


class Mutant:
    """Runs launches whose quantize kernel has another text."""

    target = TARGETS["sm_90a"]

    def __init__(self, rewrite):
        self.rewrite = rewrite

    def __call__(self, launch) -> None:
        compiled = compile_kernel(launch.kernel, TARGETS["sm_90a"])
        quantizes = launch.kernel.name.startswith("quantize")
        text = self.rewrite(compiled.ptx) if quantizes else compiled.ptx
        memory = memory_of([argument for argument in launch.arguments if isinstance(argument, torch.Tensor)])
        words = [value for value, _ in launch.words()]
        ptx_interpreter.run(text, words, launch.blocks, memory, compiled.shared_bytes)


def constants_of(text: str) -> list[re.Match]:
    """Numbers that instructions compute with: float bits and integers, not offsets or shapes of the header."""
    body = text.index("ld.param")
    return [m for m in re.finditer(r"(?<=, )(0f[0-9A-F]{8}|-?\d+)(?=[,;])", text) if m.start() > body]


def changed(text: str, match: re.Match) -> str:
    old = match[0]
    new = f"0f{int(old[2:], 16) ^ 0x00400000:08X}" if old.startswith("0f") else str(2 * int(old) + 1)
    return text[: match.start()] + new + text[match.end() :]


def is_noticed(scheme: Scheme, x: torch.Tensor, number: int) -> bool:
    """Another result, or a refusal of the interpreter."""

    def rewrite(text: str) -> str:
        return changed(text, constants_of(text)[number])

    expected, _ = reference.quantize(x, scheme, None)
    try:
        found, _ = Kernels(Mutant(rewrite)).quantize(x, scheme, None)
    except (ptx_interpreter.PtxError, ZeroDivisionError, ValueError):
        return True
    parts = ("codes", "scales", "amax")
    return not all(same_bytes(getattr(found, part), getattr(expected, part)) for part in parts)


def score(scheme: Scheme, most: int) -> tuple[int, int]:
    x = torch.randn(70, 144, generator=torch.Generator().manual_seed(0)) * 3
    x[3, 5], x[9, 40], x[20] = float("nan"), float("inf"), 0.0
    x[30, 16:80] = 1e-40
    numbers = []

    def count(text: str) -> str:
        numbers.append(len(constants_of(text)))
        return text

    Kernels(Mutant(count)).quantize(x, scheme, None)
    chosen = random.Random(0).sample(range(numbers[0]), min(most, numbers[0]))
    return sum(is_noticed(scheme, x, number) for number in chosen), len(chosen)


@pytest.mark.parametrize("name", SCHEMES)
def test_some_changed_constants_are_noticed(name):
    noticed, tried = score(SCHEMES[name], 8)
    assert noticed >= LEAST_SCORE * tried - 1, f"{noticed} of {tried}"


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMES)
def test_changed_constants_are_noticed(name):
    noticed, tried = score(SCHEMES[name], 200)
    print(f"{name}: {noticed} of {tried} changes noticed")
    assert noticed >= LEAST_SCORE * tried, f"{noticed} of {tried}"
