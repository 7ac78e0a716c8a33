"""`scaled-fuse-elementwise`."""

from collections.abc import Sequence

from torch_mlir import ir

from steelyard.errors import ConstraintError
from steelyard.formats.elementwise import OUT, Load, Program, Size, Step
from steelyard.ir.attributes import SAVED
from steelyard.ir.functions import functions_of, has_backward
from steelyard.ir.kernel_calls import SIZE, Declarations, ElementwiseCall, KernelCall, Slot, callee_of
from steelyard.ir.torch_ops import defining_op, info_of, size_of
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.angles import angles_of_inputs
from steelyard.passes.support.declared import declared_calls
from steelyard.passes.support.element_groups import Groups
from steelyard.passes.support.element_loops import Fused, fused, is_element_op
from steelyard.passes.support.element_places import NotFusedError, is_view
from steelyard.passes.support.element_steps import SCALAR, is_always_ours
from steelyard.passes.support.targets import read_target

_TORCHS_COPIES = 4096
"""From so many elements on, torch copies transposed ones better: in squares."""


@register_pass
def fuse_elementwise(module: ir.Operation, *, target: str) -> None:
    """Compute connected elementwise torch ops in one walk over memory, by the CPU's own kernel.

    Takes torch's elementwise ops, casts, copies and `cat`, with views between them. Leaves calls of a declared kernel
    `elementwise`, whose program says in lines of text what is loaded, computed and stored for each element: views are
    places from which elements are loaded, pieces of a `cat` are stored where they go. An op whose result is read at
    other places too, or by other ops, has a program of its own, so nothing is computed twice. Ops stay torch's that
    programs do not have, and cosines and sines of what no kernel made, with what leads to them: code around repeated
    blocks computes those of positions, and a model that is cut has the bits of the whole. On other targets than the
    CPU, all ops do. In modules with a backward, programs take what has torch's bits anyway, such as sums of two
    tensors and gradients of slices, and gelu, silu, tanh and sigmoid with their gradients, whichever way these are
    read: which ops are torch's must not depend on where a model is cut, for a model in pieces trains with the bits of
    the whole. Comes after select-kernels: then it is known which kernels leave their results in order, and which
    products are torch's own.
    """
    if read_target(module, target) is not None:
        return
    calls = declared_calls(module)
    writers = {symbol for symbol, call in calls.items() if _writes_in_order(call)}
    declarations, in_training = Declarations(module), has_backward(module)
    for function in functions_of(module):
        _fuse(function, declarations, writers, in_training)


def _writes_in_order(call: KernelCall) -> bool:
    """Whether what a kernel makes is contiguous: not if it writes to an operand, which is a user's."""
    return call.has_destinations and call.written is None and not call.result_order(0)


def _fuse(function: ir.Operation, declarations: Declarations, writers: set[str], in_training: bool) -> None:
    made: set[ir.Value] = set()
    refused = angles_of_inputs(function)
    while True:
        groups = Groups(function, refused, in_training=in_training)
        failed: set[ir.Value] = set()
        for root, kept in groups.roots.items():
            try:
                found = fused(root, {kept, *groups.inlined})
                _require_torchs_order(root, found.program)
                made.add(_call(root, found, declarations, writers, made))
            except (NotFusedError, ConstraintError):
                if not in_training or not _fuse_alone(kept, declarations, writers, made):
                    failed.add(kept)
        if made:
            _erase_unused(function)
        # What would have been computed inside of a program that there is none of may have one of its own.
        if not failed or not groups.inlined:
            return
        refused |= failed


def _fuse_alone(value: ir.Value, declarations: Declarations, writers: set[str], made: set[ir.Value]) -> bool:
    """Call the kernel for one op, and for nothing that it reads, if it must not be torch's; whether that was done."""
    op = defining_op(value)
    if op is None or not is_always_ours(op):
        return False
    try:
        made.add(_call(value, fused(value, {value}, through_views=False), declarations, writers, made))
    except (NotFusedError, ConstraintError):
        return False
    return True


def _require_torchs_order(root: ir.Value, program: Program) -> None:
    """Refuse a program whose result torch would lay out in another way."""
    if _is_transposed(root, program) or (_escapes(root) and not _keeps_order(program)):
        raise NotFusedError


