"""What calls of a compiled function share, and what makes them differ."""

import jax
import jax.numpy as jnp
import pytest
from compiled_cases import WIDTH, difference, loss_of, mlp, mlp_parameters, normal

import steelyard.jax as sj
from steelyard.errors import SteelyardWarning

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
