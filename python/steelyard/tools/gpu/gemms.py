"""The GEMMs of every recipe on a user's GPU against float64, for `steelyard verify-gpu`."""

from collections.abc import Iterator

import torch

from steelyard import recipes
from steelyard.formats.gemms import KINDS, reads_columnwise
from steelyard.formats.schemes import Scheme
from steelyard.reference.dequantize import decode_stored
from steelyard.runtime.cuda import gemm
from steelyard.targets.architectures import Target
from steelyard.targets.gemm_paths import EMULATED, NATIVE, gemm_path, schemes_of
from steelyard.tools.gpu.checks import Check, CheckFailed, Device
from steelyard.tools.gpu.kernels import copy_on, mixed_recipes, other_formats

GROUP = "gemms"
_MOST_NATIVE = 2.0**-8
"""bf16 rounds to 2^-9; the accumulators of tensor cores may keep fewer bits than float32."""
_ROUNDING = 2.0**-24
Schemes = tuple[Scheme | None, Scheme]


def gemm_checks(place: Device, target: Target, size: int) -> Iterator[Check]:
    """Every GEMM that is native or emulated on this GPU. Detail is the largest error over sum|a||b|."""
    named = [(name, recipes.get(name)) for name in (*recipes.NAMES, *mixed_recipes())] + other_formats()
    known = set()
    for name, recipe in named:
        for kind in KINDS:
            lhs, rhs = schemes_of(recipe, kind)
            path = gemm_path(kind, lhs, rhs, target).path
            if rhs is None or (name not in recipes.NAMES and (kind, lhs, rhs) in known):
                continue
            known.add((kind, lhs, rhs))
            schemes, what = (lhs, rhs), f"{name} {kind} {path}"
            if path == NATIVE:
                yield Check(GROUP, what, lambda k=kind, s=schemes: _compare_native(place, k, s, size))
            elif path == EMULATED:
                yield Check(GROUP, what, lambda k=kind, s=schemes: _compare_emulated(place, k, s, size))


def quantized_operands(place: Device, kind: str, schemes: Schemes, size: int) -> list:
    """What a GEMM reads: (size, size) of the left operand, and twice as many rows of the right one; values where there
    is no scheme."""
    copies = []
    for scheme, is_columnwise, rows in zip(schemes, reads_columnwise(kind), (size, 2 * size), strict=True):
        generator = torch.Generator().manual_seed(len(copies))
        shape = (size, rows) if is_columnwise else (rows, size)
        x = torch.randn(shape, generator=generator).bfloat16().to(place.name)
        if scheme is None:
            copies.append(x)
            continue
        scale = torch.tensor(2.0).to(place.name) if scheme.source == "delayed" else None
        pair = (None, scheme) if is_columnwise else (scheme, None)
        rng = torch.tensor((1, 2)).to(place.name)
        copies.append(place.kernels.quantize(x, *pair, scale=scale, rng=rng)[is_columnwise])
    return copies


def _decoded(copy) -> torch.Tensor:
    """The values of a copy in float64 on the CPU, its rows along the reduction."""
    if isinstance(copy, torch.Tensor):
        return copy.cpu().double()
    values = torch.from_numpy(decode_stored(copy_on(copy, "cpu"))).double()
    return values.T if copy.columnwise and not copy.is_stored_transposed else values


def _compare_native(place: Device, kind: str, schemes: Schemes, size: int) -> str:
    copies = quantized_operands(place, kind, schemes, size)
    operands = [gemm.gemm_operand(place.kernels, copy) for copy in copies]
    left, right = map(_decoded, copies)
    exact, magnitude = left @ right.T, left.abs() @ right.abs().T
    bias = torch.linspace(-2, 2, 2 * size).bfloat16()
    largest = 0.0
    # torch adds a bias itself where it has the dtype of the result, which must not be float32.
    for dtype, added in ((torch.bfloat16, None), (torch.float32, None), (torch.bfloat16, bias)):
        given = None if added is None else added.to(place.name)
        found = gemm.multiply(*operands, bias=given, out_dtype=dtype).cpu()
        wanted = exact if added is None else exact + added.double()
        allowed = magnitude if added is None else magnitude + added.double().abs()
        error = ((found.double() - wanted).abs() / allowed).max().item()
        what = f"the product in {dtype}{'' if added is None else ' with a bias'}"
        if not error < _MOST_NATIVE:
            raise CheckFailed(f"{what} is off by {error:.1e} of sum|a||b|")
        largest = max(largest, error)
    return f"error {largest:.1e}"


def _compare_emulated(place: Device, kind: str, schemes: Schemes, size: int) -> str:
    copies = quantized_operands(place, kind, schemes, size)
    left, right = map(_decoded, copies)
    out = torch.empty(left.shape[0], right.shape[0], device=place.name)
    place.kernels.emulate(copies[0], copies[1], out)
    error = ((out.double().cpu() - left @ right.T).abs() / (left.abs() @ right.abs().T)).max().item()
    # One rounding per term of a sum in any order, and a few around it; tensor cores cut where others round.
    if not error <= (left.shape[1] + 8) * 2 * _ROUNDING:
        raise CheckFailed(f"the product is off by {error:.1e} of sum|a||b|")
    return f"error {error:.1e}"
