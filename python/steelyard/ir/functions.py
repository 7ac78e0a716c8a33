"""Functions as values of a pass: their arguments and what they say of themselves."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from torch_mlir import ir

from steelyard.dialect.types import TensorType
from steelyard.errors import IRError
from steelyard.ir.attributes import PARAMETER, SOURCES, STATE, TANGENT, WEIGHT


def argument_attributes(function: ir.Operation) -> list[dict[str, ir.Attribute]]:
    """The attributes of each argument of a function."""
    if "arg_attrs" not in function.attributes:
        return [{} for _ in _function_type(function).inputs]
    dictionaries = ir.ArrayAttr(function.attributes["arg_attrs"])
    return [{entry.name: entry.attr for entry in ir.DictAttr(one)} for one in dictionaries]


def argument_types(function: ir.Operation) -> list[ir.Type]:
    """The type of each argument of a function."""
    return list(_function_type(function).inputs)


def argument_name(argument: ir.BlockArgument, attribute: str) -> str | None:
    """The name that an attribute gives to an argument of a function."""
    own = _attributes_of(argument)
    return ir.StringAttr(own[attribute]).value if attribute in own else None


def _attributes_of(argument: ir.BlockArgument) -> ir.DictAttr:
    """The attributes of one argument. A function has hundreds: a pass must not read all of them for each."""
    function = argument.owner.owner
    if "arg_attrs" not in function.attributes:
        return ir.DictAttr.get({}, context=function.context)
    return ir.DictAttr(ir.ArrayAttr(function.attributes["arg_attrs"])[argument.arg_number])


def kept_arguments(function: ir.Operation) -> set[ir.Value]:
    """The arguments that the caller keeps after a call: parameters, what is made from them, and state."""
    pairs = zip(function.regions[0].blocks[0].arguments, argument_attributes(function), strict=True)
    return {argument for argument, own in pairs if PARAMETER in own or STATE in own}


def add_argument(
    block: ir.Block, type_: ir.Type, location: ir.Location, attributes: Mapping[str, ir.Attribute]
) -> ir.BlockArgument:
    """Append an argument to the function whose first block this is."""
    function = block.owner
    # As they are: a pass adds hundreds of arguments to a function that has hundreds.
    known = ir.ArrayAttr(function.attributes["arg_attrs"]) if "arg_attrs" in function.attributes else None
    others = [ir.DictAttr.get({}) for _ in block.arguments] if known is None else list(known)
    argument = block.add_argument(type_, location)
    old = _function_type(function)
    new = ir.FunctionType.get([*old.inputs, type_], old.results)
    function.attributes["function_type"] = ir.TypeAttr.get(new)
    function.attributes["arg_attrs"] = ir.ArrayAttr.get([*others, ir.DictAttr.get(dict(attributes))])
    return argument


def functions_of(module: ir.Operation) -> list[ir.Operation]:
    """The functions of a module that have a body."""
    operations = [op.operation for op in module.regions[0].blocks[0].operations]
    return [op for op in operations if op.name == "func.func" and len(op.regions[0].blocks) > 0]


def has_backward(module: ir.Operation) -> bool:
    """Whether a module of partitioned functions computes gradients."""
    names = (function.attributes["sym_name"] for function in functions_of(module))
    return any(ir.StringAttr(name).value == "backward" for name in names)


def replace_arguments(
    function: ir.Operation, split: Callable[[ir.Value], Sequence[tuple[str, ir.Type]] | None], mark: str = ""
) -> list[tuple[ir.BlockArgument, list[ir.Value]]]:
    """Put several arguments in the place of one, where `split` names and types them; `mark`, if any, is the attribute
    that names each.

    Returns the arguments that were replaced, which the caller must leave without uses, and what stands for them.
    """
    block = function.regions[0].blocks[0]
    old, known = list(block.arguments), argument_attributes(function)
    attributes: list[dict[str, ir.Attribute]] = []
    replaced: list[tuple[ir.BlockArgument, list[ir.Value]]] = []
    positions: list[int | None] = []
    for argument, own in zip(old, known, strict=True):
        parts = split(argument)
        positions.append(len(attributes) if parts is None else None)
        new: list[ir.Value] = [
            block.add_argument(type_, argument.location) for _, type_ in parts or [("", argument.type)]
        ]
        if parts is None:
            argument.replace_all_uses_with(new[0])
            attributes.append(own)
            continue
        attributes += [own | {mark: ir.StringAttr.get(name)} if mark else dict(own) for name, _ in parts]
        replaced.append((argument, new))
    _renumber_sources(attributes, positions)
    types = [argument.type for argument in block.arguments][len(old) :]
    _set_type(function, types, _function_type(function).results)
    function.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(one) for one in attributes])
    return replaced


def _renumber_sources(attributes: list[dict[str, ir.Attribute]], positions: Sequence[int | None]) -> None:
    """Number the sources of weights again after arguments have moved."""
    for own in attributes:
        if SOURCES in own:
            numbers = [positions[i] for i in ir.DenseI64ArrayAttr(own[SOURCES])]
            if None in numbers:
                raise IRError(f"{SOURCES} must name arguments that stay as they are, got {own[SOURCES]}")
            own[SOURCES] = ir.DenseI64ArrayAttr.get([number for number in numbers if number is not None])


def erase_arguments(function: ir.Operation, count: int) -> None:
    """Erase the first arguments, which `replace_arguments` left behind."""
    for number in reversed(range(count)):
        function.regions[0].blocks[0].erase_argument(number)


def result_attributes(function: ir.Operation) -> list[dict[str, ir.Attribute]]:
    """The attributes of each result of a function."""
    if "res_attrs" not in function.attributes:
        return [{} for _ in _function_type(function).results]
    dictionaries = ir.ArrayAttr(function.attributes["res_attrs"])
    return [{entry.name: entry.attr for entry in ir.DictAttr(one)} for one in dictionaries]


def replace_results(
    function: ir.Operation, split: Callable[[ir.Value], Sequence[tuple[str, ir.Value]] | None], mark: str = ""
) -> None:
    """Return several values in the place of one, where `split` names them; the attribute `mark`, if any, does too."""
    terminator = terminator_of(function)
    values: list[ir.Value] = []
    attributes: list[dict[str, ir.Attribute]] = []
    for value, own in zip(terminator.operands, result_attributes(function), strict=True):
        parts = split(value)
        if parts is None:
            values.append(value)
            attributes.append(own)
            continue
        values += [part for _, part in parts]
        attributes += [own | {mark: ir.StringAttr.get(name)} if mark else own for name, _ in parts]
    ir.Operation.create("func.return", operands=values, loc=terminator.location, ip=ir.InsertionPoint(terminator))
    terminator.erase()
    _set_type(function, _function_type(function).inputs, [value.type for value in values])
    if any(attributes):
        function.attributes["res_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(one) for one in attributes])


def append_results(function: ir.Operation, results: Sequence[tuple[ir.Value, Mapping[str, ir.Attribute]]]) -> None:
    """Return more values, each with attributes of its own."""
    if not results:
        return
    known = result_attributes(function)
    terminator = terminator_of(function)
    values = [*terminator.operands, *(value for value, _ in results)]
    ir.Operation.create("func.return", operands=values, loc=terminator.location, ip=ir.InsertionPoint(terminator))
    terminator.erase()
    _set_type(function, _function_type(function).inputs, [value.type for value in values])
    attributes = [*known, *(attributes for _, attributes in results)]
    function.attributes["res_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(dict(one)) for one in attributes])


def terminator_of(function: ir.Operation) -> ir.Operation:
    """The op that returns."""
    operations = function.regions[0].blocks[0].operations
    return operations[len(operations) - 1].operation


def weight_arguments(functions: Iterable[ir.Operation]) -> dict[str, list[ir.BlockArgument]]:
    """The quantized tensors that stand for each weight, by its function."""
    found: dict[str, list[ir.BlockArgument]] = {}
    for function in functions:
        arguments = function.regions[0].blocks[0].arguments
        for argument, attributes in zip(arguments, argument_attributes(function), strict=True):
            if WEIGHT in attributes and isinstance(argument.type, TensorType):
                found.setdefault(ir.FlatSymbolRefAttr(attributes[WEIGHT]).value, []).append(argument)
    return found


def is_training(function: ir.Operation) -> bool:
    """Whether a function has gradients: it is a forward and its backward in one."""
    return any(TANGENT in attributes for attributes in argument_attributes(function))


def refresh_type(function: ir.Operation) -> None:
    """Let the function's type follow that of its arguments."""
    types = [argument.type for argument in function.regions[0].blocks[0].arguments]
    _set_type(function, types, _function_type(function).results)


