"""The transpose of codes, bytes or nibbles, through shared memory."""

from dataclasses import dataclass

from steelyard.codegen.kernel import Kernel, Parameter, Scope
from steelyard.codegen.memory import Pointer, barrier
from steelyard.codegen.sizes import Size
from steelyard.codegen.sources import Place, place_of, tiles_of
from steelyard.codegen.values import Value, constant, convert, loop, select, signed_to, when

_SIDE = 64
_PITCH = _SIDE + 4  # bytes; an odd number of words
_RUN = 16


@dataclass(frozen=True)
class TransposeKernel(Kernel):
    """`codes` of `rows` lines of `columns` codes each into `out`, its columns as lines."""

    nibbles: bool
    aligned: bool

    @property
    def name(self) -> str:
        return f"transpose_{'nibbles' if self.nibbles else 'bytes'}{'' if self.aligned else '_any'}"

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        sizes = (Parameter("rows", "i32"), Parameter("columns", "i32"))
        return (Parameter("codes"), Parameter("out"), *sizes)

    def blocks(self, rows: Size, columns: Size) -> Size:
        return tiles_of(rows, columns, _SIDE)

    def body(self, scope: Scope) -> None:
        tile = scope.shared.allocate(_SIDE * _PITCH)
        place = place_of(scope, _SIDE)
        if self.aligned:
            per_row = _SIDE // _RUN
            self._each(scope, per_row, lambda line, part: self._load_run(scope, tile, place, line, part * _RUN))
            barrier()
            self._each(scope, per_row, lambda line, part: self._store_run(scope, tile, place, line, part * _RUN))
            return
        self._each(scope, _SIDE, lambda line, column: self._load_code(scope, tile, place, line, column))
        barrier()
        step = 2 if self.nibbles else 1
        self._each(scope, _SIDE // step, lambda line, part: self._store_byte(scope, tile, place, line, part * step))

    def _each(self, scope: Scope, per_line: int, body) -> None:
        loop(scope.thread, _SIDE * per_line, self.threads, lambda index: body(index // per_line, index % per_line))

    def _address(self, base: Pointer, line: Value, along: Value, length: Value) -> Pointer:
        if self.nibbles:
            along, length = along >> 1, (length + 1) >> 1
        return base.at(signed_to(line, "i64") * signed_to(length, "i64") + signed_to(along, "i64"))

    def _load_run(self, scope: Scope, tile: Pointer, place: Place, line: Value, along: Value) -> None:
        inside = place.holds(line, along)
        row, column = (
            select(inside, start + offset, 0) for start, offset in ((place.row, line), (place.column, along))
        )
        count = _RUN // 8 if self.nibbles else _RUN // 4
        words = self._address(scope.pointer("codes"), row, column, place.columns).load_words(count)
        if self.nibbles:
            words = [half for word in words for half in _spread(word)]
        for index, word in enumerate(words):
            _cell(tile, line, along + 4 * index).store(word)

    def _store_run(self, scope: Scope, tile: Pointer, place: Place, line: Value, along: Value) -> None:
        """16 codes of a column become a run of a line."""
        codes = [convert(_cell(tile, along + index, line).load("i8"), "i32") for index in range(_RUN)]
        bits = 4 if self.nibbles else 8
        per_word = 32 // bits
        words = [_joined(codes[first : first + per_word], bits) for first in range(0, _RUN, per_word)]
        column, row = place.column + line, place.row + along
        out = self._address(scope.pointer("out"), column, row, place.rows)
        when((column < place.columns) & (row < place.rows), lambda: out.store_words(words))

    def _load_code(self, scope: Scope, tile: Pointer, place: Place, line: Value, along: Value) -> None:
        inside = place.holds(line, along)
        row, column = (
            select(inside, start + offset, 0) for start, offset in ((place.row, line), (place.column, along))
        )
        code = self._address(scope.pointer("codes"), row, column, place.columns).load("i8")
        if self.nibbles:
            code = select((column & 1).equals(0), code, code >> 4) & 15
        _cell(tile, line, along).store(select(inside, code, 0))

    def _store_byte(self, scope: Scope, tile: Pointer, place: Place, line: Value, along: Value) -> None:
        byte = _cell(tile, along, line).load("i8")
        if self.nibbles:
            byte = byte | (_cell(tile, along + 1, line).load("i8") << 4)
        column, row = place.column + line, place.row + along
        out = self._address(scope.pointer("out"), column, row, place.rows)
        when((column < place.columns) & (row < place.rows), lambda: out.store(byte))


def _cell(tile: Pointer, row: Value, column: Value) -> Pointer:
    """A byte of the tile. Every 16 rows columns trade places by eights: runs of a warp then meet in no bank."""
    return tile.at(row * _PITCH + (column ^ (((row >> 4) & 3) << 3)))


def _spread(word: Value) -> list[Value]:
    """Eight nibbles as two words of four bytes."""
    return [_joined([(word >> (4 * (first + index))) & 15 for index in range(4)], 8) for first in (0, 4)]


def _joined(codes: list[Value], bits: int) -> Value:
    word = constant(0, "i32")
    for index, code in enumerate(codes):
        word = word | (code << (bits * index))
    return word
