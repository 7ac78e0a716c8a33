"""`scaled-raise-gemms`."""

from collections.abc import Callable
from dataclasses import dataclass

from torch_mlir import ir

from steelyard.dialect.grouped import grouped_matmul
from steelyard.dialect.matmul import matmul
from steelyard.dialect.types import TensorInfo
from steelyard.formats.dtypes import FLOAT_DTYPES
from steelyard.formats.gemms import KINDS
from steelyard.ir.attributes import HIGH_PRECISION, KIND, SWAPPED
from steelyard.ir.locations import flops_of, layer_of
from steelyard.ir.stablehlo_ops import GROUP_ENDS, as_matrix, dot_dims, permuted, reshaped, static_shape
from steelyard.ir.torch_ops import (
    cast,
    constant_number,
    contiguous,
    erase_unused_views,
    info_of,
    is_none,
    op_name,
    parameter_of,
    transpose_last,
    walk_ops,
    with_first,
    without_first,
)
from steelyard.passes.apply_recipe import BATCHED, NO_PARAMETER
from steelyard.passes.pipeline.registry import fail, register_pass
from steelyard.passes.support.gemm_kinds import tell_kinds


class NotRaisedError(Exception):
    """A GEMM that cannot become a `scaled.matmul`; the message is the reason that is reported."""


@register_pass
def raise_gemms(module: ir.Operation) -> None:
    """Find the GEMMs, however the model spells them.

    Takes the `torch` dialect, or `stablehlo` and the `jax` ops around it. Leaves each linear, addmm, mm, bmm and matmul
    as a `scaled.matmul` that reads its second operand as [N, K], through the transpose that made it [K, N] if there is
    one. The layer's name comes from the location. No later pass looks at the spellings of a frontend.

    A `stablehlo.dot_general` without batch dims becomes the product of two matrices, of the kind and in the layer that
    the frontend knows (`scaled.kind`). Without that, it is a product with a parameter, whose name names the layer. A
    `jax.ragged_dot_general` becomes a `scaled.grouped_matmul`.

    A bmm with one batch entry, which is what an einsum with a parameter becomes, has no batch dims. A parameter on the
    left becomes the second operand of the transposed product. The products of experts, by torch's grouped_mm or by that
    of transformers, become `scaled.grouped_matmul`, whose layer is named after the parameter: the two of a module are
    told apart so.

    In a function with tangents (`scaled.tangent`), the product of a gradient and a parameter is a dgrad, and the
    product of a gradient and the input of its layer's GEMM is a wgrad. What cannot be raised, and convolutions, fused
    attention and any other op that has matrix products by its location, which are not tried, get the attribute
    `scaled.high_precision` with the reason.
    """
    for op in walk_ops(module):
        name = op_name(op)
        if name in _REASONS:
            _report(op, _REASONS[name])
            continue
        raise_one = _SPELLINGS.get(name)
        if raise_one is None:
            if name.startswith(_FRONTENDS) and not name.startswith(_NO_PRODUCTS) and flops_of(op.location) is not None:
                _report(op, f"{op.name.partition('.')[0]} runs it as one op, which no recipe takes")
            continue
        try:
            with ir.InsertionPoint(op), op.location:
                result = _cast(raise_one(op), op.result.type)
        except NotRaisedError as reason:
            _report(op, str(reason))
            continue
        operands = list(op.operands)
        op.result.replace_all_uses_with(result)
        op.erase()
        for operand in operands:
            erase_unused_views(operand)
    tell_kinds(module)


def _raise_linear(op: ir.Operation) -> ir.Value:
    x, weight, bias = op.operands
    _require_rank(weight, 2)
    return _matmul(op, x, weight, bias=None if is_none(bias) else bias)


def _raise_addmm(op: ir.Operation) -> ir.Value:
    bias, lhs, rhs, beta, alpha = op.operands
    if constant_number(beta) != 1 or constant_number(alpha) != 1:
        raise NotRaisedError("addmm with alpha or beta other than 1")
    info = _float_info(bias)
    if len(info.shape) != 1:
        raise NotRaisedError(f"addmm with a bias of {len(info.shape)} dims")
    return _matmul(op, lhs, _transposed(rhs), bias=bias)


