"""Compiled functions under JAX's transformations, and functions that use them."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_cases import WIDTH, assert_same, difference, loss_of, mlp, mlp_parameters, normal, stack, stack_parameters
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import steelyard.jax as sj
from steelyard.errors import RecipeError
from steelyard.recipes import DelayedScaling

X = normal(0, 4, 32, WIDTH)


@pytest.fixture(scope="module")
def expected():
    """The value and gradients of the compiled network, under jit alone."""
    return jax.jit(jax.value_and_grad(loss_of(sj.compile(mlp, "mxfp8"))))(mlp_parameters(), X)


def test_gradients_inside_are_those_outside(expected):
    inside = sj.compile(jax.value_and_grad(loss_of(mlp)), "mxfp8")
    assert_same(jax.jit(inside)(mlp_parameters(), X), expected)
    kinds = [(row.layer, row.kind) for row in inside.explain().rows]
    assert kinds == [("up", "fprop"), ("down", "fprop"), ("down", "wgrad"), ("down", "dgrad"), ("up", "wgrad")]


def test_gradients_inside_are_refused_for_recipes_with_state():
    inside = sj.compile(jax.grad(loss_of(mlp)), "nvfp4")
    with pytest.raises(
        RecipeError, match="recipe nvfp4 has state, which a function that takes gradients itself does not"
    ):
        inside(mlp_parameters(), X)


def test_gradients_of_loops_inside_are_those_outside():
    inside, outside = sj.compile(jax.value_and_grad(loss_of(stack)), "mxfp8"), sj.compile(stack, "mxfp8")
    parameters = stack_parameters()
    found = jax.jit(inside)(parameters, X)
    assert_same(found, jax.jit(jax.value_and_grad(loss_of(outside)))(parameters, X))
    assert all(row.is_quantized for row in inside.explain().rows)


def test_vmap_is_the_batch(expected):
    fast = sj.compile(mlp, "mxfp8")
    assert_same(jax.jit(jax.vmap(fast, (None, 0)))(mlp_parameters(), X), jax.jit(fast)(mlp_parameters(), X))
    gradients = jax.jit(jax.vmap(jax.grad(loss_of(fast)), (None, 0)))(mlp_parameters(), X)
    assert difference(jax.tree.map(lambda each: each.mean(0), gradients), expected[1]) < 1e-6


def test_checkpoints_change_nothing(expected):
    outside = jax.checkpoint(sj.compile(mlp, "mxfp8"))
    inside = sj.compile(jax.checkpoint(mlp), "mxfp8")
    for fast in (outside, inside):
        assert_same(jax.jit(jax.value_and_grad(loss_of(fast)))(mlp_parameters(), X), expected)


def quantized_in(fast, *arguments) -> int:
    """How many quantizations a step runs; it has no loops."""
    program = jax.jit(jax.grad(loss_of(fast))).lower(*arguments).compile().as_text()
    return program.count('custom_call_target="steelyard_quantize"')


@pytest.mark.every(2)
@pytest.mark.parametrize("recipe", ["mxfp8", pytest.param(DelayedScaling(amax_history_len=2), id="delayed")])
def test_checkpoints_quantize_no_tensor_twice(recipe):
    plain, inside = sj.compile(mlp, recipe), sj.compile(jax.checkpoint(mlp), recipe)
    state = plain.init_state(mlp_parameters(), X)
    with_state = [partial(fast, state=state) for fast in (plain, inside)]
    # Two inputs, two weights and two gradients; what the region computes again is quantized again.
    assert [quantized_in(fast, mlp_parameters(), X) for fast in with_state] == [6, 7]
    steps = [
        jax.jit(jax.grad(lambda p, s, fast=fast: loss_of(fast)(p, X, state=s), (0, 1))) for fast in (plain, inside)
    ]
    assert_same(*(step(mlp_parameters(), state) for step in steps))


@pytest.mark.parametrize("recipe", ["mxfp8", pytest.param("nvfp4", marks=pytest.mark.slow)])
def test_checkpoints_in_loops_keep_their_inputs_quantized(recipe):
    def checkpointed(parameters, x):
        layer = jax.checkpoint(lambda x, kernel: (jnp.tanh(x @ kernel), None), prevent_cse=False)
        return lax.scan(layer, x, parameters["layers"]["kernel"])[0]

    plain, fast, parameters = sj.compile(stack, recipe), sj.compile(checkpointed, recipe), stack_parameters()
    state = plain.init_state(parameters, X)
    steps = [jax.grad(lambda p, s, fast=fast: loss_of(fast)(p, X, state=s), (0, 1)) for fast in (plain, fast)]
    assert_same(*(jax.jit(step)(parameters, state) for step in steps))
    _, pullback = jax.vjp(lambda p: fast(p, X, state=state), parameters)
    kept = [leaf for leaf in jax.tree.leaves(pullback) if getattr(leaf, "dtype", None) == jnp.float32]
    # The weights alone are kept in float32, and the last result for the loss.
    assert {leaf.size for leaf in kept if leaf.size >= X.size} == {parameters["layers"]["kernel"].size}


def quantized_kinds(fast) -> list[str]:
    """The kinds of a function's products, all of which are quantized."""
    assert all(row.is_quantized for row in fast.explain().rows)
    return sorted(row.kind for row in fast.explain().rows)


