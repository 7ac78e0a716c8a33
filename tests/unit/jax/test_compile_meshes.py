"""Compiled functions with collectives and under meshes of every kind."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_cases import WIDTH, difference, loss_of, normal
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import steelyard.jax as sj

X = normal(0, 4, WIDTH)
PARAMETERS = {"layer": {"kernel": normal(1, WIDTH, 32) / 8}}


def linear(parameters, x):
    return x @ parameters["layer"]["kernel"]


def mesh_of(count, kind=AxisType.Auto):
    assert jax.device_count() == 4, "these tests need four host devices; run them in a process of their own"
    return jax.make_mesh((count,), ("data",), axis_types=(kind,), devices=jax.devices()[:count])


def summed(parameters, x):
    """A kernel that is split between its rows, as in tensor parallelism."""
    return lax.psum(linear(parameters, x), "data")


def over_devices(fn):
    """A function whose kernel is split between its rows over two devices."""
    specs = ({"layer": {"kernel": P("data", None)}}, P(None, "data"))
    return jax.shard_map(fn, mesh=mesh_of(2), in_specs=specs, out_specs=P())


@pytest.fixture(scope="module")
def in_parts():
    """The sum of the products of both halves, and its gradient."""
    alone = sj.compile(linear, "mxfp8")

    def parts(parameters, x):
        kernels = jnp.split(parameters["layer"]["kernel"], 2)
        rows = jnp.split(x, 2, axis=1)
        return sum(alone({"layer": {"kernel": k}}, part) for k, part in zip(kernels, rows, strict=True))

    return jax.jit(jax.value_and_grad(loss_of(parts), argnums=(0, 1)))(PARAMETERS, X)


@pytest.mark.every(2)
@pytest.mark.parametrize("inside", [False, True], ids=["around", "inside"])
def test_collectives_sum_the_products_of_devices(inside, in_parts):
    fast = sj.compile(over_devices(summed), "mxfp8") if inside else over_devices(sj.compile(summed, "mxfp8"))
    found = jax.jit(jax.value_and_grad(loss_of(fast), argnums=(0, 1)))(PARAMETERS, X)
    assert difference(found, in_parts) < 1e-6
    assert difference(loss_of(fast)(PARAMETERS, X), in_parts[0]) < 1e-6


def test_collectives_over_a_vmapped_axis(in_parts):
    kernels = {"layer": {"kernel": PARAMETERS["layer"]["kernel"].reshape(2, WIDTH // 2, 32)}}
    rows, fast = jnp.stack(jnp.split(X, 2, axis=1)), sj.compile(summed, "mxfp8")
    for axis, chosen in ((None, lambda y: y), (0, lambda y: y), (0, lambda y: y[1])):
        every = jax.vmap(fast, axis_name="data", out_axes=axis)
        found = jax.value_and_grad(loss_of(lambda *given: chosen(every(*given))))(kernels, rows)  # noqa: B023
        assert difference(found[0], in_parts[0]) < 1e-6
        gradient = found[1]["layer"]["kernel"].reshape(WIDTH, 32)
        assert difference(gradient, in_parts[1][0]["layer"]["kernel"]) < 1e-6


def test_programs_are_for_the_sizes_of_named_axes():
    fast = sj.compile(lambda p, x: linear(p, x) * lax.axis_size("data") + lax.axis_index("data"), "mxfp8")
    product = sj.compile(linear, "mxfp8")(PARAMETERS, X)
    for size in (2, 3):
        found = jax.vmap(fast, (None, None), axis_name="data", axis_size=size)(PARAMETERS, X)
        np.testing.assert_array_equal(found, jnp.stack([product * size + index for index in range(size)]))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_a_mesh_that_nothing_is_placed_on_changes_nothing(kind):
    fast = sj.compile(linear, "mxfp8")
    by_hand = jax.jit(lambda p, x: sj.dense(x, p["layer"]["kernel"], None, sj.QuantizerSet.from_recipe("mxfp8")))
    expected = fast(PARAMETERS, X)
    with jax.set_mesh(mesh_of(2, kind)):
        for each in (fast, jax.jit(fast), by_hand):
            np.testing.assert_array_equal(each(PARAMETERS, X), expected)


def by_hand(parameters, x):
    return sj.dense(x, parameters["layer"]["kernel"], None, sj.QuantizerSet.from_recipe("mxfp8"))


@pytest.mark.every(2)
@pytest.mark.parametrize("fast", [sj.compile(linear, "mxfp8"), by_hand], ids=["compiled", "dense"])
def test_gradients_are_split_as_what_they_are_of_where_that_is_part_of_types(fast):
    step = jax.jit(jax.value_and_grad(loss_of(fast), argnums=(0, 1)))
    x, mesh = normal(0, 2, 32, WIDTH), mesh_of(2, AxisType.Explicit)
    expected = step(PARAMETERS, x)
    for rows, columns in ((P("data"), P()), (P(None, "data"), P()), (P(), P(None, "data")), (P("data"), P("data"))):
        with jax.set_mesh(mesh):
            placed = jax.device_put((PARAMETERS, x), (NamedSharding(mesh, columns), NamedSharding(mesh, rows)))
            found = step(*placed)
            assert jax.tree.map(jax.typeof, found[1]) == jax.tree.map(jax.typeof, placed)
            # A dense layer gathers a split dim that is not the first.
            if fast is not by_hand or rows != P(None, "data"):
                assert jax.typeof(jax.jit(fast)(*placed)) == jax.typeof(jax.jit(linear)(*placed))
        assert difference(jax.device_get(found), expected) < 1e-6
        if rows == P("data") and columns == P():
            assert "all-gather" not in step.lower(*placed).compile().as_text()
