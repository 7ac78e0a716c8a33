"""What calls of a compiled function share, and what makes them differ."""

import jax
import jax.numpy as jnp
import pytest
from compiled_cases import WIDTH, mlp, mlp_parameters, normal

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
