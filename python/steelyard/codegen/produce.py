"""A producer on its own: norms, activations and sums into memory."""

from dataclasses import dataclass

from steelyard.codegen.kernel import Kernel, Parameter, Scope
from steelyard.codegen.memory import barrier
from steelyard.codegen.sizes import Size
from steelyard.codegen.sources import Source, place_of, tiles_of
from steelyard.codegen.tile import ITEM_BYTES, Tile
from steelyard.codegen.values import Value, loop, signed_to, when

_SIDE = 64


@dataclass(frozen=True)
class ProduceKernel(Kernel):
    """Writes contiguous rows; through a tile, so that it shares its source with the fused kernels."""

    source: Source

    @property
    def name(self) -> str:
        return f"produce_{self.source.name}"

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (*self.source.parameters, Parameter("out"))

    def blocks(self, rows: Size, columns: Size) -> Size:
        return tiles_of(rows, columns, _SIDE)

    def body(self, scope: Scope) -> None:
        tile = Tile(scope.shared.allocate(Tile.bytes_of(_SIDE, self.source.dtype)), _SIDE, self.source.dtype)
        place = place_of(scope, _SIDE)
        self.source.fill(scope, tile, place, self.threads)
        barrier()
        item = ITEM_BYTES[self.source.dtype]
        width = 16 // item if self.source.aligned else 1
        per_row = _SIDE // width

        def store(index: Value) -> None:
            row, column = index // per_row, index % per_row * width
            when(place.holds(row, column), lambda: write(row, column))

        def write(row: Value, column: Value) -> None:
            wide_row, wide_column = signed_to(place.row + row, "i64"), signed_to(place.column + column, "i64")
            offset = (wide_row * signed_to(place.columns, "i64") + wide_column) * item
            out, staged = scope.pointer("out").at(offset), tile.element(row, column)
            if self.source.aligned:
                out.store_words(staged.load_words(4))
            else:
                out.store(staged.load("i32" if item == 4 else "i16"))

        loop(scope.thread, _SIDE * per_row, self.threads, store)
