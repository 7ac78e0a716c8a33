"""What passes need to know of the ops of frontends: constants, views, and which argument a value comes from."""

from collections.abc import Iterator

from torch_mlir import ir

from steelyard.dialect.types import TensorInfo, tensor_info
from steelyard.ir.attributes import PARAMETER
from steelyard.ir.functions import argument_name
from steelyard.ir.stablehlo_ops import CONVERT, TRANSPOSE, permutation_of, permuted
from steelyard.ir.view_ops import KEEPS_ORDER, RESHAPES, VIEW_LIKE

PYTHON = "torch.python."
"""What the name of a `torch.operator` begins with that is a Python function of numbers, such as `operator.mod`."""


LITERAL = "jax.literal"
"""A constant of a JAX function."""
ABSENT = "jax.absent"
"""In the place of an operand that the body of an op does not read."""


def defining_op(value: ir.Value) -> ir.Operation | None:
    """The op that makes a value; None for an argument."""
    owner = value.owner
    return owner.operation if isinstance(owner, ir.Operation | ir.OpView) else None


def op_name(op: ir.Operation) -> str:
    """The op's name; one that torch-mlir does not know by itself is a `torch.operator` that carries it."""
    return ir.StringAttr(op.attributes["name"]).value if op.name == "torch.operator" else op.name


def writes_in_place(op: ir.Operation) -> bool:
    """Whether an op changes one of its operands, as torch's names say: `copy_`, `add_.Tensor`."""
    return any(word.endswith("_") for word in op_name(op).split("."))


def walk_ops(root: ir.Operation) -> Iterator[ir.Operation]:
    """Every op below a root, collected first so that the caller may change the IR."""
    found: list[ir.Operation] = []

    def collect(op: ir.Operation) -> ir.WalkResult:
        found.append(op)
        return ir.WalkResult.ADVANCE

    root.walk(collect)
    return iter(found)


def constant_int(value: ir.Value) -> int | None:
    """The value of a `torch.constant.int`."""
    op = defining_op(value)
    if op is None or op.name != "torch.constant.int":
        return None
    return ir.IntegerAttr(op.attributes["value"]).value


def dim_of(number: int | None, rank: int) -> int | None:
    """The dim of a tensor that a number is, which counts from either end; None if there is none."""
    return number % rank if number is not None and -rank <= number < rank else None


def constant_number(value: ir.Value) -> float | None:
    """The value of a `torch.constant.int` or `torch.constant.float`."""
    op = defining_op(value)
    if op is not None and op.name == "torch.constant.float":
        return ir.FloatAttr(op.attributes["value"]).value
    return constant_int(value)


def constant_bool(value: ir.Value) -> bool | None:
    """The value of a `torch.constant.bool`."""
    op = defining_op(value)
    if op is None or op.name != "torch.constant.bool":
        return None
    return bool(ir.IntegerAttr(op.attributes["value"]).value)


def constant_ints(value: ir.Value) -> list[int] | None:
    """The elements of a list of integer constants."""
    op = defining_op(value)
    if op is None or op.name != "torch.prim.ListConstruct":
        return None
    elements = [constant_int(element) for element in op.operands]
    return None if None in elements else [element for element in elements if element is not None]


def constant_string(value: ir.Value) -> str | None:
    """The value of a `torch.constant.str`."""
    op = defining_op(value)
    if op is None or op.name != "torch.constant.str":
        return None
    return ir.StringAttr(op.attributes["value"]).value


def int_list(values: list[int]) -> ir.Value:
    """A list of integer constants, made at the current place."""
    elements = [int_constant(value) for value in values]
    list_type = ir.Type.parse("!torch.list<int>")
    return ir.Operation.create("torch.prim.ListConstruct", results=[list_type], operands=elements).result


def size_of(value: ir.Value, dim: int) -> ir.Value:
    """The size of a dim at run time, made at the current place."""
    int_type = ir.Type.parse("!torch.int")
    operands = [value, int_constant(dim)]
    return ir.Operation.create("torch.aten.size.int", results=[int_type], operands=operands).result


