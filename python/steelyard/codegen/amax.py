"""Amaxes: of a matrix, of each of its rows or columns, or after the random Hadamard transform."""

from dataclasses import dataclass

from steelyard.codegen import hadamard
from steelyard.codegen.kernel import Parameter, Scope, TileKernel
from steelyard.codegen.memory import barrier, first_lane, warp_maximum
from steelyard.codegen.sizes import Size
from steelyard.codegen.sources import Place, Source, place_of, tiles_of
from steelyard.codegen.strips import CHUNK, Strip, column_strip, row_strip, strip_count
from steelyard.codegen.tile import Tile
from steelyard.codegen.values import Value, constant, maximum_unsigned, signed_to, when

_SIDE = 64


@dataclass(frozen=True)
class AmaxKernel(TileKernel):
    """Raises `amax`, zero before the launch. Lines are rows, or columns if `columnwise`; the transform runs along
    them, and `per_line` keeps one amax of each."""

    source: Source
    columnwise: bool = False
    rht: bool = False
    per_line: bool = False

    @property
    def name(self) -> str:
        options = [name for name in ("columnwise", "rht", "per_line") if getattr(self, name)]
        return "_".join(("amax", self.source.name, *options))

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (*self.source.parameters, Parameter("amax"))

    @property
    def side(self) -> int:
        return _SIDE

    @property
    def shared_rows(self) -> dict[str, int]:
        return {**self.source.shared_rows, "amax": 1 if self.per_line and not self.columnwise else 0}

    def blocks(self, rows: Size, columns: Size) -> Size:
        return tiles_of(rows, columns, _SIDE)

    def body(self, scope: Scope) -> None:
        tile = Tile(scope.shared.allocate(Tile.bytes_of(_SIDE, self.source.dtype)), _SIDE, self.source.dtype)
        place = place_of(scope, _SIDE)
        self.source.fill(scope, tile, place, self.threads)
        barrier()
        for line, largest in enumerate(self._amaxes(scope, tile)):
            self._store(scope, place, line, largest)

    def _strip(self, scope: Scope, step: int) -> Strip:
        """The number of threads is a multiple of the side: a thread stays on its lines."""
        index = scope.thread + step * self.threads
        return column_strip(index, _SIDE) if self.columnwise else row_strip(index, _SIDE, CHUNK)

    def _amaxes(self, scope: Scope, tile: Tile) -> list[Value]:
        """The amax of each line that a thread takes, of what it takes of it."""
        lines = 2 if self.columnwise else 1
        found = [constant(0, "i32")] * lines
        for step in range(strip_count(_SIDE, lines, 1) // self.threads):
            chunk = self._strip(scope, step).read(tile, 0)
            if self.rht:
                own = [part.amaxes()[0] for part in hadamard.transform_lines(chunk.values(), chunk.dtype)]
            else:
                own = chunk.amaxes()
            found = [maximum_unsigned(a, b) for a, b in zip(found, own, strict=True)]
        return found

    def _store(self, scope: Scope, place: Place, index: int, largest: Value) -> None:
        amax = scope.pointer("amax")
        if not self.per_line:
            of_warp = warp_maximum(largest)
            first_lane(scope.thread, lambda: amax.raise_to(of_warp))
            return
        start, lines = (place.column, place.columns) if self.columnwise else (place.row, place.rows)
        line = start + self._strip(scope, 0).across + index
        when(line < lines, lambda: amax.at(signed_to(line, "i64") * 4).raise_to(largest))
