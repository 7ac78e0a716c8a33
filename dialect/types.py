"""Tensor types: `!scaled.tensor`, and one way to read and make the tensor types of every frontend.

`!torch.vtensor` comes back from the bindings as a type without accessors, so its text is read here, once a type.
"""

import re
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from torch_mlir import ir

from steelyard.dialect.attributes import SchemeAttr
from steelyard.dialect.base import Scaled, require
from steelyard.dialect.remembered import remembered
from steelyard.errors import ConstraintError
from steelyard.formats.dtypes import FLOAT_DTYPES
from steelyard.formats.schemes import Scheme

Shape = tuple[int | None, ...]
"""Sizes; None where a size is known only at run time."""


@dataclass(frozen=True)
class TensorInfo:
    """What a plain tensor type says."""

    namespace: str
    """Whose tensor it is: `builtin` for `tensor`, `torch` for `!torch.vtensor`."""
    shape: Shape
    dtype: str
    """The element type's name in MLIR, as in f32 or si64."""

    def with_(self, shape: Shape, dtype: str | None = None) -> "TensorInfo":
        """The same kind of tensor with another shape, and another dtype where one is given."""
        return replace(self, shape=shape, dtype=dtype or self.dtype)

    def random_state(self) -> "TensorInfo":
        """The seed and offset of stochastic rounding, beside this tensor."""
        return self.with_((2,), "si64" if self.namespace == "torch" else "i64")

    def counter(self) -> "TensorInfo":
        """A whole number, beside this tensor."""
        return self.random_state().with_(())

    def group_ends(self, groups: int | None) -> "TensorInfo":
        """Where each of some groups ends, beside this tensor."""
        return self.with_((groups,), "si32" if self.namespace == "torch" else "i32")

    def __str__(self) -> str:
        if self.namespace == "torch":
            return f"!torch.vtensor<{format_shape(self.shape)},{self.dtype}>"
        return "tensor<" + "".join("?x" if size is None else f"{size}x" for size in self.shape) + f"{self.dtype}>"

    def type(self) -> ir.Type:
        """The type, in the current context."""
        return _make_plain_type(self, ir.Context.current)


class TensorType(Scaled.Type, name="tensor"):
    """A quantized tensor with a rowwise and/or a columnwise copy.

    `!scaled.tensor<2x?x64xbf16, #mxfp8_1x32, #mxfp8_32x1>`: the shape and high-precision dtype it stands for, the
    scheme of its rowwise copy and that of its columnwise copy. The two may differ. `none` stands for a copy that is not
    there, and a columnwise copy that is not there is left out: `!scaled.tensor<2x?x64xbf16, #mxfp8_1x32>`. In full it
    is `!scaled.tensor<tensor<2x?x64xbf16>, #row, #col>`. One SSA value until storage is lowered.

    `!scaled.tensor<?x64xbf16 in 8, #mxfp8_1x32>` is a tensor in 8 groups, each quantized as a matrix of its own: the
    rows of a matrix, in groups whose ends are known only at run time, or the matrices of a stack, one per expert, or
    one per trip of a loop and of those around it. In full it is
    `!scaled.tensor<tensor<?x64xbf16, 8 : i64>, #row, none>`.

    Constraints:
    - tensor_c1: the first parameter is a ranked tensor of f32, bf16 or f16 with at least one dim
    - tensor_c2: row and col are `#scaled.scheme` or `none`, and at least one is a scheme
    - tensor_c3: 1x32 blocks of FP8 are rowwise, 32x1 blocks columnwise
    - tensor_c4: the random Hadamard transform is on the columnwise copy only
    - tensor_c5: a second level per row is on the rowwise copy only
    - tensor_c6: a tensor in groups has at least one, is a matrix or a stack of one matrix per group, of known size but
      for the rows of a matrix, and no user's own quantizer made it
    """

    base: ir.TypeAttr
    row: Any
    col: Any

    @property
    def info(self) -> "ScaledInfo":
        """What the type says, verified; raises `ConstraintError`."""
        return _scaled_info(self)