_TORCH_DTYPES = {"bf16": 15, "f16": 5, "f32": 6, "si32": 3}


def cast(value: ir.Value, dtype: str) -> ir.Value:
    """A value in another dtype, made at the current place."""
    info = tensor_info(value.type)
    assert info is not None
    result = info.with_(info.shape, dtype).type()
    if info.namespace != "torch":
        return ir.Operation.create(CONVERT, results=[result], operands=[value]).result
    boolean = ir.Type.parse("!torch.bool")
    false = ir.Operation.create(
        "torch.constant.bool", results=[boolean], attributes={"value": ir.BoolAttr.get(False)}
    ).result
    operands = [value, int_constant(_TORCH_DTYPES[dtype]), false, false, none_constant()]
    return ir.Operation.create("torch.aten.to.dtype", results=[result], operands=operands).result


def reshaped_as(value: ir.Value, type_: ir.Type) -> ir.Value:
    """A value of a type [M, N] with N known: the dims before the last are flattened, at the current place."""
    if value.type == type_:
        return value
    info = tensor_info(type_)
    assert info is not None
    assert info.shape[-1] is not None
    sizes = int_list([-1, info.shape[-1]])
    return ir.Operation.create("torch.aten.reshape", results=[type_], operands=[value, sizes]).result


def activation_of(op: ir.Operation) -> str | None:
    """The activation that an op is, by the name that kernels know it by."""
    if op.name == "torch.aten.gelu":
        return {"none": "gelu", "tanh": "gelu_tanh"}.get(constant_string(op.operands[1]) or "")
    return {"torch.aten.relu": "relu", "torch.aten.silu": "silu"}.get(op.name)


def is_view(op: ir.Operation) -> bool:
    """Whether an op gives its operand another shape and nothing else."""
    return op.name in RESHAPES


def is_none(value: ir.Value) -> bool:
    """Whether a value is torch's None."""
    op = defining_op(value)
    return op is not None and op.name == "torch.constant.none"


def info_of(value: ir.Value) -> TensorInfo | None:
    """What the type of a tensor says; None for anything else."""
    return tensor_info(value.type)


def parameter_of(value: ir.Value) -> str | None:
    """The name of the parameter that a value is a view, a transpose or a cast of."""
    root = view_root(value)
    return argument_name(root, PARAMETER) if isinstance(root, ir.BlockArgument) else None


def view_root(value: ir.Value) -> ir.Value:
    """The value that another is a view, a transpose, a part or a cast of, by constants alone."""
    while (op := defining_op(value)) is not None and op_name(op) in VIEW_LIKE and _has_constant_options(op):
        value = op.operands[0]
    return value


def _has_constant_options(op: ir.Operation) -> bool:
    return all(_is_constant(operand) for operand in list(op.operands)[1:])


def _is_constant(value: ir.Value) -> bool:
    op = defining_op(value)
    if op is None:
        return False
    if op.name == "torch.prim.ListConstruct":
        return all(_is_constant(element) for element in op.operands)
    return op.name.startswith("torch.constant.") or op.name == LITERAL


def erase_unused_views(value: ir.Value) -> None:
    """Erase the views, transposes and casts that made a value nothing reads: to MLIR they are not pure, so it keeps
    them."""
    while (op := defining_op(value)) is not None and op_name(op) in VIEW_LIKE:
        if any(list(result.uses) for result in op.results):
            return
        value = op.operands[0]
        op.erase()


def flatten_root(value: ir.Value) -> ir.Value:
    """The value whose dims before the last a value flattens; such views quantize to the same codes."""
    root, info = value, info_of(value)
    if info is None or not info.shape or info.shape[-1] is None:
        return root
    # An einsum adds dims of size 1 and moves them about before it flattens.
    while (op := defining_op(value)) is not None and _keeps_order(op):
        value = op.operands[0]
        source = info_of(value)
        if source is None or source.dtype != info.dtype:
            break
        if source.shape and source.shape[-1] == info.shape[-1]:
            root = value
    return root