def _raise_mm(op: ir.Operation) -> ir.Value:
    return _matrix_product(op, *op.operands)


def _raise_matmul(op: ir.Operation) -> ir.Value:
    lhs, rhs = op.operands
    left, right = _float_info(lhs), _float_info(rhs)
    if len(right.shape) == 2:
        return _matrix_product(op, lhs, rhs)
    if len(left.shape) != len(right.shape) or len(left.shape) < 3 or left.shape[:-2] != right.shape[:-2]:
        raise NotRaisedError(f"matmul of {left} and {right}: batch dims broadcast, or an operand is a vector")
    return _matmul(op, lhs, _transposed(rhs), batch_dims=len(left.shape) - 2)


def _raise_bmm(op: ir.Operation) -> ir.Value:
    lhs, rhs = op.operands
    left, right = _float_info(lhs), _float_info(rhs)
    if left.shape[0] == right.shape[0] == 1:
        # What an einsum with a parameter comes to.
        return with_first(_matrix_product(op, without_first(lhs), without_first(rhs)))
    return _matmul(op, lhs, _transposed(rhs), batch_dims=1)


def _raise_dot(op: ir.Operation) -> ir.Value:
    """A product of JAX: in the order and shape of its kind, which the frontend tells where it is not that of a
    parameter and an input."""
    dims, (left, right) = dot_dims(op), op.operands
    if dims.lhs_batch:
        raise NotRaisedError(BATCHED)
    kinds, swapped = (KIND in op.attributes, SWAPPED in op.attributes)
    kind = ir.StringAttr(op.attributes[KIND]).value if kinds else "fprop"
    if not kinds:
        if not _is_weight(left) and not _is_weight(right):
            raise NotRaisedError(NO_PARAMETER)
        swapped = not _is_weight(right)
    if kind not in KINDS:
        fail(op, f"attribute '{KIND}' must be one of {', '.join(KINDS)}, got '{kind}'")
    infos = _float_info(left), _float_info(right)
    if None in infos[0].shape + infos[1].shape:
        raise NotRaisedError("a product of JAX with sizes known only at run time")
    if infos[0].dtype != infos[1].dtype:
        raise NotRaisedError(f"operands of two dtypes, {infos[0].dtype} and {infos[1].dtype}")
    sides = [_Side(left, dims.lhs_reduced), _Side(right, dims.rhs_reduced)]
    lhs, rhs = sides[::-1] if swapped else sides
    layer = layer_of(op.location) if kinds else _layer_of_parameter(rhs.value) or layer_of(op.location)
    product = matmul(
        lhs.matrix(reduced_last=kind != "wgrad"),
        rhs.matrix(reduced_last=kind == "fprop"),
        kind=kind,
        layer=layer,
        dtype=_float_info(op.result).dtype,
    ).result
    product = reshaped(product, (*lhs.kept_sizes(), *rhs.kept_sizes()))
    count, total = len(lhs.kept_sizes()), len(lhs.kept_sizes()) + len(rhs.kept_sizes())
    return permuted(product, [*range(count, total), *range(count)]) if swapped else product


def _raise_ragged(op: ir.Operation) -> ir.Value:
    """The products of experts of JAX, whose groups are known by their sizes, of a kind that the frontend tells."""
    if KIND not in op.attributes:
        raise NotRaisedError(NO_PARAMETER)
    kind, is_swapped = ir.StringAttr(op.attributes[KIND]).value, SWAPPED in op.attributes
    left, right, sizes = op.operands
    infos, groups = (_float_info(left), _float_info(right)), info_of(sizes)
    if kind not in KINDS or groups is None or len(infos[0].shape) != 2:
        fail(op, f"attribute '{KIND}' must be that of a product of experts, got '{kind}' of {left.type}")
    if infos[0].dtype != infos[1].dtype:
        raise NotRaisedError(f"operands of two dtypes, {infos[0].dtype} and {infos[1].dtype}")
    ends = _group_ends(sizes, infos[0].group_ends(groups.shape[0]).type())
    layer, dtype = layer_of(op.location), _float_info(op.result).dtype
    if kind != "wgrad":
        return grouped_matmul(left, transpose_last(right), ends, kind=kind, layer=layer, dtype=dtype).result
    dy, x = (right, left) if is_swapped else (left, right)
    product = grouped_matmul(dy, x, ends, kind=kind, layer=layer, dtype=dtype).result
    return transpose_last(product) if is_swapped else product


