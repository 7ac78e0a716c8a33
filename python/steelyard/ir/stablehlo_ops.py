"""What passes need of the `stablehlo` dialect: products, and tensors in another order or shape."""

from dataclasses import dataclass
from math import prod
from typing import Any

from torch_mlir import ir

from steelyard.dialect.types import TensorInfo, tensor_info

GROUP_ENDS = "jax.group_ends"
"""Where groups end, from their sizes."""
TRANSPOSE, RESHAPE, DOT = "stablehlo.transpose", "stablehlo.reshape", "stablehlo.dot_general"
CONVERT = "stablehlo.convert"


@dataclass(frozen=True)
class DotDims:
    """Which dims of lhs and rhs a product has in common (batch), and which it reduces over."""

    lhs_batch: tuple[int, ...]
    rhs_batch: tuple[int, ...]
    lhs_reduced: tuple[int, ...]
    rhs_reduced: tuple[int, ...]

    def attribute(self) -> ir.Attribute:
        """The dims as `stablehlo.dot_general` spells them, in the current context."""
        return _bindings().DotDimensionNumbers.get(
            list(self.lhs_batch), list(self.rhs_batch), list(self.lhs_reduced), list(self.rhs_reduced)
        )


def dot_dims(op: ir.Operation) -> DotDims:
    """The dims of a `stablehlo.dot_general`."""
    numbers = _bindings().DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    names = ("lhs_batching", "rhs_batching", "lhs_contracting", "rhs_contracting")
    return DotDims(*(tuple(getattr(numbers, f"{name}_dimensions")) for name in names))


def _bindings() -> Any:
    # The bindings have no Python module and no stubs.
    from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]

    return _stablehlo


def permutation_of(op: ir.Operation) -> list[int]:
    """The order in which a `stablehlo.transpose` puts the dims of its operand."""
    return list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))


def permuted(value: ir.Value, order: list[int]) -> ir.Value:
    """A tensor with its dims in another order, at the current place."""
    if order == sorted(order):
        return value
    info = _info(value)
    type_ = info.with_(tuple(info.shape[dim] for dim in order)).type()
    attributes: dict[str, ir.Attribute] = {"permutation": ir.DenseI64ArrayAttr.get(order)}
    return ir.Operation.create(TRANSPOSE, [type_], [value], attributes).result


def reshaped(value: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    """A tensor with its elements, in their order, in another shape, at the current place."""
    info = _info(value)
    if info.shape == shape:
        return value
    return ir.Operation.create(RESHAPE, [info.with_(shape).type()], [value]).result


def as_matrix(value: ir.Value, rows: tuple[int, ...], columns: tuple[int, ...]) -> ir.Value:
    """A matrix whose rows are some dims of a tensor, flattened, and whose columns are the others, at the current place.

    Where only the two groups of dims change places it is the transpose of a matrix that nothing has to be moved for.
    """
    shape = static_shape(value)
    sizes = prod(shape[dim] for dim in rows), prod(shape[dim] for dim in columns)
    if [*columns, *rows] == sorted([*columns, *rows]) and columns:
        return permuted(reshaped(value, sizes[::-1]), [1, 0]) if rows else reshaped(value, sizes)
    return reshaped(permuted(value, [*rows, *columns]), sizes)


def static_shape(value: ir.Value) -> tuple[int, ...]:
    """The shape of a tensor, all of whose sizes are known."""
    return tuple(size for size in _info(value).shape if size is not None)


def _info(value: ir.Value) -> TensorInfo:
    info = tensor_info(value.type)
    assert info is not None, "operands of stablehlo are ranked tensors"
    return info
