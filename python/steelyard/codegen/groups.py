"""Kernels on tensors in groups: each block finds its group, and then works on a matrix like any other."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from steelyard.codegen.kernel import Kernel, Parameter, Scope, TileKernel
from steelyard.codegen.memory import shuffle_xor
from steelyard.codegen.sizes import Size, ceil_div, plus
from steelyard.codegen.sources import tiles_of
from steelyard.codegen.values import Value, constant, convert, loop, select, signed_to, when

_WARP = 32


@dataclass(frozen=True)
class GroupedKernel(Kernel):
    """A kernel on each of `groups` matrices: those of a stack, or groups of rows that end where `ends` says.

    Of each pointer of which every group has its own part, `<pointer>_step` says how many bytes a group takes, or so
    many rows of it as share what is stored. `row_multiple`: what the rows of each group were filled up to.
    """

    each: TileKernel
    groups: int
    is_stack: bool = False
    row_multiple: int = 1

    @property
    def name(self) -> str:
        return f"{self.each.name}_{'stack' if self.is_stack else 'groups'}_of_{self.groups}"

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        steps = (Parameter(f"{name}_step", "i64") for name in self.shared_rows)
        ends = () if self.is_stack else (Parameter("ends"),)
        return (*self.each.parameters, *steps, *ends)

    @property
    def shared_rows(self) -> dict[str, int]:
        """Those of the kernel; what was filled up is a multiple of rows, and all groups of a stack are alike."""
        own = self.each.shared_rows
        return {name: 0 if self.is_stack or not rows else max(rows, self.row_multiple) for name, rows in own.items()}

    def blocks(self, rows: Size, columns: Size) -> Size:
        """Rows of a stack are those of one matrix. Groups of rows begin a tile each, wherever the last one ended."""
        side = self.each.side
        if self.is_stack:
            return self.groups * tiles_of(rows, columns, side)
        return plus(rows // side, self.groups) * ceil_div(columns, side)

    def body(self, scope: Scope) -> None:
        side = self.each.side
        across = (scope["columns"] + (side - 1)) // side
        line, column = scope.block // across, scope.block % across
        group = self._find(scope, line)
        rows, first_line = group.rows, group.first_line
        own = replace(
            scope,
            arguments={**scope.arguments, **self._parts(scope, group), "rows": _rounded_up(rows, self.row_multiple)},
            block=(line - first_line) * across + column,
            group=group.number,
        )
        # Of a group without rows, no block is left.
        when((line - first_line) * side < rows, lambda: self.each.body(own))

    def _find(self, scope: Scope, line: Value) -> "_Group":
        """The group that a line of tiles is of."""
        side = self.each.side
        if self.is_stack:
            rows = scope["rows"]
            lines = (rows + (side - 1)) // side
            return _Group(line // lines, rows, line // lines * lines)
        ends = _Ends(scope)

        def begins_here(index: Value) -> Value:
            """Whether the group behind one begins at this line of tiles or before."""
            return convert(ends.end(index) // side + index + 1 <= line, "i32")

        number = ends.sum(constant(self.groups - 1, "i32"), begins_here)
        start = ends.start(number)
        return _Group(number, ends.end(number) - start, start // side + number, start, ends)

    def _parts(self, scope: Scope, group: "_Group") -> dict[str, Value]:
        """Where the group's own parts begin."""
        shared = self.shared_rows
        steps = {rows: signed_to(group.steps(rows), "i64") for rows in dict.fromkeys(shared.values())}
        return {
            name: scope.pointer(name).at(steps[rows] * scope[f"{name}_step"]).address for name, rows in shared.items()
        }


class _Ends:
    """Where groups of rows end; the lanes of a warp look at as many groups at once."""

    def __init__(self, scope: Scope):
        self._pointer, self._lane = scope.pointer("ends"), scope.thread & (_WARP - 1)

    def end(self, group: Value) -> Value:
        return self._pointer.at(signed_to(group, "i64") * 4).load("i32")

    def start(self, group: Value) -> Value:
        is_first = group.equals(0)
        return select(is_first, constant(0, "i32"), self.end(select(is_first, constant(0, "i32"), group - 1)))

    def sum(self, groups: Value, value: Callable[[Value], Value]) -> Value:
        """The sum of a value of each of the first groups."""
        (found,) = loop(self._lane, groups, _WARP, lambda i, before: [before + value(i)], [constant(0, "i32")])
        for distance in (16, 8, 4, 2, 1):
            found = found + shuffle_xor(found, distance)
        return found


@dataclass(frozen=True)
class _Group:
    """A group: its number, its rows, the number of its first line of tiles, and of groups of rows the first row."""

    number: Value
    rows: Value
    first_line: Value
    first_row: Value | None = None
    ends: _Ends | None = None

    def steps(self, shared: int) -> Value:
        """How much lies before this group: groups, or rows, so many of which share what is stored."""
        if shared == 0 or self.first_row is None or self.ends is None:
            return self.number
        if shared == 1:
            return self.first_row
        ends = self.ends
        return ends.sum(self.number, lambda i: (ends.end(i) - ends.start(i) + (shared - 1)) // shared)


def _rounded_up(rows: Value, multiple: int) -> Value:
    return rows if multiple == 1 else (rows + (multiple - 1)) // multiple * multiple
