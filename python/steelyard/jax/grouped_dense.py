"""A dense layer with one kernel per group of rows, for mixtures of experts."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from steelyard.errors import RecipeError
from steelyard.jax import grouped_layout, grouped_primitives, random, reference, softfloat
from steelyard.jax.arguments import check_array, check_source
from steelyard.jax.operations import check_groups, gemm_pair
from steelyard.jax.quantizers import QuantizerSet
from steelyard.jax.tensor import AbstractBaseTensor, ScaledTensor1x


def grouped_dense(
    x: jax.Array,
    kernel: jax.Array,
    group_sizes: jax.Array,
    bias: jax.Array | None = None,
    quantizer_set: QuantizerSet | None = None,
) -> jax.Array:
    """`x[rows of g] @ kernel[g] + bias[g]` for each group; x is [M, K], kernel [G, K, N], bias [G, N].

    Group sizes may be traced; rows beyond the last group give zeros. The gradient with respect to `quantizer_set` is
    the set of the next step, as for `dense`.
    """
    quantizer_set = QuantizerSet() if quantizer_set is None else quantizer_set
    check_source(x, "x")
    check_source(kernel, "kernel")
    sizes = check_groups(x, group_sizes)
    if kernel.ndim != 3 or kernel.shape[:2] != (sizes.shape[0], x.shape[1]):
        expected = f"[{sizes.shape[0]}, {x.shape[1]}, N]"
        raise RecipeError(f"kernel must be {expected}: a matrix per group, got shape {tuple(kernel.shape)}")
    if bias is not None:
        check_array(bias, "bias")
    if bias is not None and tuple(jnp.shape(bias)) != (kernel.shape[0], kernel.shape[2]):
        raise RecipeError(f"bias must have shape {(kernel.shape[0], kernel.shape[2])}, got {tuple(jnp.shape(bias))}")
    if not isinstance(quantizer_set, QuantizerSet):
        raise RecipeError(f"quantizer_set must be a QuantizerSet, got {type(quantizer_set).__name__}")
    return _grouped_dense(x, kernel, sizes, bias, quantizer_set)


class _Saved(NamedTuple):
    """What the backward reads; empty arrays carry dtypes."""

    x: Any
    kernel: Any
    sizes: jax.Array
    quantizers: QuantizerSet
    amaxes: tuple[jax.Array | None, jax.Array | None]
    x_like: jax.Array
    kernel_like: jax.Array
    bias_like: jax.Array | None


@jax.custom_vjp
def _grouped_dense(x, kernel, sizes, bias, quantizers):
    return _forward(x, kernel, sizes, bias, quantizers)[0]


def _forward(x, kernel, sizes, bias, quantizers: QuantizerSet):
    both = quantizers.backward == "normal"
    x_row, x_col = quantizers.x.quantize_groups(x, sizes, colwise=both)
    kernel_row, kernel_col = jax.vmap(lambda each: quantizers.kernel.quantize(each, rowwise=both))(kernel)
    y = _product(x_row, kernel_col, sizes, bias, x.dtype)
    saved_x, saved_kernel = {
        "normal": (x_col, kernel_row),
        "high_precision": (x, kernel),
        "dequantized": (x_row, kernel_col),
    }[quantizers.backward]
    amaxes = _amax(x_row, x_col), _amax(kernel_row, kernel_col)
    bias_like = None if bias is None else jnp.zeros((0,), bias.dtype)
    x_like, kernel_like = jnp.zeros((0,), x.dtype), jnp.zeros((0,), kernel.dtype)
    return y, _Saved(saved_x, saved_kernel, sizes, quantizers, amaxes, x_like, kernel_like, bias_like)


def _backward(saved: _Saved, dy: jax.Array):
    quantizers, sizes = saved.quantizers, saved.sizes
    rng = None if quantizers.random_state is None else random.state_words(quantizers.random_state)
    dy_row, dy_col = quantizers.dgrad.quantize_groups(dy, sizes, rng=rng)
    operands = gemm_pair(saved.x, dy_col)
    if operands is not None and gemm_pair(dy_row, saved.kernel) is not None:
        dx = _product(dy_row, saved.kernel, sizes, None, saved.x_like.dtype)
        x, dy_copy = operands
        dkernel = grouped_primitives.gemm(
            x.parts, x.spec, dy_copy.parts, dy_copy.spec, sizes, both=True, out_dtype=saved.kernel_like.dtype
        )
    else:
        _, pull = jax.vjp(lambda x, kernel: jax.lax.ragged_dot(x, kernel, sizes), _plain(saved.x), _plain(saved.kernel))
        dx, dkernel = pull(dy.astype(jnp.result_type(saved.x_like, saved.kernel_like)))
        dx, dkernel = dx.astype(saved.x_like.dtype), dkernel.astype(saved.kernel_like.dtype)
    updated = quantizers.updated(saved.amaxes[0], saved.amaxes[1], _amax(dy_row, dy_col))
    return dx, dkernel, None, _bias_gradient(dy, sizes, saved.bias_like), updated


_grouped_dense.defvjp(_forward, _backward)


def _product(a, b, sizes, bias, out_dtype) -> jax.Array:
    """A product of a grouped copy with a batched one, or in high precision."""
    operands = gemm_pair(a, b)
    if operands is not None:
        rows, kernels = operands
        return grouped_primitives.gemm(
            rows.parts,
            rows.spec,
            _batched_parts(kernels),
            kernels.spec,
            sizes,
            both=False,
            bias=bias,
            out_dtype=out_dtype,
        )
    y = jax.lax.ragged_dot(_plain(a), _plain(b), sizes, preferred_element_type=jnp.float32)
    if bias is not None:
        group = grouped_layout.group_of_rows(sizes, y.shape[0])
        y = y + jnp.concatenate([bias, jnp.zeros_like(bias[:1])]).astype(jnp.float32)[group]
    return y.astype(out_dtype)


def _batched_parts(tensor: ScaledTensor1x):
    return jax.vmap(lambda each: each.parts)(tensor)


def _plain(tensor: AbstractBaseTensor | jax.Array) -> jax.Array:
    if isinstance(tensor, jax.Array):
        return tensor
    batched = isinstance(tensor, ScaledTensor1x) and tensor.codes.ndim > tensor.ndim
    return jax.vmap(lambda each: each.dequantize())(tensor) if batched else tensor.dequantize()


def _bias_gradient(dy, sizes, bias_like) -> jax.Array | None:
    if bias_like is None:
        return None
    group = grouped_layout.group_of_rows(sizes, dy.shape[0])
    sums = jax.ops.segment_sum(dy.astype(jnp.float32), group, num_segments=sizes.shape[0] + 1)
    return sums[:-1].astype(bias_like.dtype)


def _amax(row: AbstractBaseTensor, col: AbstractBaseTensor) -> jax.Array | None:
    """The largest amax of all groups, compared as bits, so that NaN is the largest."""
    for copy in (row, col):
        if isinstance(copy, ScaledTensor1x) and copy.scheme.family == "tensor" and copy.amax is not None:
            return softfloat.floats_of(reference.amax_of(softfloat.bits_of(copy.amax)))
    return None