def is_private(function: ir.Operation) -> bool:
    """Whether only ops and functions of the module run a function."""
    visibility = function.attributes.get("sym_visibility")
    return visibility is not None and ir.StringAttr(visibility).value == "private"


def _set_type(function: ir.Operation, inputs: Sequence[ir.Type], results: Sequence[ir.Type]) -> None:
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(list(inputs), list(results)))


def make_private_function(
    module: ir.Operation, name: str, arguments: list[ir.BlockArgument], results: list[ir.Type], location: ir.Location
) -> ir.Block:
    """A new function with arguments like these; returns its empty block."""
    attributes = [_attributes_of(argument) for argument in arguments]
    types = [argument.type for argument in arguments]
    function = ir.Operation.create(
        "func.func",
        regions=1,
        attributes={
            "sym_name": ir.StringAttr.get(name),
            "sym_visibility": ir.StringAttr.get("private"),
            "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, results)),
            "arg_attrs": ir.ArrayAttr.get(attributes),
        },
        loc=location,
        ip=ir.InsertionPoint(module.regions[0].blocks[0]),
    )
    return ir.Block.create_at_start(function.regions[0], types, [location] * len(types))


Argument = ir.Value | tuple[ir.Value, ir.Value]
"""A value that an argument stands for; with a second one, which has the argument's type."""


