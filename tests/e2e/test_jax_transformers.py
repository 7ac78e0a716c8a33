"""Transformers of flax, unmodified, train by recipes to the losses of float32."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
nnx = pytest.importorskip("flax.nnx")
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from flax import linen  # noqa: E402

import steelyard.jax as sj  # noqa: E402
from steelyard.errors import UnsupportedModelError  # noqa: E402

WIDTH, HEADS, WORDS = 64, 4, 64


class Block(nnx.Module):
    def __init__(self, rngs):
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])
        self.up, self.down = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs), nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x, mask):
        x = x + self.attention(self.norms[0](x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.norms[1](x))))


class Transformer(nnx.Module):
    def __init__(self, rngs):
        self.embedding = nnx.Embed(WORDS, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(2)])

    def __call__(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, nnx.make_causal_mask(tokens))
        return self.embedding.attend(x)


class LinenBlock(linen.Module):
    @linen.compact
    def __call__(self, x, mask):
        x = x + linen.MultiHeadDotProductAttention(HEADS, name="attention")(linen.LayerNorm()(x), mask=mask)
        hidden = linen.gelu(linen.Dense(2 * WIDTH, name="up")(linen.LayerNorm()(x)))
        return x + linen.Dense(WIDTH, name="down")(hidden), None


class LinenTransformer(linen.Module):
    """Its layers are a scan, as in MaxText."""

    @linen.compact
    def __call__(self, tokens):
        embedding = linen.Embed(WORDS, WIDTH, name="embedding")
        scan = linen.scan(
            LinenBlock, variable_axes={"params": 0}, split_rngs={"params": True}, length=2, in_axes=linen.broadcast
        )
        x, _ = scan(name="blocks")(embedding(tokens), linen.make_causal_mask(tokens))
        return embedding.attend(x)


def batch(key):
    """Sequences that count up by the step between their first two tokens."""
    first, by = jax.random.randint(key, (2, 16, 1), 0, 8)
    tokens = (first + by * jnp.arange(17)) % WORDS
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(logits, wanted):
    return optax.softmax_cross_entropy_with_integer_labels(logits, wanted)[:, 1:].mean()


def train_nnx(apply, steps):
    model = Transformer(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, key):
        tokens, wanted = batch(key)
        value, gradients = nnx.value_and_grad(lambda model: loss_of(apply(model, tokens), wanted))(model)
        optimizer.update(model, gradients)
        return value

    return [float(step(model, optimizer, key)) for key in jax.random.split(jax.random.key(1), steps)]


def train_linen(recipe, steps):
    model, adam = LinenTransformer(), optax.adam(3e-3)
    tokens, _ = batch(jax.random.key(0))
    variables = model.init(jax.random.key(0), tokens)
    fast = None if recipe is None else sj.compile(model.apply, recipe)
    state = {} if fast is None else fast.init_state(variables, tokens)
    memory = adam.init(variables)

    # What is donated is overwritten in place.
    @jax.jit(donate_argnums=(0, 1, 2))
    def step(variables, state, memory, key):
        tokens, wanted = batch(key)

        def loss(variables, state):
            logits = model.apply(variables, tokens) if fast is None else fast(variables, tokens, state=state)
            return loss_of(logits, wanted)

        value, (gradients, state) = jax.value_and_grad(loss, argnums=(0, 1))(variables, state)
        updates, memory = adam.update(gradients, memory)
        return value, optax.apply_updates(variables, updates), state, memory

    losses = []
    for key in jax.random.split(jax.random.key(1), steps):
        value, variables, state, memory = step(variables, state, memory, key)
        losses.append(float(value))
    return losses


def test_products_of_an_nnx_transformer_have_the_names_of_its_modules():
    fast = sj.compile(lambda model, tokens: model(tokens), "mxfp8")
    fast.lower(Transformer(nnx.Rngs(0)), batch(jax.random.key(0))[0])
    rows = fast.explain().rows
    names = [f"blocks.{i}.{name}" for i in range(2) for name in ("up", "down")]
    names += [f"blocks.{i}.attention.{name}" for i in range(2) for name in ("query", "key", "value", "out")]
    found = sorted((row.layer, row.kind) for row in rows if row.is_quantized)
    assert found == sorted((name, kind) for name in [*names, "embedding"] for kind in ("fprop", "dgrad", "wgrad"))
    assert {row.reason for row in rows if not row.is_quantized} == {"a batched product, such as those of attention"}


def test_products_of_a_scanned_linen_transformer_have_the_names_of_its_modules():
    model, tokens = LinenTransformer(), batch(jax.random.key(0))[0]
    fast = sj.compile(model.apply, "mxfp8")
    fast.lower(jax.eval_shape(model.init, jax.random.key(0), tokens), tokens, training=False)
    names = ["up", "down", *(f"attention.{name}" for name in ("query", "key", "value", "out"))]
    found = [row.layer for row in fast.explain().rows if row.is_quantized]
    assert sorted(found) == sorted([*(f"blocks.{name}" for name in names), "embedding"])


def test_modules_are_refused_with_what_to_do():
    with pytest.raises(
        UnsupportedModelError, match=r"got the module Transformer; compile\(lambda model, x: model\(x\)"
    ):
        sj.compile(Transformer(nnx.Rngs(0)), "mxfp8")
    with pytest.raises(UnsupportedModelError, match=r"got the module LinenTransformer; compile\(module\.apply"):
        sj.compile(LinenTransformer(), "mxfp8")


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "most"), [("mxfp8", 1.15), ("fp8-current", 1.15)])
def test_an_nnx_transformer_trains_like_float32(recipe, most):
    plain = train_nnx(lambda model, tokens: model(tokens), 120)
    assert np.mean(plain[-10:]) < 0.2 * plain[0]
    losses = train_nnx(sj.compile(lambda model, tokens: model(tokens), recipe), 120)
    assert np.mean(losses[-10:]) < most * np.mean(plain[-10:]) + 0.02


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "most"), [("fp8-delayed", 1.2), ("nvfp4", 1.6)])
def test_a_scanned_linen_transformer_trains_like_float32(recipe, most):
    plain = train_linen(None, 120)
    assert np.mean(plain[-10:]) < 0.2 * plain[0]
    losses = train_linen(recipe, 120)
    assert np.mean(losses[-10:]) < most * np.mean(plain[-10:]) + 0.02
