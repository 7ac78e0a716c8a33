"""`scaled-legalize`."""

from torch_mlir import ir

from steelyard.dialect.epilogue import epilogue
from steelyard.dialect.grouped import GroupedGemmOp
from steelyard.dialect.layout import padded_shape, unpad
from steelyard.dialect.matmul import GemmOp, gemm
from steelyard.dialect.types import TensorInfo, tensor_info
from steelyard.formats.gemms import OPERAND_USAGES
from steelyard.ir.attributes import PATH, REASON
from steelyard.ir.gemm_plans import GemmPlan, plan_gemm, plan_grouped_gemm, size_source
from steelyard.ir.torch_ops import int_constant, size_of, walk_ops
from steelyard.passes.pipeline.registry import fail, register_pass
from steelyard.passes.support.operand_forms import Forms, Plans, convert, convert_weights
from steelyard.passes.support.targets import read_target
from steelyard.targets.gemm_paths import CUSTOM, NATIVE


@register_pass
def legalize(module: ir.Operation, *, target: str) -> None:
    """Give GEMMs the layout, padding and epilogues that a target's GEMMs take.

    Takes `scaled.gemm` and `scaled.grouped_gemm` on quantized tensors. The CPU's GEMMs take any shape, compact scales
    and every epilogue, so nothing changes there. For CUDA, leaves each GEMM marked with its path (`scaled.path`) and,
    where it is emulated, the reason (`scaled.reason`).

    A native GEMM reads matrices with one copy that are padded, turned and swizzled (`scaled.flatten`, `pad`, `turn`,
    `swizzle`), once for all GEMMs that read the same tensor; `unpad` removes the padding from its result. What a GEMM
    cannot do to its product follows as `scaled.epilogue`. Weights are converted by the functions that make them, which
    then return every form that a GEMM reads. Products of experts take any shape.
    """
    chosen = read_target(module, target)
    if chosen is None:
        return
    gemms = [op.opview for op in walk_ops(module) if isinstance(op.opview, GemmOp)]
    plans: Plans = {op.result: plan_gemm(op, chosen) for op in gemms}
    for op in walk_ops(module):
        if isinstance(op.opview, GroupedGemmOp):
            _mark(op.opview, plan_grouped_gemm(op.opview, chosen))
    forms = convert_weights(module, plans)
    for op in gemms:
        plan = plans[op.result]
        if plan.path == NATIVE:
            _multiply_natively(op, plan, forms)
        elif plan.path != CUSTOM:
            _emulate(op, plan)


def _multiply_natively(op: GemmOp, plan: GemmPlan, forms: Forms) -> None:
    """Put a product of matrices in the place of a GEMM, and give it the GEMM's shape."""
    info = _result_info(op)
    with ir.InsertionPoint(op), op.location:
        operands: list[ir.Value] = []
        for value, form in zip((op.lhs, op.rhs), plan.forms(op.kind.value), strict=True):
            if (value, form) not in forms:
                forms[value, form] = convert(value, form)
            operands.append(forms[value, form])
        dtype = "f32" if plan.leaves_epilogue else info.dtype
        matrix = info.with_(padded_shape(plan.sizes[:2], plan.multiples[:2]), dtype)
        product = _product(op, plan, operands, matrix)
        product = _unpadded(op, product, plan)
        product = _reshaped(op, product, info.with_(info.shape, dtype))
    _finish(op, plan, product)


def _emulate(op: GemmOp, plan: GemmPlan) -> None:
    """A product by the emulating path, which takes any shape."""
    if not plan.leaves_epilogue:
        _mark(op, plan)
        return
    info = _result_info(op)
    with ir.InsertionPoint(op), op.location:
        product = _product(op, plan, [op.lhs, op.rhs], info.with_(info.shape, "f32"))
    _finish(op, plan, product)


def _product(op: GemmOp, plan: GemmPlan, operands: list[ir.Value], result: TensorInfo) -> ir.Value:
    """The GEMM without what it leaves to another kernel."""
    made = gemm(
        *operands,
        kind=op.kind.value,
        result=result.type(),
        layer=op.layer.value,
        batch_dims=op.batch_dims.value,
        bias=None if plan.leaves_epilogue else op.bias,
    )
    _mark(made, plan)
    return made.result


def _mark(op: ir.OpView, plan: GemmPlan) -> None:
    op.operation.attributes[PATH] = ir.StringAttr.get(plan.path)
    if plan.reason:
        op.operation.attributes[REASON] = ir.StringAttr.get(plan.reason)


def _unpadded(op: GemmOp, product: ir.Value, plan: GemmPlan) -> ir.Value:
    """A product without its padding."""
    sizes = plan.sizes[:2]
    if not any(plan.padded[:2]):
        return product
    unknown = [_size(op, product, dim, plan.padded[dim]) for dim, size in enumerate(sizes) if size is None]
    return unpad(product, sizes, unknown).result


def _size(op: GemmOp, product: ir.Value, dim: int, is_padded: bool) -> ir.Value:
    """The size of a dim of the product at run time, without padding."""
    _require_torch(op)
    if not is_padded:
        return size_of(product, dim)
    source = size_source((op.lhs, op.rhs)[dim])
    assert source is not None, "a plan pads what it knows the size of"
    return size_of(source, 0 if OPERAND_USAGES[op.kind.value][dim] == "rowwise" else 1)


def _reshaped(op: GemmOp, product: ir.Value, info: TensorInfo) -> ir.Value:
    """A product of flattened operands with the GEMM's own shape."""
    if len(info.shape) == 2:
        return product
    _require_torch(op)
    source = size_source(op.lhs)
    one_unknown = info.shape.count(None) == 1
    sizes: list[ir.Value] = []
    for dim, size in enumerate(info.shape):
        if size is not None or one_unknown:
            sizes.append(int_constant(-1 if size is None else size))
        else:
            assert source is not None, "a plan flattens what it knows the sizes of"
            sizes.append(size_of(source, dim))
    list_type = ir.Type.parse("!torch.list<int>")
    listed = ir.Operation.create("torch.prim.ListConstruct", results=[list_type], operands=sizes).result
    return ir.Operation.create("torch.aten.reshape", results=[info.type()], operands=[product, listed]).result


def _finish(op: GemmOp, plan: GemmPlan, product: ir.Value) -> None:
    """Apply what the GEMM left, and replace the op."""
    if plan.leaves_epilogue:
        with ir.InsertionPoint(op), op.location:
            made = epilogue(
                product,
                op.result.type,
                epilogue=op.epilogue.value,
                bias=op.bias,
                residual=op.residual,
                preactivation=op.preactivation is not None,
            )
        product = made.result
        if op.preactivation is not None and made.preactivation is not None:
            op.preactivation.replace_all_uses_with(made.preactivation)
    op.result.replace_all_uses_with(product)
    op.operation.erase()


def _result_info(op: GemmOp) -> TensorInfo:
    info = tensor_info(op.result.type)
    assert info is not None
    return info


def _require_torch(op: GemmOp) -> None:
    if _result_info(op).namespace != "torch":
        fail(op, "has sizes known only at run time or more than two dims, which needs torch's tensors on this target")
