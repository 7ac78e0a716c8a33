"""`scaled-hoist-from-checkpoints`."""

from torch_mlir import ir

from steelyard.dialect.quantize import QuantizeOp, quantize
from steelyard.dialect.types import scaled_info_of
from steelyard.ir.attributes import HANDED, STATE
from steelyard.ir.bodies import bodies_first, body_names, extend_op, is_checkpoint, named_functions
from steelyard.ir.functions import add_argument, argument_name, refresh_type
from steelyard.ir.torch_ops import ABSENT, erase_unused_views, view_root, walk_ops
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.merging import is_recorded, merge_quantizations
from steelyard.passes.support.slices import clone_slice


@register_pass
def hoist_from_checkpoints(module: ir.Operation) -> None:
    """Move what a checkpointed region quantizes of its operands out of it, so that it is quantized once.

    Takes functions with checkpointed regions (`jax.remat2`, whose body is the region and its backward). What the body
    quantizes of an argument, without random bits, is quantized where the region is, and merges with what its forward
    quantized. The body has an argument for it (`scaled.handed`). An operand that the body reads no more becomes
    `jax.absent`, so that nothing keeps it for the backward. What the region computes again is quantized again.
    """
    functions = named_functions(module)
    for function in bodies_first(module):
        hoisted: dict[ir.Value, ir.BlockArgument] = {}
        for op in [op.operation for op in function.regions[0].blocks[0].operations]:
            if is_checkpoint(op):
                _hoist(op, functions[body_names(op)[0]], function, hoisted)
        if hoisted:
            merge_quantizations(walk_ops(function))
            _refresh(function, functions)


def _hoist(op: ir.Operation, body: ir.Operation, function: ir.Operation, hoisted: dict[ir.Value, ir.BlockArgument]):
    """Hoist what the body of an op quantizes of its arguments into the function that has the op."""
    added: list[ir.Value] = []
    for view in [each.opview for each in walk_ops(body)]:
        if not isinstance(view, QuantizeOp) or view.rng is not None or view.new_amax is not None:
            continue
        copies = _outside(view, op, function)
        if copies is None:
            continue
        made = _quantized_before(op, view, copies, function)
        name = ir.StringAttr.get(f"handed_{len(added)}")
        argument = add_argument(body.regions[0].blocks[0], view.result.type, view.location, {HANDED: name})
        added.append(made)
        hoisted[made] = argument
        source = view.source
        view.result.replace_all_uses_with(argument)
        view.operation.erase()
        erase_unused_views(source)
    if added:
        _drop_unread(op, body)
        extend_op(op, added, [])


def _quantized_before(
    op: ir.Operation, view: QuantizeOp, copies: dict[ir.Value, ir.Value], function: ir.Operation
) -> ir.Value:
    """What a quantization makes, made before an op."""
    info, scale = scaled_info_of(view.result), None if view.scale is None else copies[view.scale]
    with ir.InsertionPoint(op), view.location:
        source = clone_slice(view.source, copies)
        made = quantize(
            source,
            info.row,
            info.col,
            role=view.role.value,
            layer=view.layer.value,
            scale=scale,
            groups=info.groups,
            new_amax=is_recorded(function, source, view),
        )
    return made.result


def _outside(view: QuantizeOp, op: ir.Operation, function: ir.Operation) -> dict[ir.Value, ir.Value] | None:
    """For each argument of the body that a quantization reads, the same value around the op; None if one has none."""
    arguments = function.regions[0].blocks[0].arguments
    found: dict[ir.Value, ir.Value] = {}
    for value in (view_root(view.source), *list(view.operands)[1:]):
        if not isinstance(value, ir.BlockArgument):
            return None
        name = argument_name(value, STATE)
        around = [each for each in arguments if name is not None and argument_name(each, STATE) == name]
        if name is None and value.arg_number < len(op.operands):
            around = [op.operands[value.arg_number]]
        if len(around) != 1 or around[0].type != value.type:
            return None
        found[value] = around[0]
    return found


def _drop_unread(op: ir.Operation, body: ir.Operation) -> None:
    """Take nothing for the arguments that the body reads no more."""
    for number, argument in enumerate(list(body.regions[0].blocks[0].arguments)[: len(op.operands)]):
        if not list(argument.uses) and argument_name(argument, STATE) is None:
            with ir.InsertionPoint(op), op.location:
                op.operands[number] = ir.Operation.create(ABSENT, [argument.type]).result


def _refresh(function: ir.Operation, functions: dict[str, ir.Operation]) -> None:
    """Let the arguments of bodies have the copies that their operands have since they merged."""
    for op in [op.operation for op in function.regions[0].blocks[0].operations]:
        if is_checkpoint(op):
            body = functions[body_names(op)[0]]
            for operand, argument in zip(op.operands, body.regions[0].blocks[0].arguments, strict=False):
                if argument_name(argument, HANDED) is not None:
                    argument.set_type(operand.type)
            refresh_type(body)
