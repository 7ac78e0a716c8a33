"""What functions say of themselves, as passes read it: what is wrong fails the pass, at its place."""

from torch_mlir import ir

from steelyard.errors import ConstraintError
from steelyard.ir.weights import WeightForm, weight_form
from steelyard.passes.pipeline.registry import fail


def declared_form(function: ir.Operation) -> WeightForm | None:
    """The form of the weight that a function makes."""
    try:
        return weight_form(function)
    except ConstraintError as error:
        fail(function, str(error))
