"""What modules of flax.nnx change in a call is changed by the compiled function, too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_cases import WIDTH, normal

import steelyard.jax as sj
from steelyard.errors import SteelyardError, UnsupportedModelError

nnx = pytest.importorskip("flax.nnx")
X = normal(0, 4, WIDTH)


class Model(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.layer, self.norm = nnx.Linear(WIDTH, WIDTH, rngs=rngs), nnx.BatchNorm(WIDTH, rngs=rngs)
        self.drops = nnx.List([nnx.Dropout(0.5, rngs=rngs)] * 2)

    def __call__(self, x):
        for drop in self.drops:
            x = drop(x)
        return self.norm(self.layer(x))


@pytest.fixture(scope="module")
def fast():
    """Without quantization: values are those of flax."""
    return sj.compile(lambda model, x: model(x), "mxfp8", overrides={"*": None})


def train(apply, wrap):
    model, values = Model(), []

    @wrap
    def step(model, x):
        return nnx.value_and_grad(lambda model: jnp.mean(apply(model, x) ** 3))(model)

    for number in range(2):
        values.append(step(model, X * (number + 1)))
    return model, values


@pytest.mark.every(2)
@pytest.mark.parametrize("wrap", [lambda step: step, nnx.jit], ids=["eager", "jit"])
def test_variables_change_as_those_of_flax(fast, wrap):
    (model, values), (expected, wanted) = train(fast, wrap), train(lambda model, x: model(x), wrap)
    for found, exact in zip(jax.tree.leaves(values), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.norm.mean[...], expected.norm.mean[...], rtol=1e-5)
    assert float(jnp.max(jnp.abs(model.norm.mean[...]))) > 0
    # Both places hold the same stream, which each draws from.
    counts = [[int(drop.rngs.count[...]) for drop in each.drops] for each in (model, expected)]
    assert counts == [[4, 4], [4, 4]]


def test_measuring_changes_nothing_and_serving_refuses_to(fast):
    model = Model()
    before = jax.tree.leaves(nnx.state(model, nnx.BatchStat))
    fast.measure([(model, X)])
    with pytest.raises(SteelyardError, match=r"must not change variables, got changes of .*norm.mean.*model\.eval\(\)"):
        fast(fast.quantize(model, X), X)
    for found, expected in zip(jax.tree.leaves(nnx.state(model, nnx.BatchStat)), before, strict=True):
        np.testing.assert_array_equal(found, expected)
    model.eval()
    assert fast(fast.quantize(model, X), X).shape == X.shape


def test_new_variables_are_refused():
    class Growing(nnx.Module):
        def __init__(self):
            self.layer = nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(0))

        def __call__(self, x):
            self.inputs = nnx.Intermediate(x)
            return self.layer(x)

    with pytest.raises(UnsupportedModelError, match=r"must not add or remove variables of flax\.nnx, got .*inputs"):
        sj.compile(lambda model, x: model(x), "mxfp8")(Growing(), X)


def test_functions_under_the_jit_of_flax_are_functions():
    plain, model = nnx.jit(lambda model, x: model(x)), Model()
    found = sj.compile(plain, "mxfp8", overrides={"layer": None})(model, X)
    np.testing.assert_allclose(found, plain(Model(), X), rtol=1e-5, atol=1e-6)
    assert float(jnp.max(jnp.abs(model.norm.mean[...]))) > 0