def make_function(
    module: ir.Operation,
    name: str,
    arguments: Sequence[tuple[Argument, Mapping[str, ir.Attribute]]],
    ops: Sequence[ir.Operation],
    results: Sequence[tuple[ir.Value, Mapping[str, ir.Attribute]]],
    location: ir.Location,
    substitutes: Mapping[ir.Value, ir.Value] | None = None,
) -> None:
    """A new function of copies of ops: values that `arguments` names come from outside.

    The ops read what `substitutes` gives in the place of a value.
    """
    substitutes = substitutes or {}
    pairs = [value if isinstance(value, tuple) else (value, value) for value, _ in arguments]
    types = [typed.type for _, typed in pairs]
    function = ir.Operation.create(
        "func.func",
        regions=1,
        attributes={
            "sym_name": ir.StringAttr.get(name),
            "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, [value.type for value, _ in results])),
            "arg_attrs": ir.ArrayAttr.get([ir.DictAttr.get(dict(own)) for _, own in arguments]),
            "res_attrs": ir.ArrayAttr.get([ir.DictAttr.get(dict(own)) for _, own in results]),
        },
        loc=location,
        ip=ir.InsertionPoint(module.regions[0].blocks[0]),
    )
    block = ir.Block.create_at_start(function.regions[0], types, [value.location for _, value in pairs])
    copies: dict[ir.Value, ir.Value] = {value: copy for (value, _), copy in zip(pairs, block.arguments, strict=True)}
    with ir.InsertionPoint(block):
        for op in ops:
            clone = op.clone()
            for index, operand in enumerate(op.operands):
                clone.operands[index] = copies[substitutes.get(operand, operand)]
            copies.update(zip(op.results, clone.results, strict=True))
        ir.Operation.create("func.return", operands=[copies[value] for value, _ in results], loc=location)


def _function_type(function: ir.Operation) -> ir.FunctionType:
    return ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
