"""Scales that are kept or computed on their own: one of a tensor's amax, those of rows of nothing, and those of
delayed scaling."""

from dataclasses import dataclass

import numpy as np

from steelyard.codegen.formats import CANONICAL_NAN
from steelyard.codegen.kernel import Kernel, Parameter, Scope
from steelyard.codegen.memory import Pointer, warp_maximum
from steelyard.codegen.scale_rules import scale_from_amax
from steelyard.codegen.sizes import Size, ceil_div
from steelyard.codegen.values import (
    Value,
    bitcast,
    compare_unsigned,
    constant,
    loop,
    maximum_unsigned,
    negate,
    select,
    signed_to,
    when,
)
from steelyard.formats.schemes import Scheme

_WARP = 32
_INFINITY_BITS = 0x7F800000
SCALE_BYTES = 4


@dataclass(frozen=True)
class ComputeScaleKernel(Kernel):
    """The scale that follows from a tensor's amax."""

    scheme: Scheme
    threads = _WARP

    @property
    def name(self) -> str:
        return f"compute_scale_{self.scheme.element}{'_power_of_two' if self.scheme.power_of_two else ''}"

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return Parameter("amax"), Parameter("scale")

    def blocks(self, rows: Size, columns: Size) -> Size:
        return 1

    def body(self, scope: Scope) -> None:
        scheme = self.scheme
        scale = scale_from_amax(
            scope.pointer("amax").load("f32"),
            scheme.element_max,
            epsilon=scheme.epsilon,
            power_of_two=scheme.power_of_two,
        )
        when(scope.thread.equals(0), lambda: scope.pointer("scale").store(scale))


@dataclass(frozen=True)
class InverseScaleKernel(Kernel):
    """The scales that decode, of those that encode."""

    threads = _WARP

    @property
    def name(self) -> str:
        return "inverse_scale"

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return Parameter("scale"), Parameter("inverse"), Parameter("count", "i32")

    def blocks(self, rows: Size, columns: Size) -> Size:
        return ceil_div(rows, self.threads)

    def body(self, scope: Scope) -> None:
        index = scope.block * self.threads + scope.thread

        def invert() -> None:
            _slot(scope, "inverse", index).store(1.0 / _slot(scope, "scale", index).load("f32"))

        when(index < scope["count"], invert)


@dataclass(frozen=True)
class EmptyRowScalesKernel(Kernel):
    """The scales that decode rows without elements: their amaxes are 0."""

    scheme: Scheme

    @property
    def name(self) -> str:
        return f"empty_row_scales_{self.scheme.element}{'_power_of_two' if self.scheme.power_of_two else ''}"

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return Parameter("scales"), Parameter("lines", "i32")

    def blocks(self, rows: Size, columns: Size) -> Size:
        return ceil_div(rows, self.threads)

    def body(self, scope: Scope) -> None:
        line, scheme = scope.block * self.threads + scope.thread, self.scheme
        scale = scale_from_amax(
            constant(0.0, "f32"), scheme.element_max, epsilon=scheme.epsilon, power_of_two=scheme.power_of_two
        )
        when(line < scope["lines"], lambda: _slot(scope, "scales", line).store(1.0 / scale))


@dataclass(frozen=True)
class UpdateScaleKernel(Kernel):
    """One step of delayed scaling by one warp: `amax` is the newest, kept in slot 0 of the history.

    There is a block for each of `count` scales. Each has a column of the history, whose rows are the slots.
    """

    scheme: Scheme
    margin: int = 0
    most_recent: bool = False
    threads = _WARP

    @property
    def name(self) -> str:
        options = ["power_of_two"] if self.scheme.power_of_two else []
        options += ["most_recent"] if self.most_recent else []
        margin = f"margin_{self.margin}".replace("-", "minus_")
        return "_".join(("update_scale", self.scheme.element, margin, *options))

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        names = ("scale", "history", "amax", "new_scale", "new_history")
        return (*(Parameter(name) for name in names), Parameter("length", "i32"), Parameter("count", "i32"))

    def blocks(self, rows: Size, columns: Size) -> Size:
        """Columns are those of the history."""
        return columns

    def body(self, scope: Scope) -> None:
        newest, old = (_slot(scope, name, scope.block).load("f32") for name in ("amax", "scale"))
        chosen = newest if self.most_recent else self._largest(scope, newest)
        scale = scale_from_amax(
            chosen,
            float(np.float32(self.scheme.element_max * 2.0**-self.margin)),
            epsilon=self.scheme.epsilon,
            power_of_two=self.scheme.power_of_two,
            fallback=old,
        )
        is_still = newest.equals(0.0)
        new = select(is_still, old, scale)
        when(scope.thread.equals(0), lambda: _slot(scope, "new_scale", scope.block).store(new))
        self._roll(scope, newest, is_still)

    def _largest(self, scope: Scope, newest: Value) -> Value:
        """Over the history with the newest amax in slot 0; NaN counts only where there is nothing else."""

        def grow(index: Value, largest: Value) -> list[Value]:
            kept = _slot_of_column(scope, "history", index).load("f32")
            return [maximum_unsigned(largest, _rank(select(index.equals(0), newest, kept)))]

        (own,) = loop(scope.thread, scope["length"], _WARP, grow, [constant(0, "i32")])
        rank = warp_maximum(own)
        return bitcast(select(rank.equals(0), constant(CANONICAL_NAN, "i32"), rank - 1), "f32")

    def _roll(self, scope: Scope, newest: Value, is_still: Value) -> None:
        """Slot 0 becomes the last one and then 0; nothing moves where the newest amax is 0."""
        last, zero = scope["length"] - 1, constant(0.0, "f32")

        def move(index: Value) -> None:
            following = select(index < last, index + 1, 0)
            kept = _slot_of_column(scope, "history", select(is_still, index, following)).load("f32")
            value = select(negate(is_still) & index.equals(last), newest, kept)
            _slot_of_column(scope, "new_history", index).store(select(index.equals(0), zero, value))

        loop(scope.thread, scope["length"], _WARP, move)


def _rank(amax: Value) -> Value:
    """Orders amaxes, which are not negative, as unsigned integers; NaN comes first."""
    bits = bitcast(amax, "i32")
    return select(compare_unsigned(bits, ">", _INFINITY_BITS), constant(0, "i32"), bits + 1)


def _slot_of_column(scope: Scope, name: str, index: Value) -> Pointer:
    """A slot of the history that a block updates."""
    return _slot(scope, name, index * scope["count"] + scope.block)


def _slot(scope: Scope, name: str, index: Value) -> Pointer:
    return scope.pointer(name).at(signed_to(index, "i64") * SCALE_BYTES)
