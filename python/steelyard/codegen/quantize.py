"""Quantize: a matrix, or what a producer makes, into a rowwise copy, a columnwise copy, or both."""

from dataclasses import dataclass

from steelyard.codegen.copies import Copy, CopyPass, Staging
from steelyard.codegen.kernel import Parameter, Scope, TileKernel
from steelyard.codegen.memory import barrier
from steelyard.codegen.rounding import RandomTile
from steelyard.codegen.sizes import Size
from steelyard.codegen.sources import Source, place_of, tiles_of
from steelyard.codegen.tile import Tile


@dataclass(frozen=True)
class QuantizeKernel(TileKernel):
    """One pass over the source; amaxes that span more than a tile are given."""

    source: Source
    copies: tuple[Copy, ...]

    @property
    def name(self) -> str:
        return "_".join(("quantize", self.source.name, *(copy.name for copy in self.copies)))

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return self.source.parameters + tuple(parameter for copy in self.copies for parameter in copy.parameters)

    @property
    def side(self) -> int:
        return max(copy.tile_side for copy in self.copies)

    @property
    def shared_rows(self) -> dict[str, int]:
        own = {name: rows for copy in self.copies for name, rows in copy.shared_rows.items()}
        return {**self.source.shared_rows, **own}

    def blocks(self, rows: Size, columns: Size) -> Size:
        return tiles_of(rows, columns, self.side)

    def body(self, scope: Scope) -> None:
        tile = Tile(scope.shared.allocate(Tile.bytes_of(self.side, self.source.dtype)), self.side, self.source.dtype)
        staging = Staging.allocate(scope, self.copies, self.side)
        place = place_of(scope, self.side)
        is_whole = place.holds_whole(self.side)
        random = self._random_tile(scope)
        slots = scope.shared.allocate(16) if any(copy.scheme.block == "128x128" for copy in self.copies) else None
        passes = []
        for copy in self.copies:
            own_staging, own_random = staging.of(copy, self.side), random if copy.is_stochastic else None
            scales = scope.shared.allocate(8) if copy.has_tensor_scale else None
            shared = tile, place, is_whole, own_staging, own_random, slots, scales
            passes.append(CopyPass(copy, scope, *shared, self.threads))
        for each in passes:
            each.prepare()
        self.source.fill(scope, tile, place, self.threads)
        for each in passes:
            barrier()
            each.make()

    def _random_tile(self, scope: Scope) -> RandomTile | None:
        if not any(copy.is_stochastic for copy in self.copies):
            return None
        return RandomTile(scope.shared.allocate(RandomTile.bytes_of(self.side)), self.side)
