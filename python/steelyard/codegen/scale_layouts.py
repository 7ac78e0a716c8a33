"""Scales in another order: that of the other usage, or the one that GPU GEMMs read."""

from collections.abc import Callable
from dataclasses import dataclass

from steelyard.codegen.kernel import Kernel, Parameter, Scope
from steelyard.codegen.sizes import Size, ceil_div
from steelyard.codegen.values import Value, select, signed_to, when

Index = tuple[Value, Value]


def _turned(index: Index) -> Index:
    row, column = index
    return column, row


def _swizzled(index: Index) -> Index:
    """Tiles of 128x4 scales, 512 bytes each: 32 rows of 16 bytes, each row four groups of four."""
    tile_row, offset = index
    tile, inner = offset // 512, offset % 512
    row = tile_row * 128 + (inner % 16 // 4) * 32 + inner // 16
    return row, tile * 4 + inner % 4


# Kind -> bytes of a scale, and which compact scale a place of the result takes. Swizzled results are taken as lines of
# whole tiles, 128 rows of scales each.
_KINDS: dict[str, tuple[int, Callable[[Index], Index]]] = {
    "transpose_block": (4, _turned),
    "transpose_nvfp4": (1, lambda index: (index[1] * 16, index[0] // 16)),
    "mx_to_columnwise": (1, lambda index: (index[0] * 32, index[1] // 32)),
    "mx_to_rowwise": (1, lambda index: (index[0] // 32, index[1] * 32)),
    "swizzle": (1, _swizzled),
    "swizzle_transposed": (1, lambda index: _turned(_swizzled(index))),
    "pad": (4, lambda index: index),
    "pad_transposed": (4, _turned),
}
KINDS = tuple(_KINDS)


@dataclass(frozen=True)
class ScaleLayoutKernel(Kernel):
    """`out` of `rows` x `columns` from contiguous `scales` of `source_rows` x `source_columns`; what these do not have
    is zero."""

    kind: str

    @property
    def name(self) -> str:
        return f"scales_{self.kind}"

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        sizes = ("source_rows", "source_columns", "rows", "columns")
        return (Parameter("scales"), Parameter("out"), *(Parameter(name, "i32") for name in sizes))

    def blocks(self, rows: Size, columns: Size) -> Size:
        return ceil_div(rows * columns, self.threads)

    def body(self, scope: Scope) -> None:
        size, source_of = _KINDS[self.kind]
        index = scope.block * self.threads + scope.thread
        columns = scope["columns"]
        name = "i32" if size == 4 else "i8"

        def move() -> None:
            row, column = source_of((index // columns, index % columns))
            source_columns = scope["source_columns"]
            inside = (row < scope["source_rows"]) & (column < source_columns)
            offset = signed_to(row, "i64") * signed_to(source_columns, "i64") + signed_to(column, "i64")
            scale = scope.pointer("scales").at(select(inside, offset, 0) * size).load(name)
            scope.pointer("out").at(signed_to(index, "i64") * size).store(select(inside, scale, 0))

        when(index < scope["rows"] * columns, move)
