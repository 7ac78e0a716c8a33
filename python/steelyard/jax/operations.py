"""quantize, dequantize and dot on arrays and quantized tensors."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from steelyard.errors import RecipeError, shown
from steelyard.formats.schemes import Scheme
from steelyard.jax import grouped_primitives, primitives
from steelyard.jax.arguments import as_floats, as_high_precision, check_array, check_flag, check_source
from steelyard.jax.copies import CopySpec
from steelyard.jax.random import random_words
from steelyard.jax.scaling_modes import ScalingMode, flatten
from steelyard.jax.tensor import (
    AbstractBaseTensor,
    AbstractBaseTensor1x,
    GroupedScaledTensor1x,
    NoScaleTensor,
    ScaledTensor1x,
    ScaledTensor2x,
)


def quantize(
    x: jax.Array,
    scaling_mode: ScalingMode = ScalingMode.CURRENT_TENSOR_SCALING,
    *,
    q_dtype: Any = None,
    rowwise: bool = True,
    colwise: bool = False,
    flatten_axis: int = -1,
    dq_dtype: Any = None,
    scale: jax.Array | None = None,
    amax: jax.Array | None = None,
    key: jax.Array | None = None,
    group_sizes: jax.Array | None = None,
    **options,
) -> AbstractBaseTensor:
    """Quantize an array as a matrix whose rows are the dims before `flatten_axis`.

    `scale` is the scale of a delayed mode, `amax` an amax that is already reduced, and `key` a PRNG key for
    `rounding="stochastic"`. With `group_sizes` (int32, the rows of each group), each group has scales of its own.
    `options` are those of a scheme: `rule`, `epsilon`, `power_of_two`, `rht`, `rounding`, `four_over_six`.
    """
    if not isinstance(scaling_mode, ScalingMode):
        raise RecipeError(f"scaling_mode must be a ScalingMode, got {shown(scaling_mode)}")
    check_source(x, "x")
    check_flag(rowwise, "rowwise")
    check_flag(colwise, "colwise")
    if dq_dtype is not None:
        as_high_precision(dq_dtype, "dq_dtype")
    if scaling_mode is ScalingMode.NO_SCALING:
        return NoScaleTensor(x, amax)
    row, col = (
        scaling_mode.scheme(q_dtype, is_colwise=columnwise, **options) if wanted else None
        for wanted, columnwise in ((rowwise, False), (colwise, True))
    )
    words = None if key is None else random_words(key)
    if group_sizes is not None:
        if amax is not None:
            raise RecipeError("amax must be None with group_sizes: each group has its own; got one")
        return quantize_groups(x, group_sizes, row, col, scale=scale, rng=words, dq_dtype=dq_dtype)
    return quantize_with(x, row, col, scale=scale, amax=amax, rng=words, flatten_axis=flatten_axis, dq_dtype=dq_dtype)


def quantize_with(
    x: jax.Array,
    row: Scheme | None,
    col: Scheme | None,
    *,
    scale=None,
    amax=None,
    rng=None,
    flatten_axis=-1,
    dq_dtype=None,
) -> ScaledTensor1x | ScaledTensor2x:
    """The copies of an array by schemes, at least one; `rng`: four words, seed and offset."""
    schemes = [each for each in (row, col) if each is not None]
    if not schemes:
        raise RecipeError("rowwise or colwise must be True, got neither")
    matrix = flatten(x.shape, flatten_axis)
    _check_operands(schemes, scale, rng)
    scale = None if scale is None else as_floats(scale, "scale").reshape(())
    amaxes = [None if s is None else _given_amax(amax, CopySpec(s, c, matrix)) for s, c in ((row, False), (col, True))]
    if not any(scheme.rounding == "stochastic" for scheme in schemes):
        rng = None
    pair = primitives.quantize(
        x.reshape(matrix), row, col, scale=scale, row_amax=amaxes[0], col_amax=amaxes[1], rng=rng
    )
    tensors = [
        ScaledTensor1x.from_parts(
            parts,
            CopySpec(scheme, columnwise, matrix),
            x.shape,
            x.dtype if dq_dtype is None else dq_dtype,
            flatten_axis,
        )
        for parts, scheme, columnwise in zip(pair, (row, col), (False, True), strict=True)
        if parts is not None and scheme is not None
    ]
    return tensors[0] if len(tensors) == 1 else ScaledTensor2x(*tensors)


def quantize_groups(
    x: jax.Array, group_sizes, row: Scheme | None, col: Scheme | None, *, scale=None, rng=None, dq_dtype=None
) -> GroupedScaledTensor1x | ScaledTensor2x:
    """The copies of a matrix whose rows belong to groups; `scale`: one for all groups, or one per group."""
    schemes = [each for each in (row, col) if each is not None]
    if not schemes:
        raise RecipeError("rowwise or colwise must be True, got neither")
    sizes = check_groups(x, group_sizes)
    matrix = x.shape[0], x.shape[1]
    if any(scheme.source == "delayed" for scheme in schemes) and scale is None:
        raise RecipeError("scale must be given for DELAYED_TENSOR_SCALING, got None; pass the state's scale")
    _check_operands([scheme for scheme in schemes if scheme.source != "delayed"], None, rng)
    scale = None if scale is None else _scale_per_group(scale, sizes.shape)
    pair = grouped_primitives.quantize(x, sizes, row, col, scale=scale, rng=rng)
    tensors = [
        GroupedScaledTensor1x.from_grouped_parts(
            parts, CopySpec(scheme, columnwise, matrix), sizes, x.dtype if dq_dtype is None else dq_dtype
        )
        for parts, scheme, columnwise in zip(pair, (row, col), (False, True), strict=True)
        if parts is not None and scheme is not None
    ]
    return tensors[0] if len(tensors) == 1 else ScaledTensor2x(*tensors)


def check_groups(x: Any, group_sizes: Any) -> jax.Array:
    """The sizes of the groups of a matrix's rows, as int32."""
    if x.ndim != 2:
        raise RecipeError(f"x must be a matrix with group_sizes, got shape {tuple(x.shape)}")
    is_list = isinstance(group_sizes, list | tuple) and all(isinstance(size, int) for size in group_sizes)
    if not is_list:
        check_array(group_sizes, "group_sizes")
    sizes = jnp.asarray(group_sizes)
    if sizes.ndim != 1 or sizes.shape[0] == 0 or not jnp.issubdtype(sizes.dtype, jnp.integer):
        raise RecipeError(f"group_sizes must be a vector of integers, got {sizes.dtype} of shape {tuple(sizes.shape)}")
    return sizes.astype(jnp.int32)


