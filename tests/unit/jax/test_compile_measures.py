"""What `fast.measure` says, beside what the operands and products of each GEMM are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_cases import WIDTH, loss_of, mlp, mlp_parameters, normal, stack, stack_parameters

import steelyard.jax as sj
from steelyard.jax import ScalingMode

X = normal(0, 8, WIDTH)


def relative(found, wanted) -> float:
    found, wanted = (np.asarray(each, np.float64) for each in (found, wanted))
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def test_operands_and_products_of_a_forward():
    parameters = mlp_parameters()
    found = sj.compile(mlp, "mxfp8").measure([(parameters, X)])
    up, down = found.rows
    assert (up.layer, up.kind, up.calls, down.layer) == ("up", "fprop", 1, "down")
    kernel = parameters["up"]["kernel"]
    decoded = sj.quantize(X, ScalingMode.MXFP8_1D_SCALING).dequantize()
    weight = sj.quantize(kernel, ScalingMode.MXFP8_1D_SCALING, rowwise=False, colwise=True).dequantize()
    inputs, weights = up.operands
    assert (inputs.role, inputs.elements, inputs.amax) == ("input", X.size, float(jnp.max(jnp.abs(X))))
    assert inputs.relative_error == pytest.approx(relative(decoded, X), rel=1e-6)
    assert weights.relative_error == pytest.approx(relative(weight, kernel), rel=1e-6)
    assert sum(weights.code_histogram) == kernel.size
    product = np.asarray(decoded, np.float64) @ np.asarray(weight, np.float64)
    assert up.relative_error == pytest.approx(relative(product, np.float64(X) @ np.float64(kernel)), rel=1e-3)
    assert found.output.relative_error == pytest.approx(
        relative(sj.compile(mlp, "mxfp8")(parameters, X), mlp(parameters, X))
    )


@pytest.mark.parametrize("recipe", ["fp8-delayed", "nvfp4"])
def test_gradients_are_measured_with_a_loss(recipe):
    fast, parameters = sj.compile(mlp, recipe), mlp_parameters()
    state = fast.init_state(parameters, X)
    found = fast.measure([(parameters, X)] * 2, loss=lambda y, _: jnp.mean(y**2), state=state)
    assert sorted((row.layer, row.kind) for row in found.rows) == sorted(
        (layer, kind) for layer in ("up", "down") for kind in ("fprop", "dgrad", "wgrad")
    )
    assert all(row.calls == 2 and len(row.operands) == 2 for row in found.rows)
    exact = jax.grad(loss_of(mlp))(parameters, X)["down"]["kernel"]
    wgrad = next(row for row in found.rows if (row.layer, row.kind) == ("down", "wgrad"))
    assert wgrad.gradient.cosine > 0.95
    assert wgrad.gradient.norm == pytest.approx(2**0.5 * float(jnp.linalg.norm(exact)), rel=0.1)
    assert found.output.loss_high_precision == pytest.approx(float(loss_of(mlp)(parameters, X)))


def test_each_trip_of_a_loop_counts():
    parameters = stack_parameters()
    found = sj.compile(stack, "mxfp8").measure([(parameters, X)], loss=lambda y, _: jnp.mean(y**2))
    assert [(row.layer, row.kind, row.calls) for row in found.rows] == [
        ("layers", "fprop", 3),
        ("layers", "wgrad", 3),
        ("layers", "dgrad", 3),
    ]
    weights = next(each for each in found.rows[0].operands if each.role == "weight")
    assert weights.elements == parameters["layers"]["kernel"].size


def test_halves_are_measured_in_float32():
    def half(parameters, x):
        return (x.astype(jnp.bfloat16) @ parameters["layer"]["kernel"].astype(jnp.bfloat16)).astype(jnp.float32)

    (row,) = sj.compile(half, "mxfp8").measure([({"layer": {"kernel": normal(1, WIDTH, WIDTH)}}, X)]).rows
    assert 0.01 < row.relative_error < 0.05


def test_nothing_else_measures():
    fast, parameters = sj.compile(mlp, "mxfp8"), mlp_parameters()
    fast.measure([(parameters, X)])
    fast(parameters, X)
    assert "measure" not in fast.ir("partitioned")