def _group_ends(sizes: ir.Value, type_: ir.Type) -> ir.Value:
    """Where groups of these sizes end: one value for all products of a function, so that they share what they read."""
    known = [use.owner.operation for use in sizes.uses if use.owner.operation.name == GROUP_ENDS]
    # Products are raised in their order, so one that is there stands before this one.
    return known[0].result if known else ir.Operation.create(GROUP_ENDS, [type_], [sizes]).result


@dataclass(frozen=True)
class _Side:
    """An operand of a `stablehlo.dot_general` without batch dims."""

    value: ir.Value
    reduced: tuple[int, ...]

    def matrix(self, *, reduced_last: bool) -> ir.Value:
        kept = self._kept()
        return as_matrix(self.value, kept, self.reduced) if reduced_last else as_matrix(self.value, self.reduced, kept)

    def kept_sizes(self) -> tuple[int, ...]:
        shape = static_shape(self.value)
        return tuple(shape[dim] for dim in self._kept())

    def _kept(self) -> tuple[int, ...]:
        return tuple(dim for dim in range(len(static_shape(self.value))) if dim not in self.reduced)


def _layer_of_parameter(value: ir.Value) -> str:
    name = parameter_of(value) or ""
    return name.rpartition(".")[0] or name


def _raise_grouped(op: ir.Operation) -> ir.Value:
    """x w_e for the rows of each expert, or x_e^T y_e for the columns of x and the rows of y of each."""
    lhs, rhs, ends, *options = op.operands
    left, right = _float_info(lhs), _float_info(rhs)
    if left.dtype != right.dtype:
        raise NotRaisedError(f"operands of two dtypes, {left.dtype} and {right.dtype}")
    if len(left.shape) != 2 or not all(map(is_none, options)):
        raise NotRaisedError(f"a grouped product of {left} and {right}, with {len(options)} options: a bias, a dtype")
    if len(right.shape) == 3 and (None in right.shape or parameter_of(rhs) is None):
        raise NotRaisedError("a grouped product whose weights are not those of a parameter")
    if (info := info_of(ends)) is None or info.dtype not in ("si32", "si64") or info.shape[0] in (None, 0):
        raise NotRaisedError(f"a grouped product whose groups end at {ends.type}")
    ends = cast(ends, "si32") if info.dtype == "si64" else ends
    dtype = _float_info(op.result).dtype
    if len(right.shape) == 2:
        return grouped_matmul(
            _transposed(lhs), rhs, ends, kind="wgrad", layer=layer_of(op.location), dtype=dtype
        ).result
    layer = parameter_of(rhs) or layer_of(op.location)
    return grouped_matmul(lhs, _transposed(rhs), ends, kind="fprop", layer=layer, dtype=dtype).result


