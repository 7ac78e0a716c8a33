from dataclasses import replace

import pytest
import torch

from steelyard import reference
from steelyard.errors import ConstraintError
from steelyard.formats.schemes import Scheme
from steelyard.recipes import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)

CUSTOM = Scheme("f8E4M3FN", "1x128", "f32", custom="mine")
PLAIN_FP4 = {"weight_tiles": False, "rht": False, "stochastic_rounding": False}
RECIPES = {
    "delayed": DelayedScaling(),
    "current": Float8CurrentScaling(),
    "block": Float8BlockScaling(),
    "block-f32": Float8BlockScaling(power_of_two=False, weight_tiles=False),
    "mx": MXFP8BlockScaling(),
    "mx-tiles": MXFP8BlockScaling(fp8_format="HYBRID", weight_tiles=True),
    "nvfp4": NVFP4BlockScaling(rht=False),
    "nvfp4-rows": NVFP4BlockScaling(row_scaled=True, **PLAIN_FP4),
    "nvfp4-4over6": NVFP4BlockScaling(four_over_six="weights", rht=False),
}


def operands(recipe, M=37, K=150, N=45):
    generator = torch.Generator().manual_seed(0)
    shapes = {"input": (M, K), "weight": (N, K), "grad_output": (M, N)}
    made = {}
    for role, shape in shapes.items():
        x = torch.randn(shape, generator=generator)
        row, col = recipe.schemes(role)
        scale = torch.tensor(16.0) if row.source == "delayed" else None
        made[role] = (x, *reference.quantize(x, row, col, scale=scale, rng=(1, 2)))
    return made


def gemms(made):
    """fprop, dgrad, wgrad: copies, their float64 decodings with the reduction last, and the exact sources."""
    (x, x_row, x_col), (w, w_row, w_col), (dy, dy_row, dy_col) = made["input"], made["weight"], made["grad_output"]
    decode = reference.dequantize
    yield x_row, w_row, decode(x_row), decode(w_row), x @ w.T
    yield dy_row, w_col, decode(dy_row), decode(w_col).T, dy @ w
    yield dy_col, x_col, decode(dy_col).T, decode(x_col).T, dy.T @ x


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_three_gemms_equal_the_float64_product_of_the_decoded_operands(recipe):
    for a, b, a_decoded, b_decoded, source in gemms(operands(recipe)):
        found = reference.qgemm(a, b)
        exact = a_decoded.double() @ b_decoded.double().T
        bound = (a_decoded.shape[1] + 8) * 2.0**-24 * (a_decoded.double().abs() @ b_decoded.double().abs().T)
        assert found.dtype == torch.float32
        assert ((found.double() - exact).abs() <= bound).all()
        assert (found - source).norm() < 0.3 * source.norm()


@pytest.mark.parametrize("tokens", [64, 37])
def test_the_transform_cancels_in_the_weight_gradient(tokens):
    made = operands(NVFP4BlockScaling(), M=tokens)
    (x, _, x_col), (dy, _, dy_col) = made["input"], made["grad_output"]
    found = reference.qgemm(dy_col, x_col).double()
    decoded = reference.dequantize(dy_col).double().T @ reference.dequantize(x_col).double()
    # Decoding a ragged copy drops its padding, so equality needs whole groups.
    if tokens % 16 == 0:
        torch.testing.assert_close(found, decoded, rtol=0, atol=1e-5 * decoded.abs().max().item())
    assert (found - dy.double().T @ x.double()).norm() < 0.3 * (dy.T @ x).norm()


def test_bias_accumulate_and_output_dtype():
    x_row, w_row = (operands(MXFP8BlockScaling())[role][1] for role in ("input", "weight"))
    plain = reference.qgemm(x_row, w_row)
    bias, accumulate = torch.randn(45), torch.randn(37, 45)
    kept = accumulate.clone()
    found = reference.qgemm(x_row, w_row, bias=bias.bfloat16(), accumulate=accumulate)
    torch.testing.assert_close(found, plain + bias.bfloat16() + accumulate, rtol=1e-6, atol=1e-5)
    assert torch.equal(accumulate, kept)
    assert torch.equal(reference.qgemm(x_row, w_row, out_dtype=torch.bfloat16), plain.bfloat16())


def test_an_empty_reduction_is_zero():
    row = Float8CurrentScaling().schemes("input")[0]
    a, b = (reference.quantize(torch.zeros(size, 0), row, None)[0] for size in (3, 4))
    assert torch.equal(reference.qgemm(a, b), torch.zeros(3, 4))


def test_nan_blocks_reach_the_product():
    x = torch.ones(2, 64)
    x[1, 40] = torch.nan
    for recipe in (Float8CurrentScaling(), MXFP8BlockScaling(), NVFP4BlockScaling()):
        a, b = (reference.quantize(each, recipe.schemes("input")[0], None)[0] for each in (x, torch.ones(3, 64)))
        assert reference.qgemm(a, b)[1].isnan().all()


def copy_of(recipe, role, shape, columnwise=False):
    pair = recipe.schemes(role)
    return reference.quantize(torch.ones(shape), *pair, rng=(0, 0))[columnwise]


@pytest.mark.parametrize(
    ("a", "b", "constraint"),
    [
        (
            copy_of(Float8BlockScaling(), "weight", (2, 8)),
            copy_of(Float8BlockScaling(), "weight", (3, 8)),
            "gemm_tiles",
        ),
        (
            replace(copy_of(Float8BlockScaling(), "input", (2, 8)), scheme=CUSTOM),
            copy_of(MXFP8BlockScaling(), "weight", (3, 8)),
            "gemm_families",
        ),
        (
            copy_of(NVFP4BlockScaling(), "grad_output", (8, 2), True),
            copy_of(NVFP4BlockScaling(rht=False), "input", (8, 3), True),
            "gemm_rht",
        ),
        (
            copy_of(MXFP8BlockScaling(), "input", (2, 8)),
            copy_of(MXFP8BlockScaling(), "weight", (3, 9)),
            "gemm_reduction",
        ),
        (
            copy_of(MXFP8BlockScaling(), "input", (2, 8)),
            copy_of(MXFP8BlockScaling(), "weight", (3, 8), True),
            "gemm_reduction",
        ),
    ],
)
def test_refusals(a, b, constraint):
    with pytest.raises(ConstraintError) as error:
        reference.qgemm(a, b)
    assert error.value.constraint == constraint


def test_addends_of_a_wrong_shape_are_refused():
    a = copy_of(MXFP8BlockScaling(), "input", (2, 8))
    b = copy_of(MXFP8BlockScaling(), "weight", (3, 8))
    for wrong in ({"bias": torch.ones(2)}, {"accumulate": torch.ones(3, 2)}, {"accumulate": torch.ones(3)}):
        with pytest.raises(ConstraintError, match="must have shape"):
            reference.qgemm(a, b, **wrong)
