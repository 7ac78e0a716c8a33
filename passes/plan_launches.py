"""`scaled-plan-launches`."""

from collections.abc import Collection, Mapping
from itertools import zip_longest

from torch_mlir import ir

from steelyard.codegen.kernel import Kernel
from steelyard.codegen.kernel_attributes import kernel_attribute
from steelyard.codegen.launches.calls import plan_call
from steelyard.codegen.launches.plan import LaunchPlan
from steelyard.codegen.launches.text import signature_of, write_plan
from steelyard.dialect.launch import ContiguousOp, contiguous
from steelyard.dialect.types import tensor_info
from steelyard.errors import ConstraintError
from steelyard.ir.attributes import CODE, SAVED, STATE, WEIGHT
from steelyard.ir.functions import argument_attributes, functions_of
from steelyard.ir.kernel_calls import KernelCall, callee_of, declarations_of
from steelyard.ir.torch_ops import defining_op
from steelyard.ir.view_ops import KEEPS_ORDER, RESHAPES, SHARES_MEMORY, STATIC_CAST
from steelyard.passes.pipeline.registry import fail, register_pass
from steelyard.passes.support.declared import declared_calls
from steelyard.passes.support.targets import read_target

_KEEPS_LAYOUT = RESHAPES | (SHARES_MEMORY & KEEPS_ORDER) | {STATIC_CAST}
"""Ops whose result is contiguous where their operand is, and begins where it does."""


@register_pass
def plan_launches(module: ir.Operation, *, target: str) -> None:
    """Write down what each call launches on a CUDA target, so that nothing is left to decide when it runs.

    Takes declarations of kernels that `scaled-select-kernels` gave to CUDA. Leaves a module behind each that launches
    generated kernels (`scaled.plan` names the declaration), with the kernel, the arguments and the blocks of every
    launch, and an empty `gpu.module` for each of these kernels, which says what code `scaled-generate-kernels` writes
    (`scaled.code`). Sizes known when the program is compiled decide between kernels that access whole vectors and those
    for any size; sizes known only at run time take the latter. Tensors that no kernel made are put in order first
    (`scaled.contiguous`), once for all calls that read them. Native GEMMs, padding and random state are torch's own.
    Programs of the CPU stay as they are.
    """
    if read_target(module, target) is None:
        return
    calls = {symbol: call for symbol, call in declared_calls(module).items() if call.device == "cuda"}
    declarations = declarations_of(module)
    plans = {symbol: _plan(declarations[symbol], call) for symbol, call in calls.items()}
    launching = {symbol: plan for symbol, plan in plans.items() if plan is not None}
    block = module.regions[0].blocks[0]
    taken = {symbol for op in block.operations if (symbol := _symbol(op.operation))}
    symbols = _declare_kernels(block, launching, taken)
    operations = list(block.operations)
    for op, following in zip_longest(operations, operations[1:]):
        symbol = _symbol(op.operation)
        if symbol in launching:
            place = ir.InsertionPoint(block) if following is None else ir.InsertionPoint(following)
            with place, ir.Location.unknown():
                name = _free_symbol(f"{symbol}_launches", taken)
                write_plan(name, symbol, signature_of(calls[symbol]), launching[symbol], symbols)
    for function in functions_of(module):
        _lay_out_operands(function, calls, launching)


def _plan(declaration: ir.Operation, call: KernelCall) -> LaunchPlan | None:
    try:
        return plan_call(call)
    except ConstraintError as error:
        fail(declaration, str(error))


def _declare_kernels(block: ir.Block, plans: Mapping[str, LaunchPlan], taken: set[str]) -> dict[Kernel, str]:
    """Say which kernels are generated; the symbol of each."""
    symbols: dict[Kernel, str] = {}
    for kernel in dict.fromkeys(kernel for plan in plans.values() for kernel in plan.kernels):
        symbols[kernel] = _free_symbol(kernel.name, taken)
        attributes = {"sym_name": ir.StringAttr.get(symbols[kernel]), CODE: kernel_attribute(kernel)}
        with ir.InsertionPoint(block), ir.Location.unknown():
            made = ir.Operation.create("gpu.module", attributes=attributes, regions=1)
            made.regions[0].blocks.append()
    return symbols


def _symbol(op: ir.Operation) -> str:
    return ir.StringAttr(op.attributes["sym_name"]).value if "sym_name" in op.attributes else ""


def _free_symbol(name: str, taken: set[str]) -> str:
    """A symbol that is not taken, and is then: kernels that differ in a constant only may share a name."""
    candidates = (name if number == 0 else f"{name}_{number}" for number in range(len(taken) + 1))
    symbol = next(candidate for candidate in candidates if candidate not in taken)
    taken.add(symbol)
    return symbol


def _lay_out_operands(function: ir.Operation, calls: Mapping[str, KernelCall], launching: Collection[str]) -> None:
    """Put a `scaled.contiguous` between launching calls and tensors that may lie in memory in any way."""
    block = function.regions[0].blocks[0]
    attributes = argument_attributes(function)
    made: dict[ir.Value, ir.Value] = {}
    for op in [op.operation for op in block.operations]:
        if callee_of(op) not in launching:
            continue
        for index, value in enumerate(op.operands):
            if not _has_dims(value) or _is_laid_out(value, attributes, calls):
                continue
            if value not in made:
                is_argument = defining_op(value) is None
                place = ir.InsertionPoint.at_block_begin(block) if is_argument else ir.InsertionPoint(op)
                made[value] = contiguous(value, loc=op.location, ip=place).result
            op.operands[index] = made[value]


def _has_dims(value: ir.Value) -> bool:
    info = tensor_info(value.type)
    return info is not None and len(info.shape) > 0


def _is_laid_out(value: ir.Value, attributes: list[dict[str, ir.Attribute]], calls: Mapping[str, KernelCall]) -> bool:
    """Whether a kernel made a tensor, or the program keeps it: it is contiguous at an aligned address then."""
    op = defining_op(value)
    if op is None:
        own = attributes[ir.BlockArgument(value).arg_number]
        return WEIGHT in own or (STATE in own and SAVED not in own)
    if op.name in _KEEPS_LAYOUT:
        return _is_laid_out(op.operands[0], attributes, calls)
    return callee_of(op) in calls or isinstance(op.opview, ContiguousOp)
