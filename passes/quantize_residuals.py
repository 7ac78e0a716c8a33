"""`scaled-quantize-residuals`."""

from dataclasses import dataclass

from torch_mlir import ir

from steelyard.dialect.quantize import QuantizeOp, narrow, quantize
from steelyard.dialect.types import ScaledInfo, scaled_info_of, tensor_info
from steelyard.ir.attributes import STATE
from steelyard.ir.bodies import body_names, named_functions, trips_of, with_result_types
from steelyard.ir.functions import (
    argument_name,
    functions_of,
    is_private,
    refresh_type,
    replace_results,
    terminator_of,
)
from steelyard.ir.stablehlo_ops import CONVERT, RESHAPE, TRANSPOSE
from steelyard.ir.torch_ops import defining_op, walk_ops
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.merging import is_recorded, merge_quantizations

_VIEWS = (RESHAPE, TRANSPOSE, CONVERT)


@register_pass
def quantize_residuals(module: ir.Operation) -> None:
    """Quantize what a loop leaves to the loop that is its backward, before it is kept.

    Takes public functions with loops (`scaled.bodies`, `scaled.trips`), of which one takes what another, of as many
    trips, stacked. If its body only quantizes its part, and draws no random bits, that quantization moves to the body
    that makes the part, where it merges with others of the same tensor. Between the loops is a stack of quantized
    matrices, with the copy that is read. If both bodies only hand the part on, from a loop and to a loop, it is the
    bodies of those that count.
    """
    functions = named_functions(module)
    for function in [each for each in functions_of(module) if not is_private(each)]:
        for op in [op.operation for op in function.regions[0].blocks[0].operations]:
            if trips_of(op) is not None:
                for number in range(len(op.operands)):
                    residual = _residual(op, number, functions)
                    if residual is not None:
                        residual.move()


@dataclass(frozen=True)
class _Link:
    """What one loop stacks, and the part of it that a trip of another takes."""

    maker: ir.Operation
    making: ir.Operation
    """The function that is the maker's body."""
    result: int
    part: ir.BlockArgument

    @property
    def made(self) -> ir.Value:
        """The part, where it is made."""
        return terminator_of(self.making).operands[self.result]


@dataclass
class _Residual:
    """What one loop stacks for another, and what the other does with its parts."""

    links: list[_Link]
    """From the outermost loops to the innermost ones."""
    views: list[ir.Operation]
    quantization: QuantizeOp
    scale: ir.Value | None
    """In the innermost body that makes the part."""

    @property
    def making(self) -> ir.Operation:
        return self.links[-1].making

    @property
    def result(self) -> int:
        return self.links[-1].result

    def move(self) -> None:
        """Quantize in the maker's body."""
        info = scaled_info_of(self.quantization.result)
        self._quantize_part(info)
        self.quantization.result.replace_all_uses_with(self.links[-1].part)
        for op in (self.quantization.operation, *reversed(self.views)):
            op.erase()
        for link in reversed(self.links):
            # An outer body returns what the loop in it stacks.
            replace_results(link.making, lambda _: None)
            link.part.set_type(info.type())
            refresh_type(link.part.owner.owner)
            info = info.stacked(trips_of(link.maker) or 0)
            types = [result.type for result in link.maker.results]
            types[link.result] = info.type()
            with_result_types(link.maker, types)

    def _quantize_part(self, info: ScaledInfo) -> None:
        terminator, old = terminator_of(self.making), self.quantization
        value = terminator.operands[self.result]
        with ir.InsertionPoint(terminator), old.location:
            for view in self.views:
                copy = view.clone()
                copy.operation.operands[0] = value
                value = copy.operation.result
            made = quantize(
                value,
                info.row,
                info.col,
                role=old.role.value,
                layer=old.layer.value,
                scale=self.scale,
                new_amax=is_recorded(self.making, value, old),
            )
        terminator.operands[self.result] = made.result
        merge_quantizations(walk_ops(self.making))
        whole = terminator.operands[self.result]
        if len(scaled_info_of(whole).schemes) > len(info.schemes):
            usage = "columnwise" if info.row is None else "rowwise"
            with ir.InsertionPoint(terminator), terminator.location:
                terminator.operands[self.result] = narrow(whole, usage).result


def _residual(op: ir.Operation, number: int, functions: dict[str, ir.Operation]) -> _Residual | None:
    """What an operand of a loop is, if it can be quantized by the loop that makes it."""
    links = _links(op, number, functions)
    views, last = _followed(links[-1].part) if links else ([], None)
    quantization = None if last is None else last.opview
    if not isinstance(quantization, QuantizeOp) or quantization.rng is not None or quantization.new_amax is not None:
        return None
    scale = None if quantization.scale is None else _state_like(quantization.scale, links[-1].making)
    if (scale is None) != (quantization.scale is None):
        return None
    if len(scaled_info_of(quantization.result).shape) != 2 or scaled_info_of(quantization.result).groups:
        return None
    return _Residual(links, views, quantization, scale)


def _links(op: ir.Operation, number: int, functions: dict[str, ir.Operation]) -> list[_Link]:
    """The loops that stack an operand of a loop, and those that take its parts, as deep as both only hand it on."""
    links: list[_Link] = []
    value = op.operands[number]
    while (link := _link(value, op, number, functions)) is not None:
        links.append(link)
        uses = list(link.part.uses)
        if len(uses) != 1 or trips_of(uses[0].owner.operation) is None:
            break
        op, number, value = uses[0].owner.operation, uses[0].operand_number, link.made
    return links


def _link(value: ir.Value, op: ir.Operation, number: int, functions: dict[str, ir.Operation]) -> _Link | None:
    """What the loop that makes a value is to the loop that takes it as its operand of that number."""
    maker = defining_op(value)
    if maker is None or trips_of(maker) is None or trips_of(maker) != trips_of(op) or len(list(value.uses)) != 1:
        return None
    names = [*body_names(maker), *body_names(op)]
    if len(names) != 2:
        return None
    making, reading = (functions[name] for name in names)
    results: list[ir.Value] = list(maker.results)
    link = _Link(maker, making, results.index(value), reading.regions[0].blocks[0].arguments[number])
    return link if _is_stack(value, link.part) and link.made.type == link.part.type else None


def _is_stack(value: ir.Value, part: ir.Value) -> bool:
    whole, info = tensor_info(value.type), tensor_info(part.type)
    return (
        whole is not None and info is not None and whole.shape[1:] == info.shape and len(whole.shape) > len(info.shape)
    )


def _followed(value: ir.Value) -> tuple[list[ir.Operation], ir.Operation | None]:
    """The views of a value that nothing else reads, and the only op that reads the last of them."""
    views: list[ir.Operation] = []
    while True:
        uses = list(value.uses)
        if len(uses) != 1:
            return views, None
        reader = uses[0].owner.operation
        if reader.name not in _VIEWS:
            return views, reader
        views.append(reader)
        value = reader.result


def _state_like(scale: ir.Value, function: ir.Operation) -> ir.Value | None:
    """The argument of a function that is the same state as an argument of another."""
    name = argument_name(ir.BlockArgument(scale), STATE) if isinstance(scale, ir.BlockArgument) else None
    arguments = function.regions[0].blocks[0].arguments
    return next((each for each in arguments if name is not None and argument_name(each, STATE) == name), None)
