"""What tiles are filled with: a matrix in global memory, or what a producer makes of one or two."""

from collections.abc import Callable
from dataclasses import dataclass

from steelyard.codegen.kernel import LOADS_IN_FLIGHT, Parameter, Scope
from steelyard.codegen.memory import Pointer
from steelyard.codegen.producers import Producer
from steelyard.codegen.sizes import Size, ceil_div
from steelyard.codegen.tile import ITEM_BYTES, Tile, narrow, narrow_words, widen_word, zero_word
from steelyard.codegen.values import Value, convert, either, i32, loop, select, signed_to

_VECTOR_BYTES = 16
_LINE_VECTORS = 8  # 128 bytes: what a warp should read of a row at once


@dataclass(frozen=True)
class Place:
    """Where in the matrix a tile lies, and how large the matrix is."""

    row: Value
    column: Value
    rows: Value
    columns: Value

    def holds(self, row: Value, column: Value) -> Value:
        return (self.row + row < self.rows) & (self.column + column < self.columns)

    def holds_whole(self, side: int) -> Value:
        """Whether all of a tile lies in the matrix; the same for all threads of a block."""
        return self.holds(i32(side - 1), i32(side - 1))


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

    @property
    def shared_rows(self) -> dict[str, int]:
        """How its inputs lie in a tensor in groups; see `TileKernel`."""
        return {f"input{index}": 1 for index in range(self.inputs)}

    def fill(self, scope: Scope, tile: Tile, place: Place, threads: int) -> None:
        """Fill a tile; all threads take part."""
        if not self.aligned:
            self._each(scope, tile.side**2, threads, lambda e: self._load_element(scope, tile, place, e))
            return

        def checked(index: Value) -> None:
            row, column = self._place_of_vector(tile, index)
            inside = place.holds(row, column)
            words = self._read_vector(scope, place, row, column, inside)
            tile.element(row, column).store_words([select(inside, word, zero_word()) for word in words])

        # The whole block takes the same way: only tiles at the matrix's edge look where it ends.
        either(
            place.holds_whole(tile.side),
            lambda: self._fill_whole(scope, tile, place, threads),
            lambda: loop(scope.thread, tile.side**2 // self._per_vector, threads, checked),
        )

    @property
    def _per_vector(self) -> int:
        return _VECTOR_BYTES // ITEM_BYTES[self.dtype]

    def _place_of_vector(self, tile: Tile, index: Value) -> tuple[Value, Value]:
        line = index // _LINE_VECTORS
        column = (line // tile.side * _LINE_VECTORS + index % _LINE_VECTORS) * self._per_vector
        return line % tile.side, column

    def _fill_whole(self, scope: Scope, tile: Tile, place: Place, threads: int) -> None:
        """Each thread's vectors lie known numbers of rows and columns from its first."""
        row, column = self._place_of_vector(tile, scope.thread)
        rows_at_once = threads // _LINE_VECTORS
        begins = [scope.pointer(f"input{n}").at(self._offset(scope, place, n, row, column)) for n in range(self.inputs)]
        steps = []
        for index in range(tile.side**2 // self._per_vector // threads):
            lines = index * rows_at_once
            steps.append((lines % tile.side, lines // tile.side * _LINE_VECTORS * self._per_vector))
        target, item = tile.element(row, column), ITEM_BYTES[self.dtype]
        at_once = LOADS_IN_FLIGHT // self.inputs
        for first in range(0, len(steps), at_once):
            now = steps[first : first + at_once]
            read = [self._read_further(scope, begins, *step) for step in now]
            for (rows, columns), inputs in zip(now, read, strict=True):
                words = self._produced(scope, inputs, place.row + row + rows, place.column + column + columns)
                target.at(tile.rows_further(rows) + columns * item).store_words(words)

    def _read_further(self, scope: Scope, begins: list[Pointer], rows: int, columns: int) -> list[list[Value]]:
        item = ITEM_BYTES[self.dtype]
        strides = [scope[f"row_stride{number}"] * (rows * item) for number in range(self.inputs)]
        return [begin.at(s).at(columns * item).load_words(4) for begin, s in zip(begins, strides, strict=True)]

    def _read_vector(self, scope: Scope, place: Place, row: Value, column: Value, inside: Value) -> list[Value]:
        inputs = []
        for number in range(self.inputs):
            offset = select(inside, self._offset(scope, place, number, row, column), 0)
            inputs.append(scope.pointer(f"input{number}").at(offset).load_words(4))
        own_row, own_column = (select(inside, place.row + row, 0), select(inside, place.column + column, 0))
        return self._produced(scope, inputs, own_row, own_column)

    def _produced(self, scope: Scope, inputs: list[list[Value]], row: Value, column: Value) -> list[Value]:
        """The words that tiles hold, of the words that were read at a row and column of the matrix."""
        if self.producer is None:
            return inputs[0]
        values = [[value for word in words for value in widen_word(word, self.dtype)] for words in inputs]
        return narrow_words(self.producer.make(scope, values, row, column), self.dtype)

    def _each(self, scope: Scope, count: int, threads: int, load: Callable[[Value], Callable[[], None]]) -> None:
        """Several loads, then their stores, so that the loads wait together; of two inputs half as many of each."""
        unrolled = LOADS_IN_FLIGHT // self.inputs

        def body(first: Value) -> None:
            stores = [load(first + index * threads) for index in range(unrolled)]
            for store in stores:
                store()

        loop(scope.thread, count, threads * unrolled, body)

    def _load_element(self, scope: Scope, tile: Tile, place: Place, index: Value) -> Callable[[], None]:
        row, column = index // tile.side, index % tile.side
        inside = place.holds(row, column)
        kind = "i32" if self.dtype == "f32" else "i16"
        inputs = []
        for number in range(self.inputs):
            offset = select(inside, self._offset(scope, place, number, row, column), 0)
            inputs.append(scope.pointer(f"input{number}").at(offset).load(kind))
        bits = self._produce_element(scope, inputs, place, row, column, inside)

        def store() -> None:
            tile.element(row, column).store(select(inside, bits, 0))

        return store

    def _produce_element(self, scope, inputs, place, row, column, inside) -> Value:
        if self.producer is None:
            return inputs[0]
        values = [[widen_word(convert(bits, "i32"), self.dtype)[0]] for bits in inputs]
        own_row, own_column = (select(inside, place.row + row, 0), select(inside, place.column + column, 0))
        (value,) = self.producer.make(scope, values, own_row, own_column)
        return narrow(value, self.dtype)

    def _offset(self, scope: Scope, place: Place, number: int, row: Value, column: Value) -> Value:
        """Bytes from an input's begin; only within the matrix is there memory."""
        wide_row, wide_column = signed_to(place.row + row, "i64"), signed_to(place.column + column, "i64")
        along = wide_column if self.aligned else wide_column * scope[f"column_stride{number}"]
        return (wide_row * scope[f"row_stride{number}"] + along) * ITEM_BYTES[self.dtype]


def tiles_of(rows: Size, columns: Size, side: int) -> Size:
    return ceil_div(rows, side) * ceil_div(columns, side)


def place_of(scope: Scope, side: int) -> Place:
    """The place of this block's tile; tiles are numbered along rows."""
    across = (scope["columns"] + (side - 1)) // side
    row, column = scope.block // across, scope.block % across
    return Place(row * i32(side), column * i32(side), scope["rows"], scope["columns"])