@pytest.mark.every(2)
@pytest.mark.parametrize("recipe", ["mxfp8", DelayedScaling(amax_history_len=2)], ids=lambda each: str(each)[:7])
def test_branches_are_quantized_and_record_what_ran(recipe):
    def branched(parameters, x):
        kernel = parameters["layer"]["kernel"]
        return lax.cond(jnp.sum(x) > 0, lambda x: x @ kernel, lambda x: 2 * x, x)

    fast, parameters = sj.compile(branched, recipe), {"layer": {"kernel": normal(1, WIDTH, WIDTH) / 8}}
    state = fast.init_state(parameters, X)
    step = jax.jit(jax.grad(lambda p, s, x: loss_of(fast)(p, x, state=s), argnums=(0, 1)))
    x = jnp.abs(X)
    plain = jax.grad(loss_of(branched))(parameters, x)
    gradients, moved = step(parameters, state, x)
    assert difference(gradients, plain) < 0.1
    assert quantized_kinds(fast) == ["dgrad", "fprop", "wgrad"]
    if state:
        assert float(moved["layer.input.amax_history"][-1]) == float(jnp.max(x))
        _, unmoved = step(parameters, state, -x)
        assert_same(unmoved, state)


def test_loops_without_gradients_are_quantized():
    def loop(parameters, x):
        body = lambda carry: (carry[0] + 1, jnp.tanh(carry[1] @ parameters["layer"]["kernel"]))  # noqa: E731
        return lax.while_loop(lambda carry: carry[0] < 3, body, (0, x))[1]

    parameters = {"layer": {"kernel": normal(1, WIDTH, WIDTH) / 8}}
    found = sj.compile(loop, "mxfp8")(parameters, X)
    expected = X
    for _ in range(3):
        expected = jnp.tanh(
            sj.dense(expected, parameters["layer"]["kernel"], None, sj.QuantizerSet.from_recipe("mxfp8"))
        )
    assert difference(found, expected) < 1e-6


def test_bf16_casts_are_seen_through():
    def half(parameters, x):
        small = jax.tree.map(lambda each: each.astype(jnp.bfloat16), parameters)
        return stack(small, x.astype(jnp.bfloat16)).astype(jnp.float32)

    fast = sj.compile(half, "mxfp8")
    fast.lower(stack_parameters(), X)
    assert [(row.kind, row.is_quantized) for row in fast.explain().rows] == [
        ("fprop", True),
        ("wgrad", True),
        ("dgrad", True),
    ]


def test_numbers_that_a_call_is_given_are_cast_in_it():
    add = jax.jit(lambda x, number: x + lax.convert_element_type(number, x.dtype))

    def half(kernel, x):
        return add(x.astype(jnp.bfloat16) @ kernel.astype(jnp.bfloat16), 2.0)

    found, kernel = sj.compile(half, "mxfp8"), normal(1, WIDTH, WIDTH) / 8
    plain = sj.compile(lambda kernel, x: x.astype(jnp.bfloat16) @ kernel.astype(jnp.bfloat16), "mxfp8")
    assert_same(found(kernel, X), plain(kernel, X) + jnp.bfloat16(2))


def mesh_of(count):
    assert jax.device_count() == 4, "these tests need four host devices; run them in a process of their own"
    return jax.make_mesh((count,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:count])


SHARDED = ["mxfp8", "nvfp4", "fp8-block", DelayedScaling(amax_history_len=2)]


@pytest.mark.every(5)
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("recipe", SHARDED, ids=lambda each: str(each)[:9])
def test_a_sharded_batch_gives_the_gradients_of_the_whole(recipe, count):
    # Each device has whole blocks of 128 rows.
    fast, parameters, whole = sj.compile(mlp, recipe), mlp_parameters(), normal(0, 4, 128, WIDTH)
    state = fast.init_state(parameters, whole)
    step = jax.jit(jax.value_and_grad(lambda p, s, x: loss_of(fast)(p, x, state=s), argnums=(0, 1)))
    x = jax.device_put(whole, NamedSharding(mesh_of(count), P("data")))
    assert difference(step(parameters, state, x), step(parameters, state, whole)) < 1e-6
    assert "all-gather" not in step.lower(parameters, state, x).compile().as_text()


