"""JAX functions compiled by recipes, beside plain jit, flax's Fp8DotGeneralOp and qwix."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen
from flax.linen.fp8_ops import Fp8DotGeneralOp
from machine import pinned
from report import Table, progress
from timing import interleave

import steelyard.jax as sj

WIDTH, HEADS, LAYERS = 512, 8, 2
RECIPES = ("mxfp8", "fp8-current", "nvfp4")
BASE = "float32"


class Block(linen.Module):
    """Attention and an MLP, whose dense layers may multiply in another way."""

    product: Any = None

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        def dense(size: int, name: str) -> linen.Dense:
            return linen.Dense(size, name=name, dot_general_cls=self.product)

        y = linen.LayerNorm()(x)
        shape = (*y.shape[:2], HEADS, WIDTH // HEADS)
        q, k, v = (dense(WIDTH, name)(y).reshape(shape) for name in ("query", "key", "value"))
        x = x + dense(WIDTH, "out")(jax.nn.dot_product_attention(q, k, v).reshape(x.shape))
        return x + dense(WIDTH, "down")(linen.gelu(dense(4 * WIDTH, "up")(linen.LayerNorm()(x))))


class Transformer(linen.Module):
    """A few blocks."""

    product: Any = None

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(LAYERS):
            x = Block(self.product)(x)
        return x


class Scanned(linen.Module):
    """The same blocks in a loop, as in MaxText."""

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        loop = linen.scan(
            lambda block, x, _: (block(x), None),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=LAYERS,
        )
        return loop(Block(), x, None)[0]


def measure(quick: bool = False) -> Table:
    """One row per contender: speed of a forward and of a gradient with 512 tokens, and of one token, on one core.

    Gradients and tokens also of the same blocks in a loop, beside float32 in a loop.
    """
    # XLA makes as many threads as there are cores when it is first used, and threads that wait take CPU time, too.
    with pinned(1):
        return _measure(3 if quick else 9)


def _measure(calls: int) -> Table:
    speeds = ["speed, forward", "speed, gradient", "speed, one token", "loop, gradient", "loop, one token"]
    table = Table("JAX transformer, compiled", ["contender", *speeds], labels=["contender"], ratio=speeds[1])
    x, token = (jax.random.normal(jax.random.key(0), (n, m, WIDTH)) for n, m in ((4, 128), (1, 1)))
    forwards: dict[str, Callable[[], Any]] = {}
    gradients: dict[str, Callable[[], Any]] = {}
    tokens: dict[str, Callable[[], Any]] = {}
    for name, apply, variables, serve in _contenders(x, token):
        progress(f"jax {name}")
        forward, gradient = jax.jit(apply), jax.jit(jax.grad(_loss(apply), allow_int=True))
        forwards[name] = _call(forward, variables, x)
        gradients[name] = _call(gradient, variables, x)
        if serve is not None:
            tokens[name] = _call(jax.jit(serve[0]), serve[1], token)
    loops, loop_tokens = _looped(x, token)
    # A token takes so little that many calls are as quick.
    works = ((forwards, calls), (gradients, calls), (tokens, 20 * calls), (loops, calls), (loop_tokens, 20 * calls))
    timed = [interleave(own, times) for own, times in works]
    progress("")
    for name in forwards:
        cells = [times[BASE].best / times[name].best if name in times else "" for times in timed]
        table.rows.append([name, *cells])
    table.notes.append(f"{LAYERS} blocks of width {WIDTH}, float32; speed: CPU time of {BASE} under jit / CPU time.")
    table.notes.append(f"Loop: the blocks in a jax.lax.scan; {BASE} is the same loop under jit.")
    table.notes.append("One token: weights quantized before. Formats differ, so this compares cost, not quality.")
    return table


def _looped(x: jax.Array, token: jax.Array) -> tuple[dict[str, Callable[[], Any]], dict[str, Callable[[], Any]]]:
    """The gradient and the token of blocks in a loop, by contender."""
    plain = Scanned()
    variables = plain.init(jax.random.key(1), x)
    gradients = {BASE: _call(jax.jit(jax.grad(_loss(plain.apply))), variables, x)}
    tokens = {BASE: _call(jax.jit(plain.apply), variables, token)}
    for recipe in RECIPES:
        name, fast = f"steelyard {recipe}", sj.compile(plain.apply, recipe)
        progress(f"jax {name} in a loop")
        apply = partial(fast, state=fast.init_state(variables, x))
        gradients[name] = _call(jax.jit(jax.grad(_loss(apply))), variables, x)
        tokens[name] = _call(jax.jit(fast), fast.quantize(variables, token), token)
    return gradients, tokens


def _loss(apply: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda variables, x: jnp.mean(apply(variables, x) ** 2)


def _call(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    return lambda: jax.block_until_ready(function(*arguments))


def _contenders(x: jax.Array, token: jax.Array) -> Iterator[tuple[str, Any, Any, tuple[Any, Any] | None]]:
    """Name, function, its variables, and what serves one token."""
    plain = Transformer()
    variables = plain.init(jax.random.key(1), x)
    yield BASE, plain.apply, variables, (plain.apply, variables)
    for recipe in RECIPES:
        fast = sj.compile(plain.apply, recipe)
        state = fast.init_state(variables, x)
        weights = fast.quantize(variables, token)
        apply = lambda variables, x, fast=fast, state=state: fast(variables, x, state=state)  # noqa: E731
        yield f"steelyard {recipe}", apply, variables, (fast, weights)
    flax = Transformer(Fp8DotGeneralOp)
    yield "flax Fp8DotGeneralOp", flax.apply, flax.init(jax.random.key(1), x), None
    yield from _qwix(plain, x)


def _qwix(plain: Transformer, x: jax.Array) -> Iterator[tuple[str, Any, Any, None]]:
    """Training with qwix in FP8, forward and backward."""
    try:
        import qwix
    except ImportError:
        return
    rule = qwix.QtRule(
        module_path=".*",
        weight_qtype=jnp.float8_e4m3fn,
        act_qtype=jnp.float8_e4m3fn,
        bwd_qtype=jnp.float8_e5m2,
    )
    model = qwix.quantize_model(plain, qwix.QtProvider([rule]))
    yield "qwix fp8", model.apply, model.init(jax.random.key(1), x), None
