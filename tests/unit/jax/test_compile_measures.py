"""What `fast.measure` says, beside what the operands and products of each GEMM are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_cases import WIDTH, assert_same, loss_of, mlp, mlp_parameters, normal, stack, stack_parameters

import steelyard.jax as sj
from steelyard.errors import RecipeError, SteelyardError
from steelyard.jax import ScalingMode
from steelyard.recipes import NVFP4BlockScaling

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


@pytest.mark.every(2)
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


SIZES = [20, 0, 17, 5]


def experts(parameters, x):
    return jax.lax.ragged_dot(x, parameters["experts"]["kernel"], jnp.array(SIZES, jnp.int32))


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("recipe", "mode"),
    [
        ("mxfp8", ScalingMode.MXFP8_1D_SCALING),
        pytest.param("fp8-current", ScalingMode.CURRENT_TENSOR_SCALING, marks=pytest.mark.slow),
        (NVFP4BlockScaling(rht=False, stochastic_rounding=False), None),
    ],
    ids=["mxfp8", "fp8-current", "nvfp4"],
)
def test_operands_of_experts_are_those_of_each_group(recipe, mode):
    """Rows behind the last group belong to no expert, and count for nothing."""
    parameters, x = {"experts": {"kernel": normal(1, 4, WIDTH, 32) / 8}}, normal(2, 48, WIDTH)
    found = sj.compile(experts, recipe).measure([(parameters, x)], loss=lambda y, _: jnp.mean(y**2))
    assert [(row.kind, [each.role for each in row.operands]) for row in found.rows] == [
        ("fprop", ["input", "weight"]),
        ("wgrad", ["grad_output", "input"]),
        ("dgrad", ["grad_output", "weight"]),
    ]
    inputs, weights = found.rows[0].operands
    groups = [each for each in np.split(np.asarray(x), np.cumsum(SIZES))[:4] if each.size]
    assert (inputs.elements, inputs.amax) == (42 * WIDTH, float(max(np.abs(each).max() for each in groups)))
    assert weights.elements == sum(weights.code_histogram) == parameters["experts"]["kernel"].size
    assert found.rows[1].operands[1].elements == 42 * WIDTH
    assert {each.parameter: each.cosine > 0.9 for each in found.gradients} == {"experts.kernel": True}
    if mode is not None:
        decoded = [sj.quantize(each, mode).dequantize() for each in groups]
        columns = [sj.quantize(each, mode, rowwise=False, colwise=True).dequantize() for each in groups]
        whole = np.concatenate(groups)
        assert inputs.relative_error == pytest.approx(relative(np.concatenate(decoded), whole), rel=1e-6)
        again = found.rows[1].operands[1].relative_error
        assert again == pytest.approx(relative(np.concatenate(columns), whole), rel=1e-6)
        kernels = [sj.quantize(each.T, mode).dequantize().T for each in parameters["experts"]["kernel"]]
        expected = relative(np.stack(kernels), parameters["experts"]["kernel"])
        assert weights.relative_error == pytest.approx(expected, rel=1e-6)


def test_steps_in_the_context_are_measured_under_jit():
    fast, parameters = sj.compile(mlp, "mxfp8"), mlp_parameters()
    step = jax.jit(lambda p, x: jax.tree.map(lambda p, g: p - g, p, jax.grad(loss_of(fast))(p, x)))
    plain = step(parameters, X)
    measuring = fast.measure(output=True)
    with pytest.raises(SteelyardError, match=r"nothing is measured yet: call the function in the context"):
        _ = measuring.result
    with measuring:
        assert_same(step(parameters, X), plain)
    step(parameters, X)
    with measuring:
        step(parameters, 2 * X)
    result = measuring.result
    assert result.steps == 2
    assert sorted({row.kind for row in result.rows}) == ["dgrad", "fprop", "wgrad"]
    assert all(row.calls == 2 and len(row.operands) == 2 for row in result.rows)
    assert result.rows[0].operands[0].amax_history == [float(jnp.max(jnp.abs(each))) for each in (X, 2 * X)]
    pairs = [(fast(parameters, each), mlp(parameters, each)) for each in (X, 2 * X)]
    assert result.output.relative_error == pytest.approx(relative(*map(np.stack, zip(*pairs, strict=True))), rel=1e-3)


def test_only_the_function_of_a_context_is_measured():
    parameters = mlp_parameters()
    fast, other = sj.compile(mlp, "mxfp8"), sj.compile(mlp, "mxfp8")
    with fast.measure() as outer, other.measure() as inner:
        fast(parameters, X)
        weights = other.quantize(parameters, X)
        with pytest.raises(SteelyardError, match="must be given parameters, got weights that are quantized"):
            other(weights, X)
    assert outer.result.steps == 1
    with pytest.raises(SteelyardError, match="nothing is measured yet"):
        _ = inner.result
    with pytest.raises(RecipeError, match="loss and state are for batches"):
        fast.measure(loss=lambda y, _: jnp.mean(y))


def test_nothing_else_measures():
    fast, parameters = sj.compile(mlp, "mxfp8"), mlp_parameters()
    fast.measure([(parameters, X)])
    fast(parameters, X)
    assert "measure" not in fast.ir("partitioned")