_SPELLINGS: dict[str, Callable[[ir.Operation], ir.Value]] = {
    "torch.aten.linear": _raise_linear,
    "torch.aten.addmm": _raise_addmm,
    "torch.aten.mm": _raise_mm,
    "torch.aten.matmul": _raise_matmul,
    "torch.aten.bmm": _raise_bmm,
    "torch.aten._grouped_mm": _raise_grouped,
    "torch.transformers.grouped_mm_fallback": _raise_grouped,
    "torch.steelyard.grouped_mm": _raise_grouped,
    "stablehlo.dot_general": _raise_dot,
    "jax.ragged_dot_general": _raise_ragged,
}
_FRONTENDS = ("torch.", "jax.")
# What the frontend makes for the arguments of an op has the op's location.
_NO_PRODUCTS = (
    "torch.constant.",
    "torch.prim.",
    "torch.derefine",
    "torch.aten.size",
    "torch.aten.Int",
    "torch.vtensor.",
)
_RECURRENT = "torch runs the recurrent layer as one fused op"
_FUSED_LAYER = "torch runs the layer as one fused op"
_CONVOLUTION = "convolutions stay in high precision"
_ATTENTION = "attention is one fused op, whose products have no parameter operand"
_REASONS = {
    "torch.aten.convolution": _CONVOLUTION,
    "jax.conv_general_dilated": _CONVOLUTION,
    "stablehlo.convolution": _CONVOLUTION,
    "torch.aten.convolution_backward": _CONVOLUTION,
    "torch.aten.conv2d": _CONVOLUTION,
    "torch.aten.baddbmm": "baddbmm adds a whole tensor, which no GEMM kernel takes",
    "torch.aten.einsum": "an einsum that was not decomposed",
    "torch.aten.mv": "a product with a vector",
    "torch.aten.mkldnn_rnn_layer": _RECURRENT,
    "torch.aten.mkldnn_rnn_layer_backward": _RECURRENT,
    "torch.aten._transformer_encoder_layer_fwd": _FUSED_LAYER,
    "torch.aten._native_multi_head_attention": _FUSED_LAYER,
    "torch.aten.scaled_dot_product_attention": _ATTENTION,
    "torch.aten._scaled_dot_product_flash_attention_for_cpu": _ATTENTION,
    "torch.aten._scaled_dot_product_flash_attention_for_cpu_backward": _ATTENTION,
}


def _matrix_product(op: ir.Operation, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    """lhs rhs; where lhs is the weight, as the transpose of rhs^T lhs^T, so that recipes see the roles as they are."""
    if not _is_weight(lhs) or _is_weight(rhs) or len(_float_info(lhs).shape) != 2:
        return _matmul(op, lhs, _transposed(rhs))
    product = transpose_last(_matmul(op, _transposed(rhs), lhs))
    return contiguous(product)


def _is_weight(value: ir.Value) -> bool:
    return parameter_of(value) is not None


def _matmul(
    op: ir.Operation, lhs: ir.Value, rhs: ir.Value, *, batch_dims: int = 0, bias: ir.Value | None = None
) -> ir.Value:
    left, right = _float_info(lhs), _float_info(rhs)
    if left.dtype != right.dtype:
        raise NotRaisedError(f"operands of two dtypes, {left.dtype} and {right.dtype}")
    result = _float_info(op.result)
    layer = layer_of(op.location)
    return matmul(lhs, rhs, kind="fprop", layer=layer, batch_dims=batch_dims, bias=bias, dtype=result.dtype).result


def _cast(value: ir.Value, type_: ir.Type) -> ir.Value:
    if value.type == type_:
        return value
    # A size that inference knows and the frontend does not, or the other way round: the same tensor at run time.
    return ir.Operation.create("torch.tensor_static_info_cast", results=[type_], operands=[value]).result


def _transposed(rhs: ir.Value) -> ir.Value:
    _float_info(rhs)
    return transpose_last(rhs)


def _float_info(value: ir.Value) -> TensorInfo:
    info = info_of(value)
    if info is None:
        raise NotRaisedError(f"an operand of type {value.type}: recipes take tensors of f32, bf16 and f16")
    if info.dtype not in FLOAT_DTYPES:
        raise NotRaisedError(f"operands of {info.dtype}: recipes take f32, bf16 and f16")
    return info


def _require_rank(value: ir.Value, rank: int) -> None:
    info = _float_info(value)
    if len(info.shape) != rank:
        raise NotRaisedError(f"a weight of {len(info.shape)} dims")


def _report(op: ir.Operation, reason: str) -> None:
    op.attributes[HIGH_PRECISION] = ir.StringAttr.get(reason)
