"""What follows a product that its GEMM cannot take: bias, activation, residual, and one rounding."""

from collections.abc import Callable
from dataclasses import dataclass

from steelyard.codegen.activations import ACTIVATIONS
from steelyard.codegen.kernel import Kernel, Parameter, Scope
from steelyard.codegen.sizes import Size
from steelyard.codegen.sources import Place, place_of, tiles_of
from steelyard.codegen.tile import ITEM_BYTES, narrow, narrow_words, widen, widen_word
from steelyard.codegen.values import Value, loop, select, signed_to, when

_SIDE = 64
_VECTOR_BYTES = 16
_UNROLLED = 2  # independent loads in flight


@dataclass(frozen=True)
class EpilogueKernel(Kernel):
    """`activation(source + bias) + residual` of a float32 source, in float32.

    The dtypes of addends are empty where there are none. `preactivation`: what the activation is given is stored too,
    rounded to the dtype. `aligned`: rows of all matrices, and the bias, are whole 16-byte vectors at aligned addresses.
    """

    dtype: str
    activation: str = "none"
    bias: str = ""
    residual: str = ""
    preactivation: bool = False
    aligned: bool = True

    @property
    def name(self) -> str:
        addends = [f"{name}_{getattr(self, name)}" for name in ("bias", "residual") if getattr(self, name)]
        options = (["preactivation"] if self.preactivation else []) + ([] if self.aligned else ["any"])
        return "_".join(("epilogue", self.activation, self.dtype, *addends, *options))

    @property
    def matrices(self) -> dict[str, str]:
        """The matrices that are read, and their dtypes."""
        return {"source": "f32"} | ({"residual": self.residual} if self.residual else {})

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        own = []
        for name in self.matrices:
            own += [Parameter(name), Parameter(f"{name}_row_stride", "i64")]
            own += [] if self.aligned else [Parameter(f"{name}_column_stride", "i64")]
        if self.bias:
            own += [Parameter("bias")] + ([] if self.aligned else [Parameter("bias_stride", "i64")])
        own += [Parameter("out")] + ([Parameter("preactivation")] if self.preactivation else [])
        return (*own, Parameter("rows", "i32"), Parameter("columns", "i32"))

    @property
    def width(self) -> int:
        """Neighbours that a thread takes at once: a vector of the result."""
        return _VECTOR_BYTES // ITEM_BYTES[self.dtype] if self.aligned else 1

    def blocks(self, rows: Size, columns: Size) -> Size:
        return tiles_of(rows, columns, _SIDE)

    def body(self, scope: Scope) -> None:
        place = place_of(scope, _SIDE)
        per_row = _SIDE // self.width

        def work(first: Value) -> None:
            stores = [self._load(scope, place, first + index * self.threads, per_row) for index in range(_UNROLLED)]
            for store in stores:
                store()

        loop(scope.thread, _SIDE * per_row, self.threads * _UNROLLED, work)

    def _load(self, scope: Scope, place: Place, index: Value, per_row: int) -> Callable[[], None]:
        """Read the neighbours of one vector; the function that stores what becomes of them."""
        row, column = index // per_row, index % per_row * self.width
        inside = place.holds(row, column)
        # Outside of the matrix the first elements are read, which are always there.
        own_row, own_column = (
            select(inside, start + offset, 0) for start, offset in ((place.row, row), (place.column, column))
        )
        read = {name: self._read(scope, name, dtype, own_row, own_column) for name, dtype in self.matrices.items()}
        values = read["source"]
        if self.bias:
            values = _sums(values, self._read_bias(scope, own_column))

        def store() -> None:
            when(inside, lambda: self._store_all(scope, values, read, own_row, own_column))

        return store

    def _store_all(self, scope: Scope, values: list[Value], read: dict, row: Value, column: Value) -> None:
        if self.preactivation:
            self._store(scope, "preactivation", values, row, column)
        if self.activation != "none":
            values = [ACTIVATIONS[self.activation](value) for value in values]
        if self.residual:
            values = _sums(values, read["residual"])
        self._store(scope, "out", values, row, column)

    def _read(self, scope: Scope, name: str, dtype: str, row: Value, column: Value) -> list[Value]:
        along = signed_to(column, "i64")
        along = along if self.aligned else along * scope[f"{name}_column_stride"]
        return self._values(scope, name, dtype, signed_to(row, "i64") * scope[f"{name}_row_stride"] + along)

    def _read_bias(self, scope: Scope, column: Value) -> list[Value]:
        along = signed_to(column, "i64")
        return self._values(scope, "bias", self.bias, along if self.aligned else along * scope["bias_stride"])

    def _values(self, scope: Scope, name: str, dtype: str, index: Value) -> list[Value]:
        """Neighbouring values of a dtype from an element on, as float32."""
        item = ITEM_BYTES[dtype]
        place = scope.pointer(name).at(index * item)
        if not self.aligned:
            return [place.load("f32") if item == 4 else widen(place.load("i16"), dtype)]
        size = self.width * item
        vectors = [min(_VECTOR_BYTES, size - begin) for begin in range(0, size, _VECTOR_BYTES)]
        words = [
            word
            for number, vector in enumerate(vectors)
            for word in place.at(number * _VECTOR_BYTES).load_words(vector // 4)
        ]
        return [value for word in words for value in widen_word(word, dtype)]

    def _store(self, scope: Scope, name: str, values: list[Value], row: Value, column: Value) -> None:
        index = signed_to(row, "i64") * signed_to(scope["columns"], "i64") + signed_to(column, "i64")
        out = scope.pointer(name).at(index * ITEM_BYTES[self.dtype])
        if self.aligned:
            out.store_words(narrow_words(values, self.dtype))
        else:
            out.store(narrow(values[0], self.dtype))


def _sums(left: list[Value], right: list[Value]) -> list[Value]:
    return [a + b for a, b in zip(left, right, strict=True)]
