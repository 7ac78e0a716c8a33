"""Products of experts (`jax.lax.ragged_dot`) are those of `grouped_dense` by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_cases import assert_same, difference, loss_of, normal

import steelyard.jax as sj
from steelyard.recipes import DelayedScaling, NVFP4BlockScaling

X, SIZES = normal(0, 48, 64), jnp.array([20, 0, 17, 5], jnp.int32)


def parameters():
    return {
        "experts": {"gate": normal(1, 4, 64, 32) / 8, "up": normal(2, 4, 64, 32) / 8, "down": normal(3, 4, 32, 64) / 8}
    }


def experts(parameters, x, sizes):
    own = parameters["experts"]
    gate, up = (jax.lax.ragged_dot(x, own[name], sizes) for name in ("gate", "up"))
    return jax.lax.ragged_dot(jax.nn.silu(gate) * up, own["down"], sizes)


def by_hand(recipe):
    def fn(parameters, x, sizes):
        own, quantizers = parameters["experts"], sj.QuantizerSet.from_recipe(recipe)
        gate, up = (sj.grouped_dense(x, own[name], sizes, None, quantizers) for name in ("gate", "up"))
        return sj.grouped_dense(jax.nn.silu(gate) * up, own["down"], sizes, None, quantizers)

    return fn


@pytest.mark.parametrize(
    "recipe",
    [
        "mxfp8",
        pytest.param("fp8-current", marks=pytest.mark.slow),
        pytest.param(NVFP4BlockScaling(stochastic_rounding=False), marks=pytest.mark.slow),
    ],
    ids=["mxfp8", "fp8-current", "nvfp4"],
)
def test_values_and_gradients_are_those_of_grouped_dense(recipe):
    fast = sj.compile(experts, recipe)
    found, expected = (
        jax.jit(jax.value_and_grad(loss_of(fn), argnums=(0, 1)))(parameters(), X, SIZES)
        for fn in (fast, by_hand(recipe))
    )
    assert_same(found, expected)
    rows = fast.explain().rows
    names = [f"experts.{name}" for name in ("gate", "up", "down")]
    assert sorted((row.layer, row.kind) for row in rows) == sorted(
        (name, kind) for name in names for kind in ("fprop", "dgrad", "wgrad")
    )
    assert all(row.is_quantized for row in rows)
    assert {row.kernel for row in rows} == {rows[0].kernel}
    assert rows[0].kernel.endswith("gemm of 4 experts")
    # x once for gate and up, what down reads, three weights, and three gradients.
    assert fast.ir("quantized").count("scaled.quantize") == 8


def test_each_expert_has_a_delayed_scale():
    fast = sj.compile(experts, DelayedScaling(amax_history_len=2))
    state = fast.init_state(parameters(), X, SIZES)
    moved = jax.grad(lambda s: loss_of(fast)(parameters(), X, SIZES, state=s))(state)
    rows = np.split(np.abs(np.asarray(X)), np.cumsum(SIZES))[:4]
    amaxes = [float(each.max()) if each.size else 0.0 for each in rows]
    np.testing.assert_array_equal(moved["experts.up.input.amax_history"][-1], amaxes)


def test_an_override_of_their_module_leaves_experts_in_high_precision():
    fast = sj.compile(experts, "mxfp8", overrides={"experts": None})
    gradients = jax.grad(loss_of(fast))(parameters(), X, SIZES)
    assert difference(gradients, jax.grad(loss_of(experts))(parameters(), X, SIZES)) < 1e-6
    assert {(row.kernel, row.reason) for row in fast.explain().rows} == {
        ("xla", "override 'experts' asks for high precision")
    }


def looped(parameters, x, sizes):
    """Layers of experts in a loop, as in MaxText."""
    return jax.lax.scan(lambda x, own: (x + experts(own, x, sizes), None), x, parameters)[0]


@pytest.mark.every(3)
@pytest.mark.parametrize(("recipe", "trips"), [("mxfp8", 0), ("nvfp4", 0), ("mxfp8", 2)])
def test_quantized_weights_of_experts(recipe, trips):
    own = jax.tree.map(lambda each: jnp.stack([each * (i + 1) for i in range(trips)]) if trips else each, parameters())
    fast = sj.compile(looped if trips else experts, recipe)
    weights = fast.quantize(own, X, SIZES)
    assert not weights.kept
    assert difference(fast(weights, X, SIZES), fast(own, X, SIZES)) < 1e-6