def _scale_per_group(scale: Any, shape: tuple[int, ...]) -> jax.Array:
    scale = as_floats(scale, "scale")
    if scale.size != 1 and scale.shape != shape:
        raise RecipeError(f"scale must be one value, or one per group {shape}, got shape {scale.shape}")
    return jnp.broadcast_to(scale.reshape(()) if scale.size == 1 else scale, shape)


def _check_operands(schemes: list[Scheme], scale, rng) -> None:
    if any(scheme.source == "delayed" for scheme in schemes) and scale is None:
        raise RecipeError("scale must be given for DELAYED_TENSOR_SCALING, got None; pass the state's scale")
    if scale is not None and as_floats(scale, "scale").size != 1:
        raise RecipeError(f"scale must be one value, got shape {jnp.shape(scale)}")
    if any(scheme.rounding == "stochastic" for scheme in schemes) and rng is None:
        raise RecipeError("key must be given for stochastic rounding, got None; pass a key of jax.random")


def _given_amax(amax, spec: CopySpec) -> jax.Array | None:
    _, _, *amax_type = spec.part_types()
    if amax is None or not amax_type:
        return None
    shape = amax_type[0][0]
    amax = as_floats(amax, "amax")
    if amax.size != math.prod(shape):
        raise RecipeError(f"amax must have shape {shape} here, got {amax.shape}")
    return amax.reshape(shape)


def dequantize(tensor: AbstractBaseTensor) -> jax.Array:
    """The values of a tensor in high precision."""
    if not isinstance(tensor, AbstractBaseTensor):
        raise RecipeError(f"tensor must be a tensor of steelyard.jax, got {type(tensor).__name__}")
    return tensor.dequantize()


