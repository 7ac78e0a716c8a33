"""What norms know of each row, summed in the order of the CPU kernels: a lane of a warp for each of their 32 lanes."""

from dataclasses import dataclass

from steelyard.codegen.kernel import Kernel, Parameter, Scope
from steelyard.codegen.memory import Pointer, first_lane, shuffle_from
from steelyard.codegen.producers import STATISTICS
from steelyard.codegen.sizes import Size, ceil_div
from steelyard.codegen.tile import ITEM_BYTES, widen
from steelyard.codegen.values import (
    Value,
    bitcast,
    constant,
    convert,
    i32,
    loop,
    signed_to,
    square_root,
    when,
)

_WARP = 32
_CHUNK = 512  # elements that are summed in float32 before they are added in float64


@dataclass(frozen=True)
class RowStatisticsKernel(Kernel):
    """Mean, what its float32 leaves, and `1 / sqrt(mean square + epsilon)` of each row; RMS norms have no mean."""

    dtype: str
    centered: bool
    loads_in_flight = _CHUNK // _WARP

    @property
    def name(self) -> str:
        return f"row_statistics_{self.dtype}_{'centered' if self.centered else 'plain'}"

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        strides = (Parameter("row_stride0", "i64"), Parameter("column_stride0", "i64"))
        sizes = (Parameter("rows", "i32"), Parameter("columns", "i32"))
        return (Parameter("input0"), *strides, *sizes, Parameter("epsilon", "i64"), Parameter("statistics"))

    def blocks(self, rows: Size, columns: Size) -> Size:
        return ceil_div(rows, self.threads // _WARP)

    def body(self, scope: Scope) -> None:
        row = scope.block * (self.threads // _WARP) + (scope.thread >> 5)
        when(row < scope["rows"], lambda: self._row(scope, row))

    def _row(self, scope: Scope, row: Value) -> None:
        stride = scope["row_stride0"] * ITEM_BYTES[self.dtype]
        begin = scope.pointer("input0").at(signed_to(row, "i64") * stride)
        mean = mean_rest = constant(0.0, "f32")
        if self.centered:
            exact = self._mean(scope, begin, lambda value: value)
            mean = convert(exact, "f32")
            mean_rest = convert(exact - convert(mean, "f64"), "f32")
        square = self._mean(scope, begin, lambda value: _squared((value - mean) - mean_rest))
        scale = convert(1.0 / square_root(square + bitcast(scope["epsilon"], "f64")), "f32")
        own = scope.pointer("statistics").at(signed_to(row, "i64") * (4 * STATISTICS))

        def store() -> None:
            for index, value in enumerate((mean, mean_rest, scale)):
                own.at(4 * index).store(value)

        first_lane(scope.thread, store)

    def _mean(self, scope: Scope, begin: Pointer, term) -> Value:
        columns = scope["columns"]
        lane = scope.thread & 31

        def add_whole_chunk(first: Value, total: Value) -> list[Value]:
            pointer, read = self._at(scope, begin, first + lane), []
            for _ in range(_CHUNK // _WARP):
                read.append(self._load(pointer))
                # From one to the next: sixteen offsets from the first would be sixteen registers.
                pointer = pointer.at(self._stride(scope) * _WARP)
            partial = constant(0.0, "f32")
            for value in read:
                partial = partial + term(value)
            return [total + convert(partial, "f64")]

        def add_chunk(first: Value, total: Value) -> list[Value]:
            def add(offset: Value, partial: Value) -> list[Value]:
                return [partial + term(self._load(self._at(scope, begin, first + offset)))]

            (partial,) = loop(lane, columns - first, _WARP, add, [constant(0.0, "f32")])
            return [total + convert(partial, "f64")]

        whole = columns // _CHUNK * _CHUNK
        (total,) = loop(i32(0), whole, _CHUNK, add_whole_chunk, [constant(0.0, "f64")])
        (total,) = loop(whole, columns, _CHUNK, add_chunk, [total])
        return _sum_of_lanes(total) / convert(columns, "f64")

    def _stride(self, scope: Scope) -> Value:
        return scope["column_stride0"] * ITEM_BYTES[self.dtype]

    def _at(self, scope: Scope, begin: Pointer, column: Value) -> Pointer:
        return begin.at(signed_to(column, "i64") * self._stride(scope))

    def _load(self, pointer: Pointer) -> Value:
        return pointer.load("f32") if self.dtype == "f32" else widen(pointer.load("i16"), self.dtype)


def _squared(value: Value) -> Value:
    return value * value


def _sum_of_lanes(total: Value) -> Value:
    """One after the other, as the CPU adds them."""
    bits = bitcast(total, "i64")
    low, high = convert(bits, "i32"), convert(bits >> 32, "i32")

    def add(lane: Value, result: Value) -> list[Value]:
        halves = [convert(shuffle_from(half, lane), "i64") for half in (low, high)]
        return [result + bitcast(halves[0] | (halves[1] << 32), "f64")]

    (result,) = loop(i32(0), _WARP, 1, add, [constant(0.0, "f64")])
    return result