def _call(root: ir.Value, found: Fused, declarations: Declarations, writers: set[str], made: set[ir.Value]) -> ir.Value:
    """Call the kernel in place of the op that makes a value."""
    op = defining_op(root)
    assert op is not None
    dense = [f"in{i}" for i, value in enumerate(found.inputs) if value in made or _is_written(value, writers)]
    int_type = ir.Type.parse("!torch.int")
    call = ElementwiseCall(
        operands=(
            *(Slot(f"in{i}", value.type) for i, value in enumerate(found.inputs)),
            *(Slot(SIZE, int_type) for _ in found.sizes),
        ),
        results=(Slot("result", root.type),),
        device="cpu",
        has_destinations=True,
        program=found.program.lines(),
        dense=tuple(name for name in dense if _is_static(found.inputs[int(name[2:])])),
    )
    call.check()
    with ir.InsertionPoint(op), op.location:
        sizes = [size_of(value, dim) for value, dim in found.sizes]
        (result,) = declarations.call(call, [*found.inputs, *sizes])
    root.replace_all_uses_with(result)
    return result


def _is_written(value: ir.Value, writers: set[str]) -> bool:
    """Whether a kernel wrote a value where it was told: in order."""
    op = defining_op(value)
    return op is not None and callee_of(op) in writers


def _is_static(value: ir.Value) -> bool:
    info = info_of(value)
    return info is not None and None not in info.shape


def _is_transposed(root: ir.Value, program: Program) -> bool:
    """Whether a program is a large copy whose neighbours in the result are none in the source."""
    info = info_of(root)
    assert info is not None
    count = 1
    for size in info.shape:
        count *= size or 1
    if count < _TORCHS_COPIES:
        return False
    return any(len(loop.steps) == 2 and not _walks_rows(loop.steps[0], loop.sizes) for loop in program.loops)


def _walks_rows(step: Step, sizes: Sequence[Size]) -> bool:
    walked = [dim for dim, size in enumerate(sizes) if size != 1]
    if not isinstance(step, Load) or not walked or not step.access.indices:
        return True
    terms = [index.terms for index in step.access.indices]
    read = any(dim == walked[-1] for one in terms for dim, _ in one)
    return not read or (walked[-1], 1) in terms[-1]


def _escapes(value: ir.Value) -> bool:
    """Whether a value, or a view of it, is a result of the function that others see, not only its backward."""
    for use in value.uses:
        op = use.owner.operation
        if op.name == "func.return":
            if not _is_saved(op, use.operand_number):
                return True
        elif is_view(op) and any(_escapes(result) for result in op.results):
            return True
    return False


def _is_saved(returns: ir.Operation, number: int) -> bool:
    function = returns.parent.operation
    if "res_attrs" not in function.attributes:
        return False
    return SAVED in ir.DictAttr(ir.ArrayAttr(function.attributes["res_attrs"])[number])


def _keeps_order(program: Program) -> bool:
    """Whether dims are loaded in the order they are stored in: torch would keep another order in its result."""
    loads = [step.access for loop in program.loops for step in loop.steps if isinstance(step, Load)]
    walked = [[dim for index in access.indices for dim, _ in index.terms] for access in loads if access.tensor != OUT]
    return all(dims == sorted(dims) for dims in walked)


def _erase_unused(function: ir.Operation) -> None:
    """Erase what programs do now. To MLIR these ops are not pure, so it keeps them."""
    for op in reversed([op.operation for op in function.regions[0].blocks[0].operations]):
        is_ours = is_view(op) or op.name in _CARRIERS or (len(op.results) == 1 and is_element_op(op))
        if is_ours and not any(list(result.uses) for result in op.results):
            op.erase()


_CARRIERS = (
    *("torch.prim.ListConstruct", "torch.prim.ListUnpack", "torch.aten.split.Tensor", "torch.aten.split_with_sizes"),
    *(
        "torch.aten.chunk",
        "torch.aten.unbind.int",
        SCALAR,
        "torch.constant.int",
        "torch.constant.float",
        "torch.constant.none",
    ),
)
"""Ops that only views and elementwise ops read."""