def dot(lhs: AbstractBaseTensor, rhs: AbstractBaseTensor, *, bias: jax.Array | None = None, out_dtype: Any = None):
    """`lhs @ rhs (+ bias)`: contracts the last dims of `lhs` with the first of `rhs`, on the copies that a GEMM reads.

    If no GEMM takes the two schemes together, the operands are multiplied in high precision.
    """
    for name, operand in (("lhs", lhs), ("rhs", rhs)):
        if not isinstance(operand, AbstractBaseTensor):
            raise RecipeError(
                f"{name} must be a tensor of steelyard.jax, got {type(operand).__name__}; quantize it first"
            )
    if bias is not None:
        check_array(bias, "bias")
    out_dtype = None if out_dtype is None else as_high_precision(out_dtype, "out_dtype")
    left, right = lhs.get_tensor(is_colwise=False), rhs.get_tensor(is_colwise=True)
    return product(left, right, bias=bias, out_dtype=out_dtype)


def product(a: AbstractBaseTensor1x, b: AbstractBaseTensor1x, *, bias=None, out_dtype: Any = None) -> jax.Array:
    """The product of two copies, each reduced along the dims that it is quantized along; a's kept dims come first."""
    (a_kept, a_reduced), (b_kept, b_reduced) = _split(a, False), _split(b, True)
    if math.prod(a_reduced) != math.prod(b_reduced):
        raise RecipeError(f"operands must reduce over the same length, got {a_reduced} and {b_reduced}")
    out_dtype = jnp.dtype(_dtype_of(a) if out_dtype is None else out_dtype)
    if bias is not None and bias.shape != (math.prod(b_kept),):
        raise RecipeError(f"bias must have shape {(math.prod(b_kept),)}, got {bias.shape}")
    pair = gemm_pair(a, b)
    if pair is None:
        out = _high_precision(a, b, bias, out_dtype)
    else:
        left, right = pair
        out = primitives.gemm(left.parts, left.spec, right.parts, right.spec, bias=bias, out_dtype=out_dtype)
    return out.reshape(*a_kept, *b_kept)


def gemm_pair(a: Any, b: Any) -> tuple[ScaledTensor1x, ScaledTensor1x] | None:
    """The operands, if a scaled GEMM takes them."""
    if not (isinstance(a, ScaledTensor1x) and isinstance(b, ScaledTensor1x)):
        return None
    tiles = (a.scheme.block, b.scheme.block) == ("128x128", "128x128")
    alike = a.scheme.family == b.scheme.family and a.scheme.rht == b.scheme.rht
    return (a, b) if alike and not tiles else None


def _split(tensor: AbstractBaseTensor, is_colwise: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dims that a product keeps, and those it reduces; `is_colwise` is the usage of an unquantized operand."""
    if isinstance(tensor, ScaledTensor1x):
        first, last = tensor.shape[: tensor.flatten_axis], tensor.shape[tensor.flatten_axis :]
        return (last, first) if tensor.is_colwise else (first, last)
    return (tensor.shape[1:], tensor.shape[:1]) if is_colwise else (tensor.shape[:-1], tensor.shape[-1:])


def _dtype_of(tensor: AbstractBaseTensor1x):
    return tensor.dq_dtype if isinstance(tensor, ScaledTensor1x) else tensor.data.dtype


def _high_precision(a, b, bias, out_dtype) -> jax.Array:
    matrices = []
    for tensor, is_colwise in ((a, False), (b, True)):
        kept, reduced = _split(tensor, is_colwise)
        colwise = tensor.is_colwise if isinstance(tensor, ScaledTensor1x) else is_colwise
        values = tensor.dequantize()
        sizes = (math.prod(kept), math.prod(reduced))
        matrices.append(values.reshape(sizes[::-1]).T if colwise else values.reshape(sizes))
    out = jnp.matmul(matrices[0], matrices[1].T, preferred_element_type=jnp.float32)
    if bias is not None:
        out = out + bias.astype(jnp.float32)
    return out.astype(out_dtype)
