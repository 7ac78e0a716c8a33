"""What calls of a compiled function share, and what makes them differ."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_cases import WIDTH, difference, loss_of, mlp, mlp_parameters, normal

import steelyard.jax as sj
from steelyard.errors import RecipeError, SteelyardError, SteelyardWarning, UnsupportedModelError
from steelyard.recipes import DelayedScaling

X = normal(0, 4, WIDTH)


def test_programs_are_for_the_settings_of_jax_that_they_are_traced_with():
    def fn(parameters, x):
        return x @ parameters["up"]["kernel"] + jnp.linspace(0, 1, 96)

    fast = sj.compile(fn, "mxfp8")
    assert fast(mlp_parameters(), X).dtype == jnp.float32
    with jax.enable_x64(True), pytest.warns(SteelyardWarning, match="operands of f64"):
        assert fast(mlp_parameters(), X).dtype == fn(mlp_parameters(), X).dtype == jnp.float64
    assert fast(mlp_parameters(), X).dtype == jnp.float32
    assert len(fast.explain().rows) == 2


def test_what_measures_another_function_is_no_reason_to_trace_again():
    fast, other = sj.compile(mlp, "mxfp8"), sj.compile(mlp, "mxfp8")
    fast(mlp_parameters(), X)
    with other.measure():
        fast(mlp_parameters(), X)
    assert len(fast.explain().rows) == 2


def scaled(factor):
    """A function that closes over what another trace may have made."""
    return sj.compile(lambda parameters, x: mlp(parameters, x) * factor, "mxfp8")


def test_values_of_an_outer_trace_have_gradients():
    def loss(factor, parameters):
        return loss_of(scaled(factor))(parameters, X)

    plain = loss_of(sj.compile(mlp, "mxfp8"))
    value, gradients = jax.value_and_grad(plain)(mlp_parameters(), X)
    step = jax.value_and_grad(loss, argnums=(0, 1))
    for each in (step, jax.jit(step)):
        found, (of_factor, of_parameters) = each(4.0, mlp_parameters())
        assert difference(found, 16 * value) < 1e-6
        assert difference(of_factor, 8 * value) < 1e-6
        assert difference(of_parameters, jax.tree.map(lambda each: 16 * each, gradients)) < 1e-6


def test_values_of_an_outer_trace_are_those_of_each_call():
    held = {}
    fast = sj.compile(lambda parameters, x: mlp(parameters, x) * held["factor"], "mxfp8")

    def call(factor):
        held["factor"] = factor
        return fast(mlp_parameters(), X)

    once = jax.jit(call)(1.0)
    assert difference(jax.jit(lambda factor: call(factor))(3.0), 3 * once) < 1e-6
    assert difference(jax.vmap(call)(jnp.arange(1.0, 3.0)), jnp.stack([once, 2 * once])) < 1e-6


def test_arguments_with_equal_names_have_names_of_their_own():
    def fn(first, x, second):
        return jnp.tanh(x @ first["layer"]["kernel"]) @ second["layer"]["kernel"]

    fast = sj.compile(fn, DelayedScaling(amax_history_len=2), parameters=(0, 2))
    first, second = ({"layer": {"kernel": size * normal(size, WIDTH, WIDTH)}} for size in (1, 100))
    state = fast.init_state(first, X, second)
    moved = jax.grad(lambda state: loss_of(fast)(first, X, second, state=state))(state)
    for name, parameters in (("first", first), ("second", second)):
        amax = float(jnp.max(jnp.abs(parameters["layer"]["kernel"])))
        assert float(moved[f"{name}.layer.weight.amax_history"][-1]) == amax
    assert {row.layer for row in fast.explain().rows} == {"first.layer", "second.layer"}
    with pytest.raises(UnsupportedModelError, match=r"got two of the name 'p\.a\.b'"):
        sj.compile(lambda p, x: x @ p["a"]["b"] @ p["a.b"], "mxfp8")({"a": {"b": X.T}, "a.b": X}, X)


def test_parameters_are_found_by_the_name_of_their_argument():
    fast = sj.compile(lambda params, x: x @ params["layer"], "mxfp8")
    fast(params={"layer": normal(1, WIDTH, WIDTH)}, x=X)
    assert [row.layer for row in fast.explain().rows] == ["layer"]
    with pytest.raises(RecipeError, match="numbers of arguments that hold arrays, got 5, for which this call has none"):
        sj.compile(mlp, "mxfp8", parameters=5)(mlp_parameters(), X)
    weights = fast.quantize({"layer": normal(1, WIDTH, WIDTH)}, X)
    with pytest.raises(SteelyardError, match="quantized weights must be a positional argument"):
        fast(params=weights, x=X)


def test_leaves_that_are_no_arrays_go_through_quantize():
    fast = sj.compile(lambda p, x: mlp(p["model"], x) * (2 if p["doubles"] else 1), "mxfp8")
    parameters = [{"model": mlp_parameters(), "doubles": doubles, "name": "tanh"} for doubles in (False, True)]
    weights = [fast.quantize(each, X) for each in parameters]
    once, twice = (fast(each, X) for each in weights)
    np.testing.assert_array_equal(twice, 2 * once)
    np.testing.assert_array_equal(twice, fast(parameters[1], X))
    assert jax.tree.structure(fast.quantize(parameters[1])) == jax.tree.structure(weights[1])


def test_static_arguments_must_be_hashable():
    fast = sj.compile(lambda p, x, rows: mlp(p, x[rows]), "mxfp8")
    with pytest.raises(UnsupportedModelError, match=r"must be hashable, got .* of type bytearray"):
        fast(mlp_parameters(), X, bytearray(2))


def test_gradients_of_quantized_weights_and_second_ones_are_refused():
    fast, wanted = sj.compile(mlp, "mxfp8"), r"got one of quantize itself; .* not with quantized weights, and no second"
    weights = fast.quantize(mlp_parameters(), X)
    with pytest.raises(UnsupportedModelError, match=wanted):
        jax.grad(lambda x: loss_of(fast)(weights, x))(X)
    with pytest.raises(UnsupportedModelError, match=wanted):
        jax.grad(lambda x: jnp.sum(jax.grad(lambda x: loss_of(fast)(mlp_parameters(), x))(x)))(X)


def test_an_override_may_match_in_some_calls_only():
    def fn(p, x, *, deep=True):
        hidden = x @ p["up"]["kernel"]
        return hidden @ p["down"]["kernel"] if deep else hidden

    fast = sj.compile(fn, "mxfp8", overrides={"down": None})
    fast(mlp_parameters(), X)
    assert fast(mlp_parameters(), X, deep=False).shape == (4, 96)


def test_weights_alone_are_quantized_once():
    fast = sj.compile(mlp, "nvfp4/none")
    weights = fast.quantize(mlp_parameters(), X)
    assert repr(weights).startswith("QuantizedWeights(2 quantized, 2 kept")
    # XLA multiplies in another order where weights lie otherwise.
    assert difference(fast(weights, X), fast(mlp_parameters(), X)) < 1e-6


def test_operands_of_two_dtypes_are_promoted_and_quantized():
    half, parameters = X.astype(jnp.bfloat16), mlp_parameters()
    fast = sj.compile(mlp, "mxfp8")
    found, expected = fast(parameters, half), fast(parameters, half.astype(jnp.float32))
    assert found.dtype == mlp(parameters, half).dtype == jnp.float32
    np.testing.assert_array_equal(found, expected)
    gradients = jax.grad(loss_of(fast), argnums=(0, 1))(parameters, half)
    wanted = jax.grad(loss_of(fast), argnums=(0, 1))(parameters, half.astype(jnp.float32))
    assert gradients[1].dtype == jnp.bfloat16
    np.testing.assert_array_equal(gradients[1], wanted[1].astype(jnp.bfloat16))
    assert difference(gradients[0], wanted[0]) < 1e-6
    assert all(row.is_quantized for row in fast.explain().rows)