@pytest.mark.parametrize("spec", [P("data", None), P(None, "data")], ids=["rows", "columns"])
@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_sharded_weights_give_the_gradients_of_whole_ones(count, spec, expected):
    step = jax.jit(jax.value_and_grad(loss_of(sj.compile(mlp, "mxfp8"))))
    sharding = NamedSharding(mesh_of(count), spec)
    parameters = jax.tree.map(lambda each: jax.device_put(each, sharding) if each.ndim > 1 else each, mlp_parameters())
    assert difference(step(parameters, X), expected) < 1e-6


def gathered(function, *arguments) -> list[str]:
    """The results of all-gathers in what XLA runs, such as `f32[4,128]`."""
    return re.findall(r"= (\w+\[[\d,]*\])\S* all-gather\(", jax.jit(function).lower(*arguments).compile().as_text())


def wide_parameters(up: P, down: P):
    """Kernels that are split between blocks, over four devices."""
    place = lambda seed, shape, spec: jax.device_put(normal(seed, *shape) / 8, NamedSharding(mesh_of(4), spec))  # noqa: E731
    return {
        "up": {"kernel": place(1, (128, 256), up), "bias": jnp.zeros(256)},
        "down": {"kernel": place(3, (256, 128), down), "bias": jnp.zeros(128)},
    }


@pytest.mark.parametrize("recipe", ["mxfp8", pytest.param("fp8-current", marks=pytest.mark.slow)])
def test_only_codes_and_scales_that_products_lack_are_gathered(recipe):
    fast, x = sj.compile(mlp, recipe), normal(0, 4, 32, 128)
    # Columns, then rows: each device has what it multiplies, forward and backward.
    assert not gathered(jax.grad(loss_of(fast)), wide_parameters(P(None, "data"), P("data", None)), x)
    # Rows, then rows: sums are reduced.
    assert not gathered(fast, wide_parameters(P("data", None), P("data", None)), x)
    # Columns, then columns: the second product reads all of a row. XLA moves codes as f16, and scales as f32.
    scales = {"mxfp8": ["f32[128,8]"]}.get(recipe, [])
    found = gathered(fast, wide_parameters(P(None, "data"), P(None, "data")), x)
    assert sorted(found) == ["f16[128,256]", *scales]


@pytest.mark.every(2)
@pytest.mark.parametrize("inside", [False, True], ids=["around", "inside"])
@pytest.mark.parametrize("recipe", ["mxfp8", pytest.param("fp8-current", marks=pytest.mark.slow)])
def test_each_shard_is_the_function_run_on_it_alone(recipe, inside):
    def mapped(fn):
        return jax.shard_map(fn, mesh=mesh_of(4), in_specs=(P(), P("data")), out_specs=P("data"))

    alone, parameters = sj.compile(mlp, recipe), mlp_parameters()
    fast = sj.compile(mapped(mlp), recipe) if inside else mapped(sj.compile(mlp, recipe))
    expected = jnp.concatenate([alone(parameters, part) for part in jnp.split(X, 4)])
    np.testing.assert_array_equal(jax.jit(fast)(parameters, X), expected)
    gradients = [jax.grad(loss_of(alone))(parameters, part) for part in jnp.split(X, 4)]
    mean = jax.tree.map(lambda *parts: sum(parts) / 4, *gradients)
    assert difference(jax.jit(jax.grad(loss_of(fast)))(parameters, X), mean) < 1e-6
    if inside:
        assert quantized_kinds(fast) == ["dgrad"] * 2 + ["fprop"] * 2 + ["wgrad"] * 2


def test_shards_record_the_largest_amax_of_all():
    recipe = DelayedScaling(amax_history_len=2)
    fast = sj.compile(jax.shard_map(mlp, mesh=mesh_of(4), in_specs=(P(), P("data")), out_specs=P("data")), recipe)
    parameters, x = mlp_parameters(), X * jnp.arange(1.0, 5.0)[:, None, None]
    state = fast.init_state(parameters, x)
    moved = jax.jit(jax.grad(lambda s: loss_of(fast)(parameters, x, state=s)))(state)
    assert float(moved["up.input.amax_history"][-1]) == float(jnp.max(jnp.abs(x)))
