"""A function with gradients, a forward and its backward in one, as `scaled-partition` reads it; no pass."""

from torch_mlir import ir

from steelyard.ir.attributes import GRADIENT, MEASURES, RNG, SOURCES, STATE, TANGENT, WEIGHT
from steelyard.ir.functions import argument_attributes, result_attributes
from steelyard.ir.gradients import find_gradients

Attributes = dict[str, ir.Attribute]


class Joint:
    """The arguments, ops and results of a joint function, and which of them are the backward's."""

    def __init__(self, function: ir.Operation):
        self.function = function
        block = function.regions[0].blocks[0]
        *self.ops, terminator = [op.operation for op in block.operations]
        self.arguments: dict[ir.BlockArgument, Attributes] = dict(
            zip(block.arguments, argument_attributes(function), strict=True)
        )
        self._gradients = find_gradients(function)
        results = list(zip(terminator.operands, result_attributes(function), strict=True))
        self.forward_results = [(v, own) for v, own in results if not self._is_backward(v, own)]
        self.backward_results = [(v, own) for v, own in results if self._is_backward(v, own)]
        moved = {value for value, own in self.backward_results if STATE in own}
        self.backward_ops = {op for op in self.ops if makes(op, self._gradients) or makes(op, moved)}

    def reread_ops(self) -> None:
        """Take in ops that were added."""
        self.ops = [op.operation for op in self.function.regions[0].blocks[0].operations][:-1]

    def _is_backward(self, value: ir.Value, attributes: Attributes) -> bool:
        if GRADIENT in attributes:
            return True
        if MEASURES in attributes:
            return value in self._gradients
        if STATE not in attributes:
            return False
        # Random bits are those of the gradients.
        return value in self._gradients or ir.StringAttr(attributes[STATE]).value == RNG

    def weights_in(self, read: set[ir.Value]) -> set[ir.BlockArgument]:
        """The weights among some values; parts of a weight come together."""
        named = [(argument, str(own[WEIGHT])) for argument, own in self.arguments.items() if WEIGHT in own]
        names = {name for argument, name in named if argument in read}
        return {argument for argument, name in named if name in names}

    def sources_of(self, weights: set[ir.BlockArgument]) -> set[ir.BlockArgument]:
        """The arguments that weights are made from."""
        numbers = {n for weight in weights for n in ir.DenseI64ArrayAttr(self.arguments[weight][SOURCES])}
        return {argument for argument in self.arguments if argument.arg_number in numbers}


def is_primal(own: Attributes) -> bool:
    """An argument of the graph itself, not state or a weight that passes added."""
    return STATE not in own and WEIGHT not in own and TANGENT not in own


def makes(op: ir.Operation, values: set[ir.Value]) -> bool:
    """Whether a result of an op is among some values."""
    return any(result in values for result in op.results)
