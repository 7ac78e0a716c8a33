"""What native GEMMs of CUDA read of their operands: `Form`, and how a quantized tensor comes into one.

Weights are converted in the functions that make them, once per update.
"""

from dataclasses import replace

from torch_mlir import ir

from steelyard.dialect.layout import flatten, pad, padded_shape, swizzle, turn
from steelyard.dialect.matmul import GemmOp
from steelyard.dialect.quantize import narrow
from steelyard.dialect.types import Shape, TensorType, scaled_info_of
from steelyard.ir.functions import (
    erase_arguments,
    functions_of,
    replace_arguments,
    replace_results,
    terminator_of,
    weight_arguments,
)
from steelyard.ir.gemm_plans import Form, GemmPlan
from steelyard.ir.weights import WeightForm, describe_weight
from steelyard.passes.support.declared import declared_form
from steelyard.targets.gemm_paths import NATIVE

Plans = dict[ir.Value, GemmPlan]
"""By a GEMM's result: the hash of an op changes with its operands."""
Forms = dict[tuple[ir.Value, Form], ir.Value]
"""What a value is in a form."""


def convert(value: ir.Value, form: Form) -> ir.Value:
    """A quantized tensor in a form, made at the current place."""
    if len(scaled_info_of(value).schemes) > 1:
        value = narrow(value, form.usage).result
    if len(scaled_info_of(value).shape) > 2:
        value = flatten(value).result
    shape = scaled_info_of(value).shape
    if None in _padded(shape, form) or padded_shape(shape, form.multiples) != shape:
        value = pad(value, form.multiples).result
    scheme = scaled_info_of(value).copy_of(form.usage)
    assert scheme is not None, "a form is of a copy that there is"
    if scheme.family == "mx" and form.usage == "columnwise":
        value = turn(value).result
    return swizzle(value).result if scheme.has_blocks else value


def _padded(shape: Shape, form: Form) -> list[int | None]:
    """The sizes of the dims that are padded at all."""
    return [size for size, multiple in zip(shape, form.multiples, strict=True) if multiple > 1]


def convert_weights(module: ir.Operation, plans: Plans) -> Forms:
    """Let the functions of weights return each form that GEMMs read; the arguments that stand for them have it then."""
    functions = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in functions_of(module)}
    wanted: dict[ir.Value, dict[Form | None, ir.Type]] = {}
    for name, arguments in weight_arguments(functions.values()).items():
        forms = list(dict.fromkeys(_form_read(use, plans) for argument in arguments for use in argument.uses))
        if name in functions and any(form is not None for form in forms):
            types = _return_forms(functions[name], forms)
            wanted |= {argument: dict(zip(forms, types, strict=True)) for argument in arguments}
    converted: Forms = {}
    for function in functions.values():
        converted |= _take_forms(function, wanted, plans)
    return converted


def _form_read(use: ir.OpOperand, plans: Plans) -> Form | None:
    """The form that a reader wants; None where it reads a tensor as it is."""
    op = use.owner.opview
    if not isinstance(op, GemmOp) or plans[op.result].path != NATIVE:
        return None
    return plans[op.result].forms(op.kind.value)[use.operand_number]


def _return_forms(function: ir.Operation, forms: list[Form | None]) -> list[ir.Type]:
    """Return a weight in these forms; the types of what is returned."""
    types: list[ir.Type] = []
    described = declared_form(function)

    def converted(value: ir.Value) -> list[tuple[str, ir.Value]] | None:
        if not isinstance(value.type, TensorType):
            return None
        with ir.InsertionPoint(terminator_of(function)), value.location:
            made = [value if form is None else convert(value, form) for form in forms]
        types.extend(one.type for one in made)
        return [("", one) for one in made]

    replace_results(function, converted)
    describe_weight(function, _described_in(described, forms))
    return types


def _described_in(weight: WeightForm | None, forms: list[Form | None]) -> WeightForm | None:
    """What a weight is in these forms; None if it is in several, which no parameter holds."""
    if weight is None or len(forms) > 1:
        return None
    (form,) = forms
    return weight if form is None else replace(weight, layout="gemm", multiples=form.multiples)


def _take_forms(function: ir.Operation, wanted: dict[ir.Value, dict[Form | None, ir.Type]], plans: Plans) -> Forms:
    """Take a weight's forms in the place of the weight."""
    arguments = list(function.regions[0].blocks[0].arguments)
    converted: Forms = {}
    if not any(argument in wanted for argument in arguments):
        return converted

    def split(argument: ir.Value) -> list[tuple[str, ir.Type]] | None:
        return [("", type_) for type_ in wanted[argument].values()] if argument in wanted else None

    for old, new in replace_arguments(function, split):
        forms = dict(zip(wanted[old], new, strict=True))
        for use in list(old.uses):
            form = _form_read(use, plans)
            use.owner.operation.operands[use.operand_number] = forms[form]
            if form is not None:
                converted[forms[form], form] = forms[form]
    erase_arguments(function, len(arguments))
    return converted
