"""A dense layer whose three GEMMs run in the formats of a recipe."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import register_pytree_node_class

from steelyard.errors import RecipeError
from steelyard.jax import explicit, random
from steelyard.jax.arguments import check_array, check_source, is_array
from steelyard.jax.nodes import Node
from steelyard.jax.operations import product
from steelyard.jax.quantizers import QuantizerSet
from steelyard.jax.tensor import AbstractBaseTensor1x, NoScaleTensor, ScaledTensor1x
from steelyard.jax.varying import largest_over, summed_over


def dense(
    x: jax.Array, kernel: jax.Array, bias: jax.Array | None = None, quantizer_set: QuantizerSet | None = None
) -> jax.Array:
    """`x @ kernel + bias`, quantized by `quantizer_set` forward and backward; kernel is [K, N], x is [..., K].

    The gradient with respect to `quantizer_set` is not a gradient but the set of the next step: its scales, amax
    histories and random state, updated. Use one set per layer.
    """
    quantizer_set = QuantizerSet() if quantizer_set is None else quantizer_set
    _check(x, kernel, bias, quantizer_set)
    y = _dense(explicit.reshaped(x, (-1, x.shape[-1])), kernel, bias, quantizer_set)
    return explicit.reshaped(y, (*x.shape[:-1], kernel.shape[1]))


def _check(x, kernel, bias, quantizer_set) -> None:
    check_source(x[None] if is_array(x) and x.ndim == 1 else x, "x")
    check_source(kernel, "kernel")
    if kernel.ndim != 2 or x.shape[-1] != kernel.shape[0]:
        raise RecipeError(f"kernel must be [K, N] with the K of x, {x.shape[-1]}; got shape {tuple(kernel.shape)}")
    if bias is not None:
        check_array(bias, "bias")
    if bias is not None and tuple(jnp.shape(bias)) != kernel.shape[1:]:
        raise RecipeError(f"bias must have shape {kernel.shape[1:]}, got {tuple(jnp.shape(bias))}")
    if not isinstance(quantizer_set, QuantizerSet):
        raise RecipeError(
            f"quantizer_set must be a QuantizerSet, got {type(quantizer_set).__name__}; use QuantizerSet.from_recipe"
        )


@register_pytree_node_class
class _Like(Node):
    """An input without its values: the dtype, and over which devices it varies or is split as a part of its type."""

    leaves = ("empty",)
    static = ("sharding",)

    empty: jax.Array
    sharding: Any

    def __init__(self, empty: jax.Array, sharding: Any):
        self.empty, self.sharding = empty, sharding

    @property
    def dtype(self) -> Any:
        return self.empty.dtype

    def gradient(self, value: jax.Array) -> jax.Array:
        """The gradient of the input, from those of all devices."""
        return explicit.placed_as(summed_over(value, self.empty), self)


class _Saved(NamedTuple):
    """What the backward reads."""

    x: AbstractBaseTensor1x
    kernel: AbstractBaseTensor1x
    quantizers: QuantizerSet
    amaxes: tuple[jax.Array | None, jax.Array | None]
    x_like: _Like
    kernel_like: _Like
    bias_like: _Like | None


@jax.custom_vjp
def _dense(x, kernel, bias, quantizers):
    quantized_x, _ = quantizers.x.quantize(x, colwise=False)
    _, quantized_kernel = quantizers.kernel.quantize(kernel, rowwise=False)
    return product(quantized_x, quantized_kernel, bias=bias, out_dtype=x.dtype)


def _forward(x, kernel, bias, quantizers: QuantizerSet):
    both = quantizers.backward == "normal"
    x_row, x_col = quantizers.x.quantize(x, colwise=both)
    kernel_row, kernel_col = quantizers.kernel.quantize(kernel, rowwise=both)
    y = product(x_row, kernel_col, bias=bias, out_dtype=x.dtype)
    saved_x, saved_kernel = {
        "normal": (x_col, kernel_row),
        "high_precision": (NoScaleTensor(x), NoScaleTensor(kernel)),
        "dequantized": (x_row, kernel_col),
    }[quantizers.backward]
    amaxes = _amax(x_row, x_col), _amax(kernel_row, kernel_col)
    likes = _like(x), _like(kernel), None if bias is None else _like(bias)
    return y, _Saved(saved_x, saved_kernel, quantizers, amaxes, *likes)


def _backward(saved: _Saved, dy: jax.Array):
    quantizers = saved.quantizers
    x, kernel = saved.x, saved.kernel
    if quantizers.backward == "dequantized":
        x, kernel = NoScaleTensor(x.dequantize()), NoScaleTensor(kernel.dequantize())
    rng = None if quantizers.random_state is None else random.state_words(quantizers.random_state)
    dy_row, dy_col = quantizers.dgrad.quantize(dy, rng=rng)
    dx = product(dy_row, _transposed(kernel), out_dtype=saved.x_like.dtype)
    dkernel = product(_transposed(x), dy_col, out_dtype=saved.kernel_like.dtype)
    dx, dkernel = saved.x_like.gradient(dx), saved.kernel_like.gradient(dkernel)
    dbias = None
    if saved.bias_like is not None:
        dbias = saved.bias_like.gradient(jnp.sum(dy, axis=0, dtype=jnp.float32)).astype(saved.bias_like.dtype)
    amaxes = (*saved.amaxes, _amax(dy_row, dy_col))
    state = (quantizers.x.scale, quantizers.kernel.scale, quantizers.dgrad.scale)
    pairs = zip(amaxes, state, strict=True)
    whole = [amax if amax is None or scale is None else largest_over(amax, scale) for amax, scale in pairs]
    return dx, dkernel, dbias, quantizers.updated(*whole)


_dense.defvjp(_forward, _backward)


def _like(array: jax.Array) -> _Like:
    return _Like(explicit.gathered(array).reshape(-1)[:0], jax.typeof(array).sharding)


def _transposed(tensor: AbstractBaseTensor1x) -> AbstractBaseTensor1x:
    """An operand of a backward product, which reduces over the other dim. A quantized one is already the right copy."""
    return tensor if isinstance(tensor, ScaledTensor1x) else NoScaleTensor(tensor.dequantize().T)


def _amax(row: AbstractBaseTensor1x, col: AbstractBaseTensor1x) -> jax.Array | None:
    """The amax of the tensor, from a copy that has it."""
    for copy in (row, col):
        if isinstance(copy, ScaledTensor1x) and copy.scheme.family == "tensor":
            return copy.amax
    return None
