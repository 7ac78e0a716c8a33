"""What declarations and functions say of themselves, as passes read it: what is wrong fails the pass, at its place."""

from torch_mlir import ir

from steelyard.errors import ConstraintError
from steelyard.ir.kernel_calls import KernelCall, declarations_of, read_call
from steelyard.ir.weights import WeightForm, weight_form
from steelyard.passes.pipeline.registry import fail


def read_declared(declaration: ir.Operation) -> KernelCall:
    """The call that a declaration describes."""
    try:
        return read_call(declaration)
    except ConstraintError as error:
        fail(declaration, str(error))


def declared_calls(module: ir.Operation) -> dict[str, KernelCall]:
    """The calls that a module declares, by symbol."""
    return {symbol: read_declared(declaration) for symbol, declaration in declarations_of(module).items()}


def declared_form(function: ir.Operation) -> WeightForm | None:
    """The form of the weight that a function makes."""
    try:
        return weight_form(function)
    except ConstraintError as error:
        fail(function, str(error))
