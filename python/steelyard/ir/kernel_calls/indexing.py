"""Calls that find the rows they read or write by number."""

from dataclasses import dataclass
from typing import ClassVar

from steelyard.dialect.base import require
from steelyard.ir.kernel_calls.base import KernelCall, Names

_INDICES = ("si64", "si32", "i64", "i32")
_LONG = ("si64", "i64")
_SIZES = ("!torch.int", "index", "i64")
_FLOATS = ("f32", "bf16", "f16")


@dataclass(frozen=True, kw_only=True)
class LookupCall(KernelCall):
    """The rows of a table that indices name, in their shape.

    Constraints, beside those of all calls:
    - lookup_c1: the table has two dims, indices are integers of 32 or 64 bits, and the result has the table's dtype and
      one dim more than the indices
    """

    OPERATION: ClassVar[str] = "lookup"

    def operand_names(self) -> Names:
        return Names(("table", "indices"))

    def check(self) -> None:
        super().check()
        table, indices, result = map(self._tensor, range(3))
        fits = len(table.shape) == 2 and indices.dtype in _INDICES and result.dtype == table.dtype
        found = f"{len(table.shape)} dims of {table.dtype} by {len(indices.shape)} dims of {indices.dtype}"
        message = f"a table of two dims is read by integers, row by row, got {found} into {len(result.shape)} dims"
        require(fits and len(result.shape) == len(indices.shape) + 1, "lookup_c1", message)


@dataclass(frozen=True, kw_only=True)
class WriteRowsCall(KernelCall):
    """A tensor with some entries along a dim replaced: those that indices name, by `rows` in their order.

    Constraints, beside those of all calls:
    - write_rows_c1: target, rows and result have one dtype and as many dims, of which `dim` is one
    - write_rows_c2: there is one dim of indices at most, of integers of 32 or 64 bits
    """

    OPERATION: ClassVar[str] = "write_rows"

    dim: int
    in_place: bool = False
    """The result is the target itself."""

    @property
    def written(self) -> int | None:
        return 0 if self.in_place else None

    def operand_names(self) -> Names:
        return Names(("target", "indices", "rows"))

    def check(self) -> None:
        super().check()
        target, indices, rows, result = map(self._tensor, range(4))
        alike = len({(info.dtype, len(info.shape)) for info in (target, rows, result)}) == 1
        found = ", ".join(f"{len(info.shape)} dims of {info.dtype}" for info in (target, rows, result))
        message = f"target, rows and result must have one dtype and as many dims, of which {self.dim} is one"
        require(alike and 0 <= self.dim < len(target.shape), "write_rows_c1", f"{message}, got {found}")
        fits = len(indices.shape) <= 1 and indices.dtype in _INDICES
        message = f"indices must be integers in one dim at most, got {len(indices.shape)} dims of {indices.dtype}"
        require(fits, "write_rows_c2", message)


@dataclass(frozen=True, kw_only=True)
class PositionsCall(KernelCall):
    """Numbers that count on from the one in a tensor, or that number and `offset` by itself.

    Constraints, beside those of all calls:
    - positions_c1: start and result are integers of 64 bits, start is one number, and the result has one dim at most,
      whose size is an operand, an integer, where it is not known
    """

    OPERATION: ClassVar[str] = "positions"

    offset: int = 0

    def operand_names(self) -> Names:
        return Names(("start",))

    def check(self) -> None:
        super().check()
        start, result = self._tensor(0), self._tensor(len(self.operands))
        is_counted = len(result.shape) <= 1 and result.shape.count(None) == len(self.operands) - 1
        fits = start.dtype in _LONG and result.dtype in _LONG and start.shape == () and is_counted
        sizes = [str(slot.type) for slot in self.operands[self.sizes]]
        fits = fits and all(size in _SIZES for size in sizes)
        found = f"{list(start.shape)} of {start.dtype} and {list(result.shape)} of {result.dtype}, sizes {sizes}"
        require(fits, "positions_c1", f"a number of 64 bits is counted on from, in one dim at most, got {found}")


@dataclass(frozen=True, kw_only=True)
class AddRowsCall(KernelCall):
    """A table of zeros to which rows are added, each where its index says: the gradient of a lookup.

    Rows with the index `padding` are left out; none are where it is negative.

    Constraints, beside those of all calls:
    - add_rows_c1: indices are integers of 32 or 64 bits, rows have one dim more, and the result is a table of known
      size, of their dtype, f32, bf16 or f16, and as wide
    """

    OPERATION: ClassVar[str] = "add_rows"

    padding: int

    def operand_names(self) -> Names:
        return Names(("rows", "indices"))

    def check(self) -> None:
        super().check()
        rows, indices, result = map(self._tensor, range(3))
        fits = indices.dtype in _INDICES and len(rows.shape) == len(indices.shape) + 1
        fits = fits and rows.dtype == result.dtype and rows.dtype in _FLOATS
        fits = fits and len(result.shape) == 2 and None not in result.shape and result.shape[-1] == rows.shape[-1]
        found = f"{list(rows.shape)} of {rows.dtype} by {len(indices.shape)} dims of {indices.dtype}"
        message = f"a table of known size gets rows of its own width by integers, got {found}"
        require(fits, "add_rows_c1", f"{message} into {list(result.shape)} of {result.dtype}")
