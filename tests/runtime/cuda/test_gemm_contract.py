"""The calls of `scaled_mm` on the meta device: it checks shapes, strides, dtypes and sizes of scales as a GPU does."""

import pytest
import torch
from simulation import simulated

from steelyard import recipes, reference
from steelyard.formats.gemms import KINDS
from steelyard.formats.parts import round_up
from steelyard.formats.schemes import Scheme
from steelyard.reference.gemm import operand
from steelyard.runtime.cuda import gemm
from steelyard.targets.architectures import TARGETS
from steelyard.targets.gemm_paths import EMULATED, HIGH_PRECISION, NATIVE, gemm_path, schemes_of

RECIPES = ("fp8-delayed", "fp8-current", "fp8-block", "mxfp8", "nvfp4")
COLUMNWISE = {"fprop": (False, False), "dgrad": (False, True), "wgrad": (True, True)}
TOKENS, INPUTS, OUTPUTS = 100, 200, 300  # not multiples of any block: padding is part of the contract


def paths():
    for recipe in RECIPES:
        for kind in KINDS:
            for target in TARGETS:
                schemes = schemes_of(recipes.get(recipe), kind)
                yield recipe, kind, target, schemes, gemm_path(kind, *schemes, TARGETS[target])


NATIVE_CALLS = {
    (recipe, kind): (kind, schemes, path) for recipe, kind, _, schemes, path in paths() if path.path == NATIVE
}


def sizes(kind):
    """Rows of A, rows of B, and the reduction."""
    return {
        "fprop": (TOKENS, OUTPUTS, INPUTS),
        "dgrad": (TOKENS, INPUTS, OUTPUTS),
        "wgrad": (OUTPUTS, INPUTS, TOKENS),
    }[kind]


def copy_of(scheme: Scheme, columnwise: bool, rows: int, reduction: int):
    """The copy whose rows run along the reduction when a GEMM reads it."""
    shape = (reduction, rows) if columnwise else (rows, reduction)
    schemes = (None, scheme) if columnwise else (scheme, None)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    scale = torch.tensor(2.0) if scheme.source == "delayed" else None
    return reference.quantize(x, *schemes, scale=scale, rng=(1, 2))[columnwise]


def on_meta(operand: gemm.GemmOperand) -> gemm.GemmOperand:
    parts = (None if part is None else part.to("meta") for part in (operand.codes, operand.scales, operand.amax))
    return gemm.GemmOperand(*parts, operand.scheme)


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize(
    ("kind", "schemes", "path"),
    NATIVE_CALLS.values(),
    ids=str,
)
def test_native_calls_are_accepted(kind, schemes, path, out_dtype):
    rows_a, rows_b, reduction = sizes(kind)
    padded = [round_up(size, by) for size, by in zip((rows_a, rows_b, reduction), path.multiples, strict=True)]
    operands = []
    for scheme, columnwise, rows in zip(schemes, COLUMNWISE[kind], padded[:2], strict=True):
        copy = copy_of(scheme, columnwise, rows, padded[2])
        operands.append(on_meta(gemm.gemm_operand(simulated("sm_100a"), copy)))
    result = gemm.multiply(*operands, out_dtype=out_dtype)
    assert tuple(result.shape) == tuple(padded[:2])
    assert result.dtype == out_dtype


def test_the_contract_refuses_what_is_not_padded():
    scheme = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU")
    a, b = (copy_of(scheme, False, rows, 40) for rows in (16, 16))
    operands = [on_meta(gemm.gemm_operand(simulated("sm_100a"), copy)) for copy in (a, b)]
    with pytest.raises(RuntimeError, match="divisible by 16"):
        gemm.multiply(*operands)


def test_turned_operands_hold_the_same_values():
    """MX columns become rows along the reduction; their scales follow."""
    copy = copy_of(Scheme("f8E4M3FN", "32x1", "f8E8M0FNU"), True, 48, 64)
    operand = gemm.gemm_operand(simulated("sm_100a"), copy)
    assert torch.equal(operand.codes, copy.codes.t())
    assert torch.equal(operand.scales, reference.swizzle(copy))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("kind", KINDS)
def test_emulated_products_are_within_the_bound(recipe, kind):
    schemes = schemes_of(recipes.get(recipe), kind)
    rows_a, rows_b, reduction = (size // 5 for size in sizes(kind))
    pairs = zip(schemes, COLUMNWISE[kind], (rows_a, rows_b), strict=True)
    a, b = (copy_of(scheme, columnwise, rows, reduction) for scheme, columnwise, rows in pairs)
    left, right = (torch.from_numpy(operand(copy)) for copy in (a, b))
    decoded = [gemm.decode(simulated("sm_90a"), copy) for copy in (a, b)]
    found = gemm.multiply_decoded(decoded[0], decoded[1].t(), torch.empty(rows_a, rows_b))
    bound = (reduction + 8) * 2.0**-24 * (left.abs() @ right.abs().t())
    assert bool(((found.double() - left @ right.t()).abs() <= bound).all())


def test_table():
    """The facts that the table states."""
    found = {(recipe, kind, target): path.path for recipe, kind, target, _, path in paths()}
    for kind in KINDS:
        for target in TARGETS:
            blackwell = target in ("sm_100a", "sm_120a")
            assert found["fp8-current", kind, target] == NATIVE
            assert found["mxfp8", kind, target] == (NATIVE if blackwell else EMULATED)
            assert found["nvfp4", kind, target] == (NATIVE if blackwell else EMULATED)
            assert found["fp8-block", kind, target] == (NATIVE if target == "sm_90a" else EMULATED)


@pytest.mark.parametrize(
    ("lhs", "rhs", "path"),
    [
        (Scheme("f8E5M2", "tensor", "f32"), Scheme("f8E5M2", "tensor", "f32"), EMULATED),
        (Scheme("f8E4M3FN", "128x128", "f32"), Scheme("f8E4M3FN", "128x128", "f32"), EMULATED),
        (Scheme("f8E4M3FN", "tensor", "f32"), Scheme("f8E4M3FN", "1x128", "f32"), EMULATED),
        (Scheme("f8E4M3FN", "tensor", "f32"), None, HIGH_PRECISION),
        (Scheme("i8", "tensor", "f32", custom="mine"), Scheme("f8E4M3FN", "tensor", "f32"), HIGH_PRECISION),
    ],
)
def test_what_no_target_multiplies(lhs, rhs, path):
    for target in TARGETS.values():
        assert gemm_path("fprop", lhs, rhs, target).path == path
