"""One layer's part of a module, as text for people.

An excerpt keeps the names that values have in the whole text. What it leaves out is marked by `// ...`, so tools do
not read it.
"""

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from torch_mlir import ir

from steelyard.dialect import print_module
from steelyard.dialect.assembly.tokens import closing, split_at_commas
from steelyard.errors import SteelyardError
from steelyard.ir.attributes import PLAN
from steelyard.ir.locations import layer_of
from steelyard.ir.torch_ops import walk_ops

ELIDED = "// ..."


def print_layers(module: ir.Operation, pattern: str) -> str:
    """The ops of the layers whose names match a pattern, in their functions, with the constants they read."""
    check_matched(layers_of(module), pattern)
    return "\n".join(_Excerpt(module, pattern).lines) + "\n"


def layers_of(module: ir.Operation) -> list[str]:
    """The layers that the ops of a module belong to, in the order of their first ops."""
    return list(dict.fromkeys(layer for op in walk_ops(module) if (layer := layer_name(op))))


def check_matched(layers: Iterable[str], pattern: str) -> None:
    """Refuse a pattern that none of these layers matches."""
    if not any(fnmatchcase(layer, pattern) for layer in layers):
        known = ", ".join(sorted(layers)) or "none"
        raise SteelyardError(f"no layer of this stage matches {pattern!r}; the layers are: {known}")


def layer_name(op: ir.Operation) -> str:
    """The layer that an op belongs to; empty where it belongs to none."""
    if "layer" in op.attributes:
        layer = op.attributes["layer"]
        if isinstance(layer, ir.StringAttr) and layer.value:
            return layer.value
    return layer_of(op.location)


def lines_with_layers(module: ir.Operation) -> list[tuple[str, str]]:
    """Each line of a module's text, with the layer that its op belongs to; empty where it belongs to none."""
    lines = print_module(module).splitlines()
    layers = [""] * len(lines)
    _fill_module(module, lines, layers, 0, len(lines))
    return list(zip(layers, lines, strict=True))


def _fill_module(module: ir.Operation, lines: Sequence[str], layers: list[str], start: int, end: int) -> None:
    for op, span in zip(module.regions[0].blocks[0].operations, _op_spans(lines, start + 1, end - 1), strict=True):
        if op.operation.name == "builtin.module" and PLAN not in op.attributes:
            _fill_module(op.operation, lines, layers, *span)
        elif op.operation.name == "func.func" and span[1] > span[0] + 1:
            ops = [inner.operation for block in op.operation.regions[0].blocks for inner in block.operations]
            for inner, (first, last) in zip(ops, _function_spans(lines, *span), strict=True):
                layers[first:last] = [layer_name(inner)] * (last - first)


def _op_spans(lines: Sequence[str], start: int, end: int) -> Iterator[tuple[int, int]]:
    """The lines of each op of a body: the first, and those below it that are indented further or close it."""
    while start < end:
        indent = _indent(lines[start])
        last = start + 1
        while last < end and (lines[last].startswith(f"{indent} ") or lines[last].startswith(f"{indent}}}")):
            last += 1
        yield start, last
        start = last


def _function_spans(lines: Sequence[str], start: int, end: int) -> list[tuple[int, int]]:
    """The lines of each op of a function, without the labels of its blocks."""
    return [span for span in _op_spans(lines, start + 1, end - 1) if not lines[span[0]].lstrip().startswith("^")]


