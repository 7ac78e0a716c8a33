"""Calls that multiply: `gemm`, and `epilogue` for what a GEMM leaves to another kernel."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, get_args

from steelyard.dialect.base import require
from steelyard.dialect.types import Shape
from steelyard.formats.activations import Epilogue
from steelyard.formats.gemms import Kind, gemm_sizes, reads_columnwise
from steelyard.formats.schemes import Scheme
from steelyard.ir.kernel_calls.base import SIZE, KernelCall, Names, matrix_shape
from steelyard.ir.kernel_calls.copies import CopySlots, named_parts

Path = Literal["native", "emulated"]
PATHS: tuple[Path, ...] = get_args(Path)

_ADDENDS = ("bias", "residual")


@dataclass(frozen=True, kw_only=True)
class AddingCall(KernelCall):
    """A call that adds to a product, applies an activation, and may keep what it was before."""

    epilogue: Epilogue = "none"

    @property
    def bias(self) -> int | None:
        """The position of the bias."""
        return self.operand("bias")

    @property
    def residual(self) -> int | None:
        """The position of what is added after the activation."""
        return self.operand("residual")

    @property
    def out(self) -> int:
        """The position of the result."""
        return self._result_positions["result"]

    @property
    def preactivation(self) -> int | None:
        """The position of the value before the activation, where it is kept."""
        return self.result("preactivation")

    def result_names(self) -> Names:
        return Names(("result",), ("preactivation",))


@dataclass(frozen=True)
class GemmOperand:
    """An operand of a GEMM: one copy of a quantized tensor."""

    shape: Shape
    """Of the quantized tensor."""
    copy: CopySlots


@dataclass(frozen=True, kw_only=True)
class GemmCall(AddingCall):
    """The product of two quantized tensors, one for each entry of the batch dims."""

    OPERATION: ClassVar[str] = "gemm"

    kind: Kind
    rhs: Scheme
    """Of the copy that is read, as lhs is."""
    rhs_shape: Shape
    lhs: Scheme | None = None
    """None for a tensor that is not quantized."""
    lhs_shape: Shape
    batch_dims: int = 0
    path: Path | None = None
    """How a CUDA target runs it; None on the CPU."""

    @property
    def is_custom(self) -> bool:
        return bool(self.rhs.custom)

    @cached_property
    def left(self) -> GemmOperand | None:
        """The left operand, which a built-in scheme stores; None where the first operand is a plain tensor."""
        if self.lhs is None:
            return None
        return self._operand("lhs", self.lhs, self.lhs_shape, reads_columnwise(self.kind)[0])

    @cached_property
    def right(self) -> GemmOperand:
        """The right operand, which a built-in scheme stores."""
        return self._operand("rhs", self.rhs, self.rhs_shape, reads_columnwise(self.kind)[1])

    @property
    def product_sizes(self) -> tuple[int | None, int | None, int | None]:
        """M, N and K of each product."""
        lhs, rhs = (
            matrix_shape(shape[self.batch_dims :], name)
            for shape, name in ((self.lhs_shape, "lhs_shape"), (self.rhs_shape, "rhs_shape"))
        )
        return gemm_sizes(self.kind, lhs, rhs)

    @property
    def solved_dim(self) -> int | None:
        """The one leading dim of lhs whose size only the rows of its codes tell: a saved tensor comes without sizes."""
        unknown = [dim for dim, size in enumerate(self.lhs_shape[:-1]) if size is None]
        return unknown[0] if len(unknown) == 1 and SIZE not in self._operand_positions else None

    @property
    def read_copies(self) -> tuple[CopySlots, ...]:
        if self.is_custom:
            return ()
        return tuple(operand.copy for operand in (self.left, self.right) if operand is not None)

    def _operand(self, name: str, scheme: Scheme, shape: Shape, columnwise: bool) -> GemmOperand:
        matrix = matrix_shape(shape, f"{name}_shape")
        return GemmOperand(shape, CopySlots(scheme, columnwise, matrix, self._read_parts(name)))

    def _part_positions(self) -> frozenset[int]:
        """None of a batch: its kernel reads the sizes of parts, too."""
        return frozenset() if self.batch_dims else super()._part_positions()

    def check_settings(self) -> None:
        both = bool(self.lhs is not None and self.lhs.custom) == bool(self.rhs.custom)
        require(both, "call_c2", "lhs and rhs must both have built-in schemes or users' own, got one of each")
        may_be_plain = self.kind != "wgrad" and self.batch_dims == 0
        message = "lhs must have a scheme in wgrad and in products of batches, got none"
        require(may_be_plain or self.lhs is not None, "call_c2", message)
        dims = min(len(self.lhs_shape), len(self.rhs_shape))
        fits = 0 <= self.batch_dims < dims
        require(fits, "call_c2", f"batch_dims must be at least 0 and less than {dims}, got {self.batch_dims}")

    def operand_names(self) -> Names:
        if self.is_custom:
            return Names(("lhs", "rhs"), _ADDENDS, opaque=("lhs", "rhs"))
        left = ("lhs",) if self.lhs is None else named_parts(self.lhs, "lhs")
        return Names((*left, *named_parts(self.rhs, "rhs")), _ADDENDS)


@dataclass(frozen=True, kw_only=True)
class EpilogueCall(AddingCall):
    """What is done to a product after it is stored in f32."""

    OPERATION: ClassVar[str] = "epilogue"

    @property
    def source(self) -> int:
        """The position of the product."""
        return self._required("source")

    def operand_names(self) -> Names:
        return Names(("source",), _ADDENDS)
