"""What tiles are filled with: a matrix in global memory, or what a producer makes of one or two."""

from collections.abc import Callable
from dataclasses import dataclass

from steelyard.codegen.kernel import Parameter, Scope
from steelyard.codegen.producers import Producer
from steelyard.codegen.sizes import Size, ceil_div
from steelyard.codegen.tile import ITEM_BYTES, Tile, narrow, narrow_words, widen_word, zero_word
from steelyard.codegen.values import Value, convert, i32, loop, select, signed_to

_VECTOR_BYTES = 16
_LINE_VECTORS = 8  # 128 bytes: what a warp should read of a row at once
LOADS_IN_FLIGHT = 4
"""Independent loads that a thread makes before it waits for the first."""


@dataclass(frozen=True)
class Place:
    """Where in the matrix a tile lies, and how large the matrix is."""

    row: Value
    column: Value
    rows: Value
    columns: Value

    def holds(self, row: Value, column: Value) -> Value:
        return (self.row + row < self.rows) & (self.column + column < self.columns)


@dataclass(frozen=True)
class Source:
    """A matrix of `dtype`; `aligned` ones have rows of whole 16-byte vectors at aligned addresses."""

    dtype: str
    aligned: bool = True
    producer: Producer | None = None

    @property
    def name(self) -> str:
        kind = "" if self.producer is None else f"_{self.producer.name}"
        return f"{self.dtype}{kind}{'' if self.aligned else '_any'}"

    @property
    def inputs(self) -> int:
        return 1 if self.producer is None else self.producer.inputs

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        own = []
        for index in range(self.inputs):
            own += [Parameter(f"input{index}"), Parameter(f"row_stride{index}", "i64")]
            own += [] if self.aligned else [Parameter(f"column_stride{index}", "i64")]
        own += [] if self.producer is None else self.producer.parameters
        return (*own, Parameter("rows", "i32"), Parameter("columns", "i32"))

    def fill(self, scope: Scope, tile: Tile, place: Place, threads: int) -> None:
        """Fill a tile; all threads take part."""
        if self.aligned:
            per_vector = _VECTOR_BYTES // ITEM_BYTES[self.dtype]
            self._each(scope, tile.side**2 // per_vector, threads, lambda v: self._load_vector(scope, tile, place, v))
        else:
            self._each(scope, tile.side**2, threads, lambda e: self._load_element(scope, tile, place, e))

    def _each(self, scope: Scope, count: int, threads: int, load: Callable[[Value], Callable[[], None]]) -> None:
        """Several loads, then their stores, so that the loads wait together; of two inputs half as many of each."""
        unrolled = LOADS_IN_FLIGHT // self.inputs

        def body(first: Value) -> None:
            stores = [load(first + index * threads) for index in range(unrolled)]
            for store in stores:
                store()

        loop(scope.thread, count, threads * unrolled, body)

    def _load_vector(self, scope: Scope, tile: Tile, place: Place, index: Value) -> Callable[[], None]:
        per_vector = _VECTOR_BYTES // ITEM_BYTES[self.dtype]
        line = index // _LINE_VECTORS
        row = line % tile.side
        column = (line // tile.side * _LINE_VECTORS + index % _LINE_VECTORS) * per_vector
        inside = place.holds(row, column)
        inputs = []
        for number in range(self.inputs):
            offset = self._offset(scope, place, number, row, column, inside)
            inputs.append(scope.pointer(f"input{number}").at(offset).load_words(4))
        words = self._produce_words(scope, inputs, place, row, column, inside)

        def store() -> None:
            target = tile.element(row, column)
            for position, word in enumerate(words):
                target.at(4 * position).store(select(inside, word, zero_word()))

        return store

    def _produce_words(self, scope, inputs, place, row, column, inside) -> list[Value]:
        if self.producer is None:
            return inputs[0]
        values = [[value for word in words for value in widen_word(word, self.dtype)] for words in inputs]
        own_row, own_column = (select(inside, start + offset, 0) for start, offset in _starts(place, row, column))
        return narrow_words(self.producer.make(scope, values, own_row, own_column), self.dtype)

    def _load_element(self, scope: Scope, tile: Tile, place: Place, index: Value) -> Callable[[], None]:
        row, column = index // tile.side, index % tile.side
        inside = place.holds(row, column)
        kind = "i32" if self.dtype == "f32" else "i16"
        inputs = []
        for number in range(self.inputs):
            offset = self._offset(scope, place, number, row, column, inside)
            inputs.append(scope.pointer(f"input{number}").at(offset).load(kind))
        bits = self._produce_element(scope, inputs, place, row, column, inside)

        def store() -> None:
            tile.element(row, column).store(select(inside, bits, 0))

        return store

    def _produce_element(self, scope, inputs, place, row, column, inside) -> Value:
        if self.producer is None:
            return inputs[0]
        values = [[widen_word(convert(bits, "i32"), self.dtype)[0]] for bits in inputs]
        own_row, own_column = (select(inside, start + offset, 0) for start, offset in _starts(place, row, column))
        (value,) = self.producer.make(scope, values, own_row, own_column)
        return narrow(value, self.dtype)

    def _offset(self, scope, place, number, row, column, inside) -> Value:
        """Bytes from the input's begin; outside of the matrix 0, which is always there to be read."""
        wide_row, wide_column = (signed_to(start + offset, "i64") for start, offset in _starts(place, row, column))
        along = wide_column if self.aligned else wide_column * scope[f"column_stride{number}"]
        elements = wide_row * scope[f"row_stride{number}"] + along
        return select(inside, elements * ITEM_BYTES[self.dtype], 0)


def _starts(place: Place, row: Value, column: Value) -> tuple:
    return (place.row, row), (place.column, column)


def tiles_of(rows: Size, columns: Size, side: int) -> Size:
    return ceil_div(rows, side) * ceil_div(columns, side)


def place_of(scope: Scope, side: int) -> Place:
    """The place of this block's tile; tiles are numbered along rows."""
    across = (scope["columns"] + (side - 1)) // side
    row, column = scope.block // across, scope.block % across
    return Place(row * i32(side), column * i32(side), scope["rows"], scope["columns"])