@dataclass(frozen=True)
class ScaledInfo:
    """What a `!scaled.tensor` says."""

    shape: Shape
    dtype: str
    row: Scheme | None
    col: Scheme | None
    groups: int = 0
    """How many groups are quantized as matrices of their own; 0 where the tensor is quantized as a whole."""

    def copy_of(self, usage: str) -> Scheme | None:
        """The scheme of the `rowwise` or `columnwise` copy."""
        return self.row if usage == "rowwise" else self.col

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        """The schemes of the copies there are."""
        return tuple(scheme for scheme in (self.row, self.col) if scheme is not None)

    def with_schemes(self, row: Scheme | None, col: Scheme | None) -> "ScaledInfo":
        """The same tensor with other copies."""
        return replace(self, row=row, col=col)

    def stacked(self, count: int) -> "ScaledInfo":
        """A stack of matrices like this one, or of stacks of them, each matrix quantized by itself."""
        return replace(self, shape=(count, *self.shape), groups=count * max(self.groups, 1))

    def agrees_with(self, other: "ScaledInfo") -> bool:
        """Whether both can be the same tensor at run time, with the same copies."""
        same = (self.dtype, self.row, self.col, self.groups) == (other.dtype, other.row, other.col, other.groups)
        return same and shapes_agree(self.shape, other.shape)

    def type(self) -> ir.Type:
        """The type, in the current context."""
        return _make_scaled_type(self, ir.Context.current)


@remembered
def _make_plain_type(info: TensorInfo, context: ir.Context) -> ir.Type:
    return ir.Type.parse(str(info), context)


@remembered
def _make_scaled_type(info: ScaledInfo, context: ir.Context) -> TensorType:
    with context:
        plain = TensorInfo("builtin", info.shape, info.dtype)
        base = ir.Type.parse(f"{str(plain)[:-1]}, {info.groups} : i64>") if info.groups else plain.type()
        return TensorType.get(base, *(_scheme_or_none(scheme) for scheme in (info.row, info.col)))


@remembered
def tensor_info(type_: ir.Type) -> TensorInfo | None:
    """What a ranked `tensor` or `!torch.vtensor` with a known dtype says; None for any other type."""
    if isinstance(type_, ir.RankedTensorType):
        return _ranked_info(type_) if type_.encoding is None else None
    match = _VTENSOR.fullmatch(str(type_))
    if match is None:
        return None
    sizes = [size for size in match["sizes"].split(",") if size]
    return TensorInfo("torch", tuple(None if size == "?" else int(size) for size in sizes), match["dtype"])


def _ranked_info(type_: ir.RankedTensorType) -> TensorInfo:
    shape = tuple(None if type_.is_dynamic_dim(i) else type_.get_dim_size(i) for i in range(type_.rank))
    return TensorInfo("builtin", shape, str(type_.element_type))


_VTENSOR = re.compile(r"!torch\.vtensor<\[(?P<sizes>[0-9?,]*)\],(?P<dtype>[a-z0-9]+)>", re.IGNORECASE)


def info_namespace(value: ir.Value) -> str:
    """Whose tensor a plain tensor is: `builtin` or `torch`."""
    info = tensor_info(value.type)
    assert info is not None, "a ranked tensor"
    return info.namespace


def scaled_info(value: ir.Value, constraint: str, name: str) -> ScaledInfo:
    """What the `!scaled.tensor` type of a value says, verified."""
    type_ = value.type
    # Printing a type costs more than the rest of a check, so these three do it only for a message.
    if not isinstance(type_, TensorType):
        raise ConstraintError(constraint, f"{name} must be a !scaled.tensor, got {type_}")
    return type_.info


def scaled_info_of(value: ir.Value) -> ScaledInfo:
    """What the type of a quantized tensor says, of a value that a verified op takes or makes."""
    return scaled_info(value, "tensor_c1", "the value")


def float_info(value: ir.Value, constraint: str, name: str) -> TensorInfo:
    """What the type of a high-precision tensor says, verified."""
    info = tensor_info(value.type)
    if info is None or info.dtype not in FLOAT_DTYPES:
        dtypes = ", ".join(FLOAT_DTYPES)
        raise ConstraintError(constraint, f"{name} must be a ranked tensor of {dtypes}, got {value.type}")
    return info


