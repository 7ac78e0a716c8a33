"""What launches work on: matrices, and the parts of quantized copies, by the buffers that hold them."""

from dataclasses import dataclass, replace

from steelyard.codegen.copies import Copy
from steelyard.codegen.launches.plan import Argument, Buffer
from steelyard.codegen.sizes import Size, is_multiple, product_of
from steelyard.codegen.tile import ITEM_BYTES
from steelyard.formats.parts import FLOATS, is_stored_transposed, part_shapes, stored_shape
from steelyard.formats.schemes import Scheme

VECTOR_BYTES = 16


@dataclass(frozen=True)
class Matrix:
    """A matrix in memory. `begins_aligned`: its first element is at a multiple of 16 bytes."""

    buffer: Buffer
    dtype: str
    rows: Size
    columns: Size
    row_stride: Size
    column_stride: Size = 1
    begins_aligned: bool = True

    @classmethod
    def contiguous(cls, buffer: Buffer, dtype: str, rows: Size, columns: Size) -> "Matrix":
        """A matrix whose rows lie one behind the other, at an aligned address."""
        return cls(buffer, dtype, rows, columns, columns)

    @property
    def is_aligned(self) -> bool:
        """Its rows are whole vectors at aligned addresses."""
        items = VECTOR_BYTES // ITEM_BYTES[self.dtype]
        whole = is_multiple(self.columns, items) and is_multiple(self.row_stride, items)
        return self.column_stride == 1 and whole and self.begins_aligned

    @property
    def elements(self) -> Size:
        return self.rows * self.columns

    def arguments(self, name: str, row_stride: str, column_stride: str) -> dict[str, Argument]:
        """What kernels take of it, by the names of their parameters."""
        return {name: self.buffer, row_stride: self.row_stride, column_stride: self.column_stride}


@dataclass(frozen=True)
class Vector:
    """A weight, or a bias."""

    buffer: Buffer
    dtype: str
    stride: Size = 1
    begins_aligned: bool = True


@dataclass(frozen=True)
class StoredCopy:
    """A quantized copy of a matrix of `shape`, by the buffers of its parts."""

    scheme: Scheme
    columnwise: bool
    shape: tuple[Size, Size]
    codes: Buffer
    scales: Buffer
    amax: Buffer | None = None
    begins_aligned: bool = True
    """Its codes begin at a multiple of 16 bytes."""

    @property
    def stored_shape(self) -> tuple[Size, Size]:
        """Rows and columns of the stored array."""
        return stored_shape(self.scheme, self.shape, self.columnwise)  # pyright: ignore[reportArgumentType, reportReturnType]

    def as_stored(self) -> "StoredCopy":
        """The stored array as a rowwise copy, whose values stay transformed."""
        plain = replace(self.scheme, rht=False)
        return replace(self, scheme=plain, shape=self.stored_shape, columnwise=False)

    def part_bytes(self, part: str, rows: Size) -> Size:
        """What a part takes for so many rows of the matrix; that of the amaxes of lines, too, which not all keep."""
        if part == "amax" and self.scheme.family == "row":
            return (self.shape[1] if self.columnwise else rows) * 4
        parts = part_shapes(self.scheme, (rows, self.shape[1]), self.columnwise)  # pyright: ignore[reportArgumentType]
        sizes, dtype = parts[part]  # pyright: ignore[reportArgumentType]
        return product_of(sizes) * (4 if dtype == FLOATS else 1)  # pyright: ignore[reportArgumentType]

    def spec(self, *, given_scale: bool = False, in_groups: bool = False) -> Copy:
        """How kernels make or read it: by vectors where its lines are whole chunks of 16 codes.

        `in_groups`: its rows are those of groups, whose own numbers are not known.
        """
        is_along_rows = in_groups and is_stored_transposed(self.scheme, self.columnwise) and not self.scheme.rht
        aligned = is_multiple(self.stored_shape[1], 16) and self.begins_aligned and not is_along_rows
        return Copy(self.scheme, self.columnwise, aligned, given_scale and self.scheme.family == "tensor")