class _Excerpt:
    def __init__(self, module: ir.Operation, pattern: str):
        self._pattern = pattern
        self._symbols: set[str] = set()
        self._source = print_module(module).splitlines()
        self.lines = self._module(module, 0, len(self._source))

    def _module(self, module: ir.Operation, start: int, end: int) -> list[str]:
        """A module with the functions and modules that have something to show, and the declarations they read."""
        ops = list(module.regions[0].blocks[0].operations)
        spans = list(_op_spans(self._source, start + 1, end - 1))
        shown: dict[int, list[str]] = {}
        # Other modules may have the same names for other things.
        self._symbols = set()
        for index, (op, span) in enumerate(zip(ops, spans, strict=True)):
            if op.operation.name == "builtin.module" and PLAN not in op.attributes:
                shown[index] = self._module(op.operation, *span)
            elif op.operation.name == "func.func" and span[1] > span[0] + 1:
                shown[index] = self._function(op.operation, *span)
        for index, (op, span) in enumerate(zip(ops, spans, strict=True)):
            if index not in shown and _declared(op.operation) in self._symbols:
                shown[index] = self._source[slice(*span)]
        if not any(shown.values()):
            return []
        return [self._source[start], *self._with_gaps(spans, shown), self._source[end - 1]]

    def _function(self, function: ir.Operation, start: int, end: int) -> list[str]:
        """A function with the ops of the layers, and the arguments and constants that they read."""
        blocks = list(function.regions[0].blocks)
        ops = [op.operation for block in blocks for op in block.operations]
        spans = _function_spans(self._source, start, end)
        chosen = {op for op in ops if fnmatchcase(layer_name(op), self._pattern)}
        if not chosen:
            return []
        kept = chosen | _constants_read(chosen)
        shown: dict[int, list[str]] = {}
        read: set[ir.Value] = set()
        for index, (op, span) in enumerate(zip(ops, spans, strict=True)):
            if op in kept:
                shown[index] = self._source[slice(*span)]
                read |= set(op.operands)
                self._symbols |= _referenced_symbols(op)
        header = _short_header(self._source[start], [argument in read for argument in blocks[0].arguments])
        return [*header, *self._with_gaps(spans, shown), self._source[end - 1]]

    def _with_gaps(self, spans: Sequence[tuple[int, int]], shown: dict[int, list[str]]) -> Iterator[str]:
        in_gap = False
        for index, (start, _) in enumerate(spans):
            if shown.get(index):
                yield from shown[index]
                in_gap = False
            elif not in_gap:
                yield _indent(self._source[start]) + ELIDED
                in_gap = True


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _declared(op: ir.Operation) -> str:
    """The symbol that an op declares, or plans the launches of."""
    name = op.attributes.get(PLAN, op.attributes.get("sym_name"))
    return name.value if isinstance(name, ir.StringAttr | ir.FlatSymbolRefAttr) else ""


def _referenced_symbols(op: ir.Operation) -> set[str]:
    values = [op.attributes[name] for name in op.attributes]
    return {value.value for value in values if isinstance(value, ir.FlatSymbolRefAttr)}


def _constants_read(ops: Iterable[ir.Operation]) -> set[ir.Operation]:
    """The constants, and the lists of constants, that ops read."""
    is_constant: dict[ir.Operation, bool] = {}

    def visit(value: ir.Value) -> bool:
        if isinstance(value.owner, ir.Block):
            return False
        op = value.owner.operation
        if op not in is_constant:
            is_list = op.name == "torch.prim.ListConstruct"
            is_constant[op] = all(visit(operand) for operand in op.operands) if is_list else not op.operands
        return is_constant[op]

    for op in ops:
        for operand in op.operands:
            visit(operand)
    return {op for op, holds in is_constant.items() if holds}


def _short_header(line: str, keep: Sequence[bool]) -> list[str]:
    """A function's first line with a line for each argument that is read."""
    if all(keep):
        return [line]
    indent = _indent(line)
    start = line.index("(")
    end = closing(line, start)
    arguments = [argument.strip() for argument in split_at_commas(line[start + 1 : end - 1])]
    lines = [line[: start + 1]]
    for argument, kept in zip(arguments, keep, strict=True):
        if kept:
            lines.append(f"{indent}    {argument},")
        elif lines[-1].strip() != ELIDED:
            lines.append(f"{indent}    {ELIDED}")
    return [*lines, f"{indent}) {{ {ELIDED}"]
