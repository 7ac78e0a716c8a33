"""Dense layers under jit beside jnp's float32 product, and what a native call costs beyond its kernel."""

import jax
import jax.numpy as jnp
import numpy as np
from report import Table, progress
from timing import median_seconds

import steelyard.jax as sj
from steelyard.jax.quantizers import RECIPES

SHAPES = ((256, 1024, 1024), (1024, 2048, 2048))
QUICK_SHAPES = ((128, 512, 512),)


def measure(quick: bool = False) -> Table:
    """One row per shape and recipe."""
    speeds = ["speed, forward", "speed, forward, weight quantized before", "speed, forward and backward"]
    columns = ["M x K x N", "recipe", "float32 forward ms", *speeds]
    table = Table("JAX dense under jit", columns)
    repeats = 3 if quick else 9
    for M, K, N in QUICK_SHAPES if quick else SHAPES:
        rng = np.random.default_rng(0)
        x, kernel = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((M, K), (K, N)))
        base = _seconds(jax.jit(jnp.dot), (x, kernel), repeats)
        base_step = _seconds(_step(lambda x, w: jnp.dot(x, w)), (x, kernel), repeats)
        for name in RECIPES:
            progress(f"jax {M}x{K}x{N} {name}")
            quantizers = sj.QuantizerSet.from_recipe(name)
            layer = _layer(quantizers)
            forward = _seconds(jax.jit(layer), (x, kernel), repeats)
            step = _seconds(_step(layer), (x, kernel), repeats)
            ready = _seconds(*_with_quantized_weight(quantizers, x, kernel), repeats)
            row = [f"{M}x{K}x{N}", name, base * 1e3, base / forward, base / ready, base_step / step]
            table.rows.append(row)
    progress("")
    table.notes.append("speed: time of jnp's float32 product / time, by medians; above 1 is faster.")
    table.notes.append(
        f"A native call on a 2x32 array under jit costs {_call_microseconds(repeats):.1f} us more than an addition."
    )
    return table


def _layer(quantizers):
    return lambda x, w: sj.dense(x, w, None, quantizers)


def _step(layer):
    return jax.jit(jax.grad(lambda x, w: jnp.sum(layer(x, w) ** 2), argnums=(0, 1)))


def _with_quantized_weight(quantizers, x, kernel):
    """A forward whose weight was quantized earlier, as in inference."""
    weight = jax.jit(lambda w: quantizers.kernel.quantize(w, rowwise=False)[1])(kernel)

    @jax.jit
    def forward(x, weight):
        return sj.dot(quantizers.x.quantize(x, colwise=False)[0], weight)

    return forward, (x, weight)


def _seconds(function, arguments, repeats: int) -> float:
    jax.block_until_ready(function(*arguments))
    return median_seconds(lambda: jax.block_until_ready(function(*arguments)), repeats)


def _call_microseconds(repeats: int) -> float:
    """How much longer a tiny native call takes than an addition, from a chain of each."""
    calls = 64
    x = jnp.ones((2, 32))

    def chain(one):
        def run(x):
            return jax.lax.fori_loop(0, calls, lambda _, x: one(x), x)

        return jax.jit(run)

    native = chain(lambda x: sj.quantize(x, sj.ScalingMode.MXFP8_1D_SCALING).data.astype(jnp.float32))
    plain = chain(lambda x: (x + 1).astype(jnp.float8_e4m3fn).astype(jnp.float32))
    difference = _seconds(native, (x,), 5 * repeats) - _seconds(plain, (x,), 5 * repeats)
    return difference / calls * 1e6
