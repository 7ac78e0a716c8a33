"""Weights that are quantized once give the results of those that are quantized in every call."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_cases import (
    WIDTH,
    difference,
    loss_of,
    mlp,
    mlp_parameters,
    nested,
    nested_parameters,
    normal,
    stack,
    stack_parameters,
)
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jax_cases import to_torch

import steelyard.jax as sj
from steelyard import recipes
from steelyard.errors import SteelyardError
from steelyard.jax import packed, primitives, stacked
from steelyard.jax.copies import CopySpec
from steelyard.recipes import DelayedScaling, Role
from steelyard.runtime import cpu

X = normal(0, 5, WIDTH)


@pytest.mark.every(2)
@pytest.mark.parametrize("recipe", ["mxfp8", "nvfp4", pytest.param("fp8-block", marks=pytest.mark.slow)])
def test_quantized_weights_give_the_same_results(recipe):
    fast, parameters = sj.compile(mlp, recipe), mlp_parameters()
    weights = fast.quantize(parameters, X)
    assert difference(jax.jit(fast)(weights, X), fast(parameters, X)) < 1e-6
    kernels = sum(each["kernel"].nbytes for each in parameters.values())
    biases = sum(each["bias"].nbytes for each in parameters.values())
    assert weights.nbytes - biases < (0.16 if recipe == "nvfp4" else 0.28) * kernels
    assert len(weights.kept) == 2
    many = normal(1, 3, 7, WIDTH)
    assert difference(fast(weights, many), fast(parameters, many)) < 1e-6
    batched = jax.vmap(fast, (None, 0))(weights, many)
    assert difference(batched, jnp.stack([fast(weights, each) for each in many])) < 1e-6


def test_packed_products_are_those_of_decoded_operands():
    row, _ = recipes.get("nvfp4").schemes(Role("input", ""))
    x, kernel = normal(0, 3, 70), normal(1, 41, 70)
    (a, _), (b, _) = (primitives.quantize(each, row, None) for each in (x, kernel))
    a_spec, b_spec = CopySpec(row, False, x.shape), CopySpec(row, False, kernel.shape)
    found = packed.packed_gemm(a, a_spec, packed.pack(b, b_spec), b_spec, out_dtype=jnp.float32)
    left, right = (
        np.asarray(primitives.dequantize(*each, jnp.float32), np.float64) for each in ((a, a_spec), (b, b_spec))
    )
    bound = (70 + 8) * 2.0**-24 * (np.abs(left) @ np.abs(right).T)
    assert (np.abs(np.asarray(found, np.float64) - left @ right.T) <= bound).all()


def test_packed_bytes_are_those_of_torch():
    row, _ = recipes.get("nvfp4").schemes(Role("weight", ""))
    kernel = normal(1, 48, 80)
    (parts, _), spec = primitives.quantize(kernel, row, None), CopySpec(row, False, (48, 80))
    ours = np.asarray(packed.pack(parts, spec))
    theirs = cpu.pack(cpu.quantize(to_torch(kernel), row, None)[0])
    np.testing.assert_array_equal(ours, theirs.data.numpy())


def test_state_of_delayed_scales_is_used():
    fast, parameters = sj.compile(mlp, DelayedScaling(amax_history_len=1)), mlp_parameters()
    state = fast.init_state(parameters, X)
    state = jax.grad(lambda s: loss_of(fast)(parameters, X, state=s))(state)
    assert float(state["up.weight.scale"]) != 1
    weights = fast.quantize(parameters, X, state=state)
    assert difference(fast(weights, X, state=state), fast(parameters, X, state=state)) < 1e-6


def test_weights_for_calls_that_were_compiled_before():
    fast, parameters = sj.compile(mlp, "mxfp8"), mlp_parameters()
    with pytest.raises(SteelyardError, match="nothing is compiled yet for parameters like these"):
        fast.quantize(parameters)
    expected = fast(parameters, X)
    assert difference(fast(fast.quantize(parameters), X), expected) < 1e-6


def test_weights_for_other_calls_are_refused():
    def fn(parameters, x, *, table=False):
        kernel = parameters["layer"]["kernel"]
        return kernel[x.astype(int)] if table else x @ kernel

    parameters = {"layer": {"kernel": normal(1, WIDTH, WIDTH)}}
    fast = sj.compile(fn, "mxfp8")
    weights = fast.quantize(parameters, X)
    with pytest.raises(SteelyardError, match=r"quantized for this call, .*: layer\.kernel; pass arguments like these"):
        fast(weights, jnp.arange(4.0), table=True)


LOOPS = {
    "loop": (stack, stack_parameters),
    "checkpoint": (jax.checkpoint(stack), stack_parameters),
    "nested": (nested, nested_parameters),
}


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("recipe", "loop"), [("mxfp8", "loop"), ("nvfp4", "loop"), ("mxfp8", "checkpoint"), ("mxfp8", "nested")]
)
def test_weights_of_layers_in_a_loop_are_quantized_once(recipe, loop):
    fn, make = LOOPS[loop]
    fast, parameters = sj.compile(fn, recipe), make()
    weights = fast.quantize(parameters, X)
    assert not weights.kept
    assert difference(jax.jit(fast)(weights, X), fast(parameters, X)) < 1e-6
    program = jax.jit(fast).lower(weights, X).as_text()
    # Inputs alone are quantized in a call.
    assert program.count("custom_call @steelyard_quantize") == 1
    # Each trip reads its part of the stack where it lies: one number of 8 or 4 bits per weight, and the scales.
    assert program.count("custom_call @steelyard_stacked_gemm") == 1
    kernels = parameters["layers"]["kernel"]
    assert weights.nbytes < (0.15 if recipe == "nvfp4" else 0.26) * kernels.nbytes
    assert not re.search(r"dynamic_slice.*(ui8|f8E)", program)


@pytest.mark.every(3)
@pytest.mark.parametrize("spec", [P("data", None), P(None, "data")], ids=["rows", "columns"])
@pytest.mark.parametrize(("recipe", "fn"), [("mxfp8", mlp), ("nvfp4", mlp), ("nvfp4", stack)])
def test_quantized_weights_are_split_as_the_parameters_are(recipe, fn, spec):
    assert jax.device_count() == 4, "this test needs four host devices; run it in a process of its own"
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    fast, parameters = sj.compile(fn, recipe), mlp_parameters() if fn is mlp else stack_parameters()
    split = jax.tree.map(
        lambda each: (
            jax.device_put(each, NamedSharding(mesh, P(*(None,) * (each.ndim - 2), *spec))) if each.ndim > 1 else each
        ),
        parameters,
    )
    weights = fast.quantize(split, X)
    quantized = [leaf for leaf in jax.tree.leaves(weights.weights) if leaf.ndim > 1 and leaf.shape[-2] >= WIDTH]
    assert quantized
    # A shard of 48 or 32 of the 16 x 16 or 1 x 32 blocks is no whole number of them where columns are the blocks' own.
    assert not any(leaf.sharding.is_fully_replicated for leaf in quantized if leaf.dtype == jnp.uint8)
    assert difference(jax.jit(fast)(weights, X), fast(parameters, X)) < 1e-6


def test_parameters_that_a_loop_returns_for_nothing_are_not_kept():
    """As flax.nnx returns them from `nnx.scan(nnx.remat(layer))`."""

    @jax.checkpoint
    def layer(x, kernel):
        return jnp.tanh(x @ kernel), kernel

    fast, parameters = (
        sj.compile(lambda p, x: lax.scan(layer, x, p["layers"]["kernel"])[0], "mxfp8"),
        stack_parameters(),
    )
    weights = fast.quantize(parameters, X)
    assert not weights.kept
    assert difference(fast(weights, X), sj.compile(stack, "mxfp8")(parameters, X)) < 1e-6


@pytest.mark.every(2)
@pytest.mark.parametrize("is_packed", [False, True])
def test_products_with_a_part_of_a_stack_are_those_with_the_part(is_packed):
    row, _ = recipes.get("nvfp4").schemes(Role("input", ""))
    x, kernels = normal(0, 3, 70), normal(1, 4, 41, 70)
    (a, _), (b, _) = (primitives.quantize(each, row, None) for each in (x, kernels))
    a_spec, b_spec = CopySpec(row, False, x.shape), CopySpec(row, False, kernels.shape[1:])
    stack = packed.pack(b, b_spec) if is_packed else b
    product, of_part = (stacked.packed_gemm, packed.packed_gemm) if is_packed else (stacked.gemm, primitives.gemm)
    # No number leads out of the stack.
    for number, part in ((0, 0), (2, 2), (3, 3), (9, 3), (-7, 0)):
        found = jax.jit(lambda a, stack, number: product(a, a_spec, stack, b_spec, number, out_dtype=jnp.float32))(
            a, stack, jnp.int32(number)
        )
        own = jax.tree.map(lambda each, part=part: each[part], stack)
        expected = of_part(a, a_spec, own, b_spec, out_dtype=jnp.float32)
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
