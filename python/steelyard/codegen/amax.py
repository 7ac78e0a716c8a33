"""Amaxes: of a matrix, of each of its rows or columns, or after the random Hadamard transform."""

from dataclasses import dataclass

from steelyard.codegen import hadamard
from steelyard.codegen.copies import CHUNK, amax_bits
from steelyard.codegen.kernel import Kernel, Parameter, Scope
from steelyard.codegen.memory import barrier, first_lane, warp_maximum
from steelyard.codegen.sizes import Size
from steelyard.codegen.sources import Place, Source, place_of, tiles_of
from steelyard.codegen.tile import Tile
from steelyard.codegen.values import Value, constant, loop, maximum_unsigned, signed_to, when

_SIDE = 64


@dataclass(frozen=True)
class AmaxKernel(Kernel):
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

    def blocks(self, rows: Size, columns: Size) -> Size:
        return tiles_of(rows, columns, _SIDE)

    def body(self, scope: Scope) -> None:
        tile = Tile(scope.shared.allocate(Tile.bytes_of(_SIDE, self.source.dtype)), _SIDE, self.source.dtype)
        place = place_of(scope, _SIDE)
        self.source.fill(scope, tile, place, self.threads)
        barrier()

        def grow(index: Value, largest: Value) -> list[Value]:
            values = self._read(tile, index % _SIDE, index // _SIDE * CHUNK)
            return [maximum_unsigned(largest, amax_bits(values))]

        # The number of threads is a multiple of the side: a thread stays on its line.
        (largest,) = loop(scope.thread, _SIDE * _SIDE // CHUNK, self.threads, grow, [constant(0, "i32")])
        self._store(scope, place, largest)

    def _read(self, tile: Tile, across: Value, along: Value) -> list[Value]:
        values = tile.read(across, along, CHUNK, columnwise=self.columnwise)
        return hadamard.transform(values) if self.rht else values

    def _store(self, scope: Scope, place: Place, largest: Value) -> None:
        amax = scope.pointer("amax")
        if not self.per_line:
            of_warp = warp_maximum(largest)
            first_lane(scope.thread, lambda: amax.raise_to(of_warp))
            return
        start, lines = (place.column, place.columns) if self.columnwise else (place.row, place.rows)
        line = start + scope.thread % _SIDE
        when(line < lines, lambda: amax.at(signed_to(line, "i64") * 4).raise_to(largest))
