"""A dense layer: its three GEMMs against the reference, its state, and JAX's transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax_cases import assert_same_values, matrix, to_torch

import steelyard.jax as sj
from steelyard import recipes, reference
from steelyard.errors import RecipeError
from steelyard.formats.schemes import Scheme
from steelyard.jax import QuantizerSet, random
from steelyard.jax.quantizers import RECIPES as JAX_RECIPES
from steelyard.recipes import CustomRecipe, DelayedScaling, MXFP8BlockScaling, NVFP4BlockScaling

M, K, N = 48, 96, 80
X = jnp.asarray(matrix(M, K, special=False, spread=2.0, seed=1))
KERNEL = jnp.asarray(matrix(K, N, special=False, spread=2.0, seed=2))
BIAS = jnp.asarray(np.linspace(-3, 3, N, dtype=np.float32))
DY = jnp.asarray(matrix(M, N, special=False, spread=2.0, seed=3))
RECIPES = {
    **{name: recipes.get(name) for name in JAX_RECIPES},
    "mxfp8-hybrid-tiles": MXFP8BlockScaling(fp8_format="HYBRID", weight_tiles=True, scale_rule="floor"),
    "nvfp4-plain": NVFP4BlockScaling(rht=False, stochastic_rounding=False, weight_tiles=False),
    "nvfp4-rows": NVFP4BlockScaling(rht=False, stochastic_rounding=False, weight_tiles=False, row_scaled=True),
    "nvfp4-4over6": NVFP4BlockScaling(rht=False, four_over_six="all"),
}


def pulled(quantizers, x=X, kernel=KERNEL, bias=BIAS, dy=DY):
    """The output, and the gradients of x, kernel, bias and the quantizer set, in one program."""

    @jax.jit
    def step(x, kernel, bias, quantizers, dy):
        y, pull = jax.vjp(sj.dense, x, kernel, bias, quantizers)
        return y, *pull(dy)

    return step(x, kernel, bias, quantizers, dy)


def words_as_rng(quantizers):
    words = [int(word) for word in random.state_words(quantizers.random_state)]
    return words[0] | words[1] << 32, words[2] | words[3] << 32


def check_product(found, a, b, addend=0.0) -> None:
    """Within the bound of the float64 product of the decoded operands."""
    left, right = reference.gemm.operand(a), reference.gemm.operand(b)
    bound = (left.shape[1] + 8) * 2.0**-24 * (np.abs(left) @ np.abs(right).T + np.abs(addend))
    assert (np.abs(np.asarray(found, np.float64) - (left @ right.T + addend)) <= bound).all()


@pytest.mark.every(3)
@pytest.mark.parametrize("name", RECIPES)
def test_three_gemms_are_those_of_the_recipe(name):
    recipe = RECIPES[name]
    quantizers = QuantizerSet.from_recipe(recipe)
    given = {"scale": torch.tensor(1.0)} if isinstance(recipe, DelayedScaling) else {}
    x_row, x_col = reference.quantize(to_torch(X), *recipe.schemes("input"), **given)
    w_row, w_col = reference.quantize(to_torch(KERNEL).T.contiguous(), *recipe.schemes("weight"), **given)
    if quantizers.random_state is not None:
        given["rng"] = words_as_rng(quantizers)
    dy_row, dy_col = reference.quantize(to_torch(DY), *recipe.schemes("grad_output"), **given)
    y, dx, dkernel, dbias, _ = pulled(quantizers)
    check_product(y, x_row, w_row, np.asarray(BIAS, np.float64))
    check_product(dx, dy_row, w_col)
    check_product(dkernel, x_col, dy_col)
    np.testing.assert_allclose(np.asarray(dbias), np.asarray(DY, np.float64).sum(0), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("backward", ["high_precision", "dequantized"])
def test_backward_in_high_precision(backward):
    recipe = MXFP8BlockScaling(backward=backward)
    _, dx, dkernel, _, _ = pulled(QuantizerSet.from_recipe(recipe))
    x, kernel = np.asarray(X, np.float64), np.asarray(KERNEL, np.float64)
    if backward == "dequantized":
        row, _ = recipe.schemes("input")
        x = reference.dequantize(reference.quantize(to_torch(X), row, None)[0]).double().numpy()
        kernel = (
            reference.dequantize(reference.quantize(to_torch(KERNEL).T.contiguous(), row, None)[0]).double().numpy().T
        )
    dy = np.asarray(DY, np.float64)
    bounds = [n * 2.0**-24 * np.abs(a) @ np.abs(b) for n, a, b in ((N + 8, dy, kernel.T), (M + 8, x.T, dy))]
    assert (np.abs(np.asarray(dx) - dy @ kernel.T) <= bounds[0]).all()
    assert (np.abs(np.asarray(dkernel) - x.T @ dy) <= bounds[1]).all()


def test_operands_without_a_scheme_stay_in_high_precision():
    scheme = Scheme("f8E4M3FN", "tensor", "f32")
    recipe = CustomRecipe(lambda role: None if role == "grad_output" else (scheme, scheme))
    y, dx, *_ = pulled(QuantizerSet.from_recipe(recipe))
    x_row, _ = reference.quantize(to_torch(X), scheme, None)
    w_row, w_col = reference.quantize(to_torch(KERNEL).T.contiguous(), scheme, scheme)
    check_product(y, x_row, w_row, np.asarray(BIAS, np.float64))
    kernel = reference.dequantize(w_col).double().numpy().T
    expected = np.asarray(DY, np.float64) @ kernel.T
    bound = (N + 8) * 2.0**-24 * np.abs(np.asarray(DY, np.float64)) @ np.abs(kernel.T)
    assert (np.abs(np.asarray(dx) - expected) <= bound).all()
    assert_same_values(sj.dense(X, KERNEL, BIAS), X @ KERNEL + BIAS)


def test_delayed_state_follows_the_reference():
    recipe = DelayedScaling(amax_history_len=3, margin=1)
    quantizers = QuantizerSet.from_recipe(recipe)
    scheme = recipe.schemes("input")[0]
    scale, history = torch.tensor(1.0), torch.zeros(3)
    for factor in (1.0, 100.0, 0.0, 0.01, 1e-3, jnp.inf, 1.0):
        x = X * factor
        newest = torch.tensor(np.max(np.abs(np.asarray(x))))
        given = history.clone()
        given[0] = newest
        scale, history = reference.update_scale(scale, given, scheme, margin=1)
        *_, quantizers = pulled(quantizers, x=x)
        assert_same_values(quantizers.x.scale, scale.numpy())
        assert_same_values(quantizers.x.amax_history, history.numpy())


@pytest.mark.every(3)
@pytest.mark.parametrize("margin", [0, 6, 7, 126])
@pytest.mark.parametrize("amax", [1e-45, 1.5e-38, 1.0, 3.4e38, np.inf])
def test_scales_at_the_edges_of_float32(amax, margin):
    scheme = DelayedScaling().schemes("grad_output")[0]
    history = np.array([amax, 0, 0, 0], np.float32)
    expected = reference.update_scale(torch.tensor(3.0), torch.from_numpy(history), scheme, margin=margin)
    update = jax.jit(lambda *state: sj.update_scale(*state, scheme, margin=margin))
    assert_same_values(update(jnp.float32(3.0), jnp.asarray(history))[0], expected[0].numpy())


@pytest.mark.parametrize("algorithm", ["max", "most_recent", lambda history: jnp.mean(history)])
def test_update_scale_algorithms(algorithm):
    scheme = DelayedScaling().schemes("input")[0]
    history = np.array([2.0, np.nan, 8.0, 0.5], np.float32)
    if callable(algorithm):
        history[1] = 1.5
    theirs = (lambda h: h.mean()) if callable(algorithm) else algorithm
    expected = reference.update_scale(torch.tensor(3.0), torch.from_numpy(history), scheme, algorithm=theirs)
    update = jax.jit(lambda *state: sj.update_scale(*state, scheme, algorithm=algorithm))
    found = update(jnp.float32(3.0), jnp.asarray(history))
    for ours, reference_value in zip(found, expected, strict=True):
        assert_same_values(ours, reference_value.numpy())


def test_evaluation_changes_no_state_and_random_state_counts_backwards():
    quantizers = QuantizerSet.from_recipe("nvfp4", key=jax.random.key(7))
    *_, first = pulled(quantizers)
    *_, second = pulled(first)
    seeds = [np.asarray(random.state_words(each.random_state)) for each in (quantizers, first, second)]
    assert [int(words[2]) for words in seeds] == [0, 1, 2]
    assert all((words[:2] == seeds[0][:2]).all() for words in seeds)
    assert (np.asarray(random.seed_words(jax.random.key(7))) == seeds[0][:2]).all()
    other = quantizers.with_key(jax.random.key(8))
    assert not np.array_equal(np.asarray(pulled(other)[1]), np.asarray(pulled(quantizers)[1]))


@pytest.mark.parametrize("name", ["fp8-current", "mxfp8", "nvfp4"])
def test_vmap_treats_each_example_alone(name):
    quantizers = QuantizerSet.from_recipe(name)
    stack = jnp.stack([X, X * 3, X + 1])
    together = jax.jit(jax.vmap(lambda x: sj.dense(x, KERNEL, BIAS, quantizers)))(stack)
    layer = jax.jit(lambda x: sj.dense(x, KERNEL, BIAS, quantizers))
    assert_same_values(together, jnp.stack([layer(x) for x in stack]))
    gradient = jax.grad(lambda w, x: jnp.sum(sj.dense(x, w, None, quantizers) ** 2))
    batched = jax.jit(jax.vmap(gradient, (None, 0)))(KERNEL, stack)
    assert_same_values(batched[1], jax.jit(gradient)(KERNEL, stack[1]))


@pytest.mark.parametrize("name", ["fp8-delayed", "mxfp8"])
def test_scan_over_layers_and_remat_equal_a_loop(name):
    layers = 3
    kernels = jnp.stack([jnp.asarray(matrix(K, K, special=False, spread=0.1, seed=s)) for s in range(layers)]) / K
    single = QuantizerSet.from_recipe(name)
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf] * layers), single)

    def layer(x, parameters):
        kernel, quantizers = parameters
        return jnp.tanh(sj.dense(x, kernel, None, quantizers)), None

    def scanned(kernels, quantizers):
        return jnp.sum(jax.lax.scan(jax.checkpoint(layer), X, (kernels, quantizers))[0] ** 2)

    def looped(kernels, quantizers):
        x = X
        for index in range(layers):
            x, _ = layer(x, jax.tree.map(lambda leaf, i=index: leaf[i], (kernels, quantizers)))
        return jnp.sum(x**2)

    ours, theirs = (jax.jit(jax.value_and_grad(f, argnums=(0, 1)))(kernels, stacked) for f in (scanned, looped))
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)
    for found, expected in zip(jax.tree.leaves(ours[1]), jax.tree.leaves(theirs[1]), strict=True):
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=2e-4, atol=1e-5)


def test_donated_state_is_updated_in_place():
    quantizers = QuantizerSet.from_recipe(DelayedScaling(amax_history_len=4))
    expected = pulled(quantizers)[-1]

    def step(quantizers):
        return jax.grad(lambda q: jnp.vdot(sj.dense(X, KERNEL, BIAS, q), DY))(quantizers)

    donated = jax.tree.map(jnp.copy, quantizers)
    updated = jax.jit(step, donate_argnums=0)(donated)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(donated))
    for found, wanted in zip(jax.tree.leaves(updated), jax.tree.leaves(expected), strict=True):
        assert_same_values(found, wanted)


def test_halves_in_halves_out():
    x, kernel = X.astype(jnp.bfloat16), KERNEL.astype(jnp.bfloat16)
    y, dx, dkernel, dbias, _ = pulled(QuantizerSet.from_recipe("mxfp8"), x, kernel, BIAS, DY.astype(jnp.bfloat16))
    assert [each.dtype for each in (y, dx, dkernel, dbias)] == [jnp.bfloat16] * 3 + [jnp.float32]


def test_leading_dims_are_rows():
    quantizers = QuantizerSet.from_recipe("nvfp4")
    deep = sj.dense(X.reshape(2, 24, K), KERNEL, BIAS, quantizers)
    assert_same_values(deep.reshape(M, N), sj.dense(X, KERNEL, BIAS, quantizers))


def test_dot_of_quantized_tensors():
    x, w = (
        sj.quantize(X, sj.ScalingMode.MXFP8_1D_SCALING),
        sj.quantize(KERNEL, sj.ScalingMode.MXFP8_1D_SCALING, rowwise=False, colwise=True),
    )
    assert_same_values(sj.dot(x, w, bias=BIAS), sj.dense(X, KERNEL, BIAS, QuantizerSet.from_recipe("mxfp8")))


REFUSED = {
    "kernel": (lambda: sj.dense(X, KERNEL.T), r"kernel must be \[K, N\] with the K of x, 96; got shape \(80, 96\)"),
    "bias": (lambda: sj.dense(X, KERNEL, X[0]), r"bias must have shape \(80,\), got \(96,\)"),
    "set": (lambda: sj.dense(X, KERNEL, None, "mxfp8"), "quantizer_set must be a QuantizerSet, got str"),
    "x": (lambda: sj.dense(X.astype(jnp.int32), KERNEL), "x must be float32"),
    "key": (lambda: QuantizerSet.from_recipe("nvfp4", key=3), "key must be one key of jax.random.key, got int"),
    "recipe": (lambda: QuantizerSet.from_recipe("fp9"), "recipe must be"),
    "quantizer": (lambda: QuantizerSet("mxfp8"), "x must be a quantizer of steelyard.jax, got str"),
    "dot": (
        lambda: sj.dot(sj.quantize(X), sj.quantize(KERNEL.T, rowwise=False, colwise=True)),
        "reduce over the same length",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_arguments_are_named(name):
    call, message = REFUSED[name]
    with pytest.raises(RecipeError, match=message):
        jax.jit(call)()


@pytest.mark.parametrize("recipe", ["fp8-row", "mxfp4"])
def test_formats_without_kernels_are_refused(recipe):
    assert recipe not in JAX_RECIPES
    with pytest.raises(RecipeError, match="must be a scheme that JAX has kernels for, got f"):
        QuantizerSet.from_recipe(recipe)


def test_activations_of_another_format_are_refused():
    with pytest.raises(RecipeError, match="must quantize weights and activations alike, got activations='mxfp8'"):
        QuantizerSet.from_recipe("nvfp4/mxfp8")
