"""Norms, activations and sums that are computed where they are needed, in float32."""

from dataclasses import dataclass

from steelyard.codegen.activations import ACTIVATIONS, silu
from steelyard.codegen.kernel import Parameter, Scope
from steelyard.codegen.tile import widen
from steelyard.codegen.values import Value, signed_to

_PAIRS = ("silu_and_multiply", "add")
_NORMS = ("layer_norm", "rms_norm")
KINDS = (*ACTIVATIONS, *_PAIRS, *_NORMS)
STATISTICS = 3  # mean, what its float32 leaves, and scale: of each row


@dataclass(frozen=True)
class Producer:
    """A producer and, of norms, the dtypes of weight and bias; empty for none."""

    kind: str
    weight: str = ""
    bias: str = ""

    @property
    def name(self) -> str:
        vectors = "".join(f"_{name}" for name in (self.weight, self.bias) if name)
        return f"{self.kind}{vectors}"

    @property
    def is_norm(self) -> bool:
        return self.kind in _NORMS

    @property
    def inputs(self) -> int:
        return 2 if self.kind in _PAIRS else 1

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        if not self.is_norm:
            return ()
        vectors = [
            parameter
            for name in ("weight", "bias")
            if getattr(self, name)
            for parameter in (Parameter(name), Parameter(f"{name}_stride", "i64"))
        ]
        return (Parameter("statistics"), *vectors)

    def make(self, scope: Scope, inputs: list[list[Value]], row: Value, column: Value) -> list[Value]:
        """Values of neighbouring columns of a row, not yet rounded to the dtype."""
        if self.kind in ACTIVATIONS:
            return [ACTIVATIONS[self.kind](value) for value in inputs[0]]
        if self.kind == "add":
            return [a + b for a, b in zip(*inputs, strict=True)]
        if self.kind == "silu_and_multiply":
            return [silu(a) * b for a, b in zip(*inputs, strict=True)]
        return self._normalize(scope, inputs[0], row, column)

    def _normalize(self, scope: Scope, values: list[Value], row: Value, column: Value) -> list[Value]:
        own = scope.pointer("statistics").at(signed_to(row, "i64") * (4 * STATISTICS))
        if self.kind == "layer_norm":
            mean, mean_rest = (own.at(4 * index).load("f32") for index in range(2))
            values = [(value - mean) - mean_rest for value in values]
        scale = own.at(4 * (STATISTICS - 1)).load("f32")
        results = []
        for index, value in enumerate(values):
            result = value * scale
            if self.weight:
                result = result * _read(scope, "weight", self.weight, column + index)
            if self.bias:
                result = result + _read(scope, "bias", self.bias, column + index)
            results.append(result)
        return results


def _read(scope: Scope, name: str, dtype: str, column: Value) -> Value:
    offset = signed_to(column, "i64") * scope[f"{name}_stride"]
    if dtype == "f32":
        return scope.pointer(name).at(offset * 4).load("f32")
    return widen(scope.pointer(name).at(offset * 2).load("i16"), dtype)