def require_tensor(value: ir.Value, expected: TensorInfo, constraint: str, name: str) -> None:
    """Require a plain tensor of the expected namespace, shape and dtype."""
    info = tensor_info(value.type)
    fits = (
        info is not None
        and info.namespace == expected.namespace
        and info.dtype == expected.dtype
        and shapes_agree(info.shape, expected.shape)
    )
    if not fits:
        raise ConstraintError(constraint, f"{name} must be {expected}, got {value.type}")


def shapes_agree(left: Shape, right: Shape) -> bool:
    """Whether the shapes can be the same at run time."""
    return len(left) == len(right) and all(map(sizes_agree, left, right))


def sizes_agree(left: int | None, right: int | None) -> bool:
    """Whether two sizes can be the same at run time."""
    return left is None or right is None or left == right


def format_shape(shape: Shape) -> str:
    """A shape as MLIR prints it: [2,?,64]."""
    return "[" + ",".join("?" if size is None else str(size) for size in shape) + "]"


@remembered
def _scaled_info(type_: TensorType) -> ScaledInfo:
    base, row, col = (parameter.maybe_downcast() for parameter in type_.params)
    info, groups = _base_info(base.value) if isinstance(base, ir.TypeAttr) else (None, None)
    require(
        info is not None and info.namespace == "builtin" and info.dtype in FLOAT_DTYPES and len(info.shape) > 0,
        "tensor_c1",
        f"a !scaled.tensor must stand for a ranked tensor of {', '.join(FLOAT_DTYPES)}, got {base}",
    )
    assert info is not None
    scaled = ScaledInfo(info.shape, info.dtype, _read_copy(row, "row"), _read_copy(col, "col"), groups or 0)
    require(bool(scaled.schemes), "tensor_c2", "a !scaled.tensor must have a rowwise or a columnwise copy, got none")
    _check_usages(scaled)
    if groups is not None:
        _check_groups(scaled)
    return scaled


def _base_info(type_: ir.Type) -> tuple[TensorInfo | None, int | None]:
    """What a quantized tensor stands for, and in how many groups it is; None for a tensor that is in none."""
    encoding = type_.encoding if isinstance(type_, ir.RankedTensorType) else None
    if not isinstance(type_, ir.RankedTensorType) or not isinstance(encoding, ir.IntegerAttr):
        return tensor_info(type_), None
    return _ranked_info(type_), encoding.value


def _check_groups(scaled: ScaledInfo) -> None:
    groups, shape = scaled.groups, scaled.shape
    require(groups > 0, "tensor_c6", f"there must be at least one group, got {groups}")
    is_stack = len(shape) > 2 and None not in shape and prod(size or 0 for size in shape[:-2]) == groups
    is_matrix = len(shape) == 2 and shape[1] is not None
    wanted = f"a matrix with a known number of columns, or a stack of {groups} matrices of known size"
    require(is_stack or is_matrix, "tensor_c6", f"a tensor in groups must be {wanted}, got {format_shape(shape)}")
    is_own = any(scheme.custom for scheme in scaled.schemes)
    require(not is_own, "tensor_c6", "a tensor in groups must have built-in schemes, got a user's own quantizer")


def _read_copy(attribute: ir.Attribute, name: str) -> Scheme | None:
    if isinstance(attribute, SchemeAttr):
        return attribute.scheme
    absent = isinstance(attribute, ir.TypeAttr) and isinstance(attribute.value, ir.NoneType)
    require(absent, "tensor_c2", f"{name} must be a #scaled.scheme or none, got {attribute}")
    return None


def _check_usages(scaled: ScaledInfo) -> None:
    row, col = scaled.row, scaled.col
    if row is not None:
        require(row.block != "32x1", "tensor_c3", "32x1 blocks must be columnwise, got them rowwise")
        require(not row.rht, "tensor_c4", "the random Hadamard transform must be columnwise, got it rowwise")
    if col is not None:
        stands = col.family != "mx" or col.block != "1x32"
        require(stands, "tensor_c3", "1x32 blocks of FP8 must be rowwise, got them columnwise")
        require(col.second_level != "row", "tensor_c5", "a second level per row must be rowwise, got it columnwise")


def _scheme_or_none(scheme: Scheme | None) -> ir.Attribute:
    if scheme is None:
        return ir.TypeAttr.get(ir.NoneType.get())
    return SchemeAttr.from_scheme(scheme)