def _keeps_order(op: ir.Operation) -> bool:
    if op.name not in ("torch.aten.permute", TRANSPOSE):
        return op_name(op) in KEEPS_ORDER
    source, order = info_of(op.operands[0]), _order(op)
    if source is None or order is None:
        return False
    moved = [dim % len(order) for dim in order if source.shape[dim] != 1]
    return moved == sorted(moved)


def _order(op: ir.Operation) -> list[int] | None:
    """The order in which an op puts the dims of its operand."""
    return permutation_of(op) if op.name == TRANSPOSE else constant_ints(op.operands[1])


def transpose_source(value: ir.Value) -> ir.Value | None:
    """The value whose last two dims this one swaps."""
    op = defining_op(value)
    if op is None:
        return None
    info = info_of(value)
    rank = len(info.shape) if info is not None else 0
    if op.name in ("torch.aten.t", "torch.aten.numpy_T") and rank == 2:
        return op.operands[0]
    if op.name == "torch.aten.transpose.int":
        dims = [constant_int(operand) for operand in op.operands[1:]]
        return op.operands[0] if _normalized(dims, rank) == {rank - 2, rank - 1} else None
    if op.name in ("torch.aten.permute", TRANSPOSE):
        order = _order(op)
        swapped = [*range(rank - 2), rank - 1, rank - 2]
        return op.operands[0] if order is not None and [d % rank for d in order] == swapped else None
    return None


def transpose_last(value: ir.Value) -> ir.Value:
    """A value with its last two dims swapped, looking through a swap that is there; inserts at the current place."""
    source = transpose_source(value)
    if source is not None:
        return source
    info = info_of(value)
    assert info is not None
    rank = len(info.shape)
    if info.namespace == "builtin":
        return permuted(value, [*range(rank - 2), rank - 1, rank - 2])
    result = info.with_((*info.shape[:-2], info.shape[-1], info.shape[-2])).type()
    first, second = (int_constant(dim) for dim in (rank - 2, rank - 1))
    return ir.Operation.create("torch.aten.transpose.int", results=[result], operands=[value, first, second]).result


def none_constant() -> ir.Value:
    """torch's None, made at the current place."""
    return ir.Operation.create("torch.constant.none", results=[ir.Type.parse("!torch.none")]).result


def without_first(value: ir.Value) -> ir.Value:
    """A value of one batch entry without its batch dim, at the current place."""
    source = transpose_source(value)
    if source is not None:
        return transpose_last(without_first(source))
    info = info_of(value)
    assert info is not None
    assert info.shape[0] == 1
    type_ = info.with_(info.shape[1:]).type()
    return ir.Operation.create("torch.aten.squeeze.dim", results=[type_], operands=[value, int_constant(0)]).result


def with_first(value: ir.Value) -> ir.Value:
    """A value with a batch dim of size 1 before its others, at the current place."""
    info = info_of(value)
    assert info is not None
    type_ = info.with_((1, *info.shape)).type()
    return ir.Operation.create("torch.aten.unsqueeze", results=[type_], operands=[value, int_constant(0)]).result


def contiguous(value: ir.Value) -> ir.Value:
    """A copy of a value whose elements lie in order, at the current place."""
    # Not the registered op, which MLIR folds away.
    name = {"name": ir.StringAttr.get("torch.aten.clone")}
    return ir.Operation.create("torch.operator", [value.type], [value, int_constant(0)], name).result


def int_constant(value: int) -> ir.Value:
    """An integer constant, made at the current place."""
    attribute = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    int_type = ir.Type.parse("!torch.int")
    return ir.Operation.create("torch.constant.int", results=[int_type], attributes={"value": attribute}).result


def _normalized(dims: list[int | None], rank: int) -> set[int | None]:
    return {dim if dim is None else dim % rank for dim in dims}
