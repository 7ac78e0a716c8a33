"""`explain()`: one row per GEMM."""

import json
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import prod

import torch
from torch_mlir import ir

from steelyard.dialect.grouped import GroupedGemmOp, GroupedMatmulOp
from steelyard.dialect.layout import flat_shape
from steelyard.dialect.matmul import GemmOp, MatmulOp, copies_read, lhs_info
from steelyard.dialect.produce import ProduceQuantizeOp
from steelyard.dialect.quantize import QuantizeOp, StoredOp
from steelyard.dialect.types import Shape, scaled_info_of, tensor_info
from steelyard.formats.gemms import gemm_sizes
from steelyard.formats.schemes import Scheme
from steelyard.frontend.flops import PRODUCTS
from steelyard.insight.table import PAGE, format_table
from steelyard.ir.attributes import HIGH_PRECISION
from steelyard.ir.functions import functions_of
from steelyard.ir.gemm_plans import GemmPlan, plan_gemm, plan_grouped_gemm
from steelyard.ir.gradients import find_gradients, is_batched_gradient
from steelyard.ir.locations import flops_of, layer_of, source_of
from steelyard.ir.stablehlo_ops import DOT, dot_dims, static_shape
from steelyard.ir.torch_ops import defining_op, op_name, parameter_of, walk_ops
from steelyard.passes.lower_attention import attention_call
from steelyard.targets import CPU, cuda_target
from steelyard.targets.gemm_paths import CUSTOM, NATIVE

_CUDA = "cuda "
XLA = "xla"
"""What runs the products of JAX functions that stay in high precision."""
_OF_JAX = ("stablehlo.", "jax.")
COLUMNS = ("layer", "kind", "M", "N", "K", "lhs", "rhs", "padding", "kernel", "producer", "epilogue")


@dataclass(frozen=True)
class Row:
    """What became of one GEMM, or of an op that contains GEMMs."""

    layer: str
    kind: str
    M: str
    N: str
    K: str
    lhs: str
    rhs: str
    padding: str
    """What the target pads; empty on the CPU, whose kernels take any size."""
    kernel: str
    """What runs it."""
    producer: str
    """What is fused into the quantize of lhs."""
    epilogue: str
    """What is applied to the product before it is stored, by the GEMM or, if it says so, by a separate kernel."""
    reason: str
    """Why it stayed in high precision, or why CUDA emulates it; empty otherwise."""
    weight: str = ""
    """The parameter that rhs is quantized from; of experts also where it is not."""
    flops: int = 0
    """Two for each multiplication and addition of its products, with the sizes of the call that was compiled."""
    stays: str = ""
    """With `weights="quantized"`, why that parameter was not replaced by its codes."""
    source: str = field(default="", compare=False)
    """The line of the model's code that calls it, as `file:line`; where a part of the model is captured by itself, the
    code around it is not known."""

    @property
    def is_quantized(self) -> bool:
        """Whether its operands are quantized. Emulated GEMMs are, although they have a reason."""
        return not self.reason or self.kernel.startswith(_CUDA)


@dataclass(frozen=True)
class Shares:
    """How much of a net is quantized."""

    flops: int
    """The FLOPs of all rows."""
    quantized_flops: int
    weight_bytes: int
    """The bytes of all parameters, as they are in high precision."""
    quantized_weight_bytes: int
    """Of those, the parameters that quantized GEMMs read."""

    def __str__(self) -> str:
        parts = [f"{self.quantized_flops / self.flops:.1%} of the FLOPs of GEMMs"]
        if self.weight_bytes:
            parts.append(f"{self.quantized_weight_bytes / self.weight_bytes:.1%} of the bytes of parameters")
        return f"quantized: {', '.join(parts)}"


def shares_of(rows: Sequence[Row], parameters: Mapping[str, torch.Tensor]) -> Shares:
    """The shares of rows; `parameters` may give one parameter several names."""
    sizes = {id(p): p.numel() * p.dtype.itemsize for p in parameters.values()}
    read = {id(parameters[row.weight]) for row in rows if row.is_quantized and row.weight in parameters}
    return Shares(
        sum(row.flops for row in rows),
        sum(row.flops for row in rows if row.is_quantized),
        sum(sizes.values()),
        sum(sizes[key] for key in read),
    )


_KNOWN = ("override ", "the recipe ", "torch runs its graph", "torch cannot capture its graph")
"""How the reasons begin that a user gave, or that another warning is about."""


def little_is_quantized(rows: Sequence[Row]) -> str | None:
    """A warning if less than half of the FLOPs are quantized; what the user knows already does not count."""
    counted = [row for row in rows if row.is_quantized or not row.reason.startswith(_KNOWN)]
    total, quantized = (sum(row.flops for row in some) for some in (counted, [r for r in counted if r.is_quantized]))
    if 2 * quantized >= total:
        return None
    by_reason = Counter[str]()
    for row in counted:
        if not row.is_quantized:
            by_reason[row.reason] += row.flops
    reasons = "; ".join(f"{flops / total:.0%}: {reason}" for reason, flops in by_reason.most_common(3))
    return f"only {quantized / total:.0%} of the FLOPs of GEMMs are quantized ({reasons}); explain() lists them all"


@dataclass(frozen=True)
class TorchOp:
    """An op that torch runs beside the kernels of a program."""

    op: str
    calls: int
    share: float | None
    """Of the time of a call; None until `net.profile` has measured one."""


class Explanation(str):
    """The rows of every graph as a table, with notes and shares below. `rows`, `notes`, `shares` and, on request, `ops`
    are the data."""

    rows: list[Row]
    notes: list[str]
    shares: Shares
    ops: list[TorchOp]

    def __new__(
        cls,
        rows: list[Row],
        notes: Sequence[str] = (),
        parameters: Mapping[str, torch.Tensor] | None = None,
        ops: Sequence[TorchOp] = (),
    ):
        shares = shares_of(rows, parameters or {})
        lines = [*_text(rows), *notes, *([str(shares)] if shares.flops else []), *(_ops_text(ops) if ops else [])]
        text = super().__new__(cls, "\n".join(lines))
        text.rows = rows
        text.notes = list(notes)
        text.shares = shares
        text.ops = list(ops)
        return text

    def to_json(self) -> str:
        """The rows as JSON."""
        return json.dumps([asdict(row) for row in self.rows], indent=1)


def rows_of(module: ir.Module, target: str = CPU) -> list[Row]:
    """The rows of a module after quantization, as a target runs its GEMMs."""
    rows = []
    chosen = cuda_target(target)
    gradients = set[ir.Value]().union(*map(find_gradients, functions_of(module.operation)))
    for op in walk_ops(module.operation):
        view = op.opview
        if isinstance(view, GemmOp):
            row = _gemm_row(view)
            row = row if chosen is None else _on_cuda(row, plan_gemm(view, chosen))
        elif isinstance(view, GroupedGemmOp):
            row = _grouped_row(view)
            row = row if chosen is None else _experts_on_cuda(row, plan_grouped_gemm(view, chosen), view)
        elif HIGH_PRECISION in op.attributes:
            row = _high_precision_row(op)
            call = attention_call(op) if chosen is None else None
            row = row if call is None else replace(row, kernel=f"cpu {call.OPERATION}")
        else:
            continue
        row = replace(row, source=source_of(op.location))
        rows.append(replace(row, kind="dgrad") if is_batched_gradient(view, gradients) else row)
    return rows


def _gemm_row(op: GemmOp) -> Row:
    lhs, rhs = lhs_info(op.lhs), scaled_info_of(op.rhs)
    kind = op.kind.value
    left, right = copies_read(kind, lhs, rhs)
    sizes = _sizes(kind, lhs.shape[op.batch_dims.value :], rhs.shape[op.batch_dims.value :])
    kernel = f"{right.custom}.qgemm" if right.custom else f"cpu {_families(left, right)} gemm"
    steps = ["bias"] * (op.bias is not None) + [op.epilogue.value] * (op.epilogue.value != "none")
    epilogue = ", ".join(steps + ["residual"] * (op.residual is not None))
    maker = defining_op(op.lhs)
    producer = maker.opview.producer.value if maker and isinstance(maker.opview, ProduceQuantizeOp) else ""
    formats = lhs.dtype if left is None else format_name(left), format_name(right)
    row = Row(op.layer.value, kind, *sizes, *formats, "", kernel, producer, epilogue, "", _parameter(op.rhs))
    return replace(row, flops=flops_of(op.location) or 0)


def _grouped_row(op: GroupedGemmOp) -> Row:
    """All experts are one row, with the rows of all of them."""
    lhs, rhs = lhs_info(op.lhs), scaled_info_of(op.rhs)
    kind = op.kind.value
    left, right = copies_read(kind, lhs, rhs)
    sizes = _grouped_sizes(kind, lhs.shape, rhs.shape)
    kernel = f"cpu {_families(left, right)} gemm of {rhs.groups} experts"
    formats = lhs.dtype if left is None else format_name(left), format_name(right)
    row = Row(op.layer.value, kind, *sizes, *formats, "", kernel, "", "", "", _parameter(op.rhs))
    return replace(row, flops=flops_of(op.location) or 0)


def _grouped_sizes(kind: str, lhs: Shape, rhs: Shape) -> tuple[str, str, str]:
    """M, N and K of the products of experts, over all experts."""
    return _sizes(kind, lhs, rhs if kind == "wgrad" else rhs[1:])


def _on_cuda(row: Row, plan: GemmPlan) -> Row:
    """The row of a GEMM that a CUDA target runs."""
    if plan.path == CUSTOM:
        return row
    family = row.kernel.split()[1]
    kernel = f"{_CUDA}{family} {'scaled_mm' if plan.path == NATIVE else f'emulated in {plan.decoded}'}"
    dims = zip("MNK", plan.sizes, plan.multiples, plan.padded, strict=True)
    padding = ", ".join(_padding(name, size, by) for name, size, by, is_padded in dims if is_padded)
    own_kernel = " (own kernel)" if plan.leaves_epilogue else ""
    return replace(row, kernel=kernel, padding=padding, epilogue=row.epilogue + own_kernel, reason=plan.reason)


def _experts_on_cuda(row: Row, plan: GemmPlan, op: GroupedGemmOp) -> Row:
    """The row of products of experts that a CUDA target runs."""
    family, experts = row.kernel.split()[1], f"of {scaled_info_of(op.rhs).groups} experts"
    how = "scaled_grouped_mm" if plan.path == NATIVE else f"emulated in {plan.decoded}"
    return replace(row, kernel=f"{_CUDA}{family} {how} {experts}", reason=plan.reason)


def _padding(name: str, size: int | None, multiple: int) -> str:
    return f"{name} to {multiple}s" if size is None else f"{name} {size} to {-(-size // multiple) * multiple}"


def _parameter(value: ir.Value) -> str:
    maker = defining_op(value)
    return (maker and isinstance(maker.opview, QuantizeOp | StoredOp) and parameter_of(maker.opview.source)) or ""


def _high_precision_row(op: ir.Operation) -> Row:
    reason = ir.StringAttr(op.attributes[HIGH_PRECISION]).value
    view = op.opview
    layer = layer_of(op.location)
    flops = flops_of(op.location) or 0
    if isinstance(view, GroupedMatmulOp):
        lhs, rhs = (tensor_info(value.type) for value in (view.lhs, view.rhs))
        assert lhs is not None
        assert rhs is not None
        sizes = _grouped_sizes(view.kind.value, lhs.shape, rhs.shape)
        name, kind, weight = view.layer.value, view.kind.value, parameter_of(view.rhs) or ""
        kernel = "torch" if lhs.namespace == "torch" else XLA
        return Row(name, kind, *sizes, lhs.dtype, rhs.dtype, "", kernel, "", "", reason, weight, flops)
    if not isinstance(view, MatmulOp):
        name = op_name(op).removeprefix("torch.")
        sizes, dtypes = (_dot_sizes(op), _dtypes(op)) if name == DOT else (_torch_sizes(name, op), ("", ""))
        kernel = XLA if op.name.startswith(_OF_JAX) else name
        return Row(layer, "", *sizes, *dtypes, "", kernel, "", "", reason, flops=flops)
    lhs, rhs = (tensor_info(value.type) for value in (view.lhs, view.rhs))
    assert lhs is not None
    assert rhs is not None
    sizes = _sizes(view.kind.value, lhs.shape[view.batch_dims.value :], rhs.shape[view.batch_dims.value :])
    epilogue = "bias" if view.bias is not None else ""
    kernel = "torch" if lhs.namespace == "torch" else XLA
    return Row(layer, view.kind.value, *sizes, lhs.dtype, rhs.dtype, "", kernel, "", epilogue, reason, flops=flops)


def _dot_sizes(op: ir.Operation) -> tuple[str, str, str]:
    """M, N and K of a product of JAX; all dims that an operand keeps count as one, and batch dims as none."""
    dims, (lhs, rhs) = dot_dims(op), (static_shape(operand) for operand in op.operands)
    left = (dims.lhs_batch, dims.lhs_reduced)
    right = (dims.rhs_batch, dims.rhs_reduced)
    m, n = (
        prod(size for dim, size in enumerate(shape) if dim not in (*batch, *reduced))
        for shape, (batch, reduced) in ((lhs, left), (rhs, right))
    )
    return str(m), str(n), str(prod(lhs[dim] for dim in dims.lhs_reduced))


def _dtypes(op: ir.Operation) -> tuple[str, str]:
    left, right = (tensor_info(operand.type) for operand in op.operands)
    return left.dtype if left else "", right.dtype if right else ""


def _torch_sizes(name: str, op: ir.Operation) -> tuple[str, str, str]:
    """M, N and K of an op of torch that is one product."""
    infos = [tensor_info(op.operands[i].type) for i in PRODUCTS.get(name, ())]
    shapes = [info.shape for info in infos if info is not None and len(info.shape) > 1]
    if len(shapes) != 2:
        return "", "", ""
    lhs, rhs = shapes
    return _size(lhs[-2]), _size(rhs[-1]), _size(lhs[-1])


def _sizes(kind: str, lhs: Shape, rhs: Shape) -> tuple[str, str, str]:
    """M, N and K of a product; leading dims count as rows."""
    m, n, k = gemm_sizes(kind, flat_shape(lhs), flat_shape(rhs))
    return _size(m), _size(n), _size(k)


def _size(size: int | None) -> str:
    return "?" if size is None else str(size)


def _families(left: Scheme | None, right: Scheme) -> str:
    """What a kernel multiplies: one family, or two by each other."""
    if left is None:
        return f"values*{right.family}"
    return left.family if left.family == right.family else f"{left.family}*{right.family}"


def format_name(scheme: Scheme) -> str:
    """How tables call the format of an operand."""
    if scheme.custom:
        return scheme.custom
    element = {"f8E4M3FN": "e4m3", "f8E5M2": "e5m2", "f4E2M1FN": "e2m1"}[scheme.element]
    return f"{element} {scheme.block}{' static' * scheme.is_static}"


def _text(rows: list[Row]) -> list[str]:
    """The table, its reasons by number below it, and how many GEMMs are quantized."""
    reasons = list(dict.fromkeys(row.reason for row in rows if row.reason))
    cells = [[*(getattr(row, column) for column in COLUMNS), _number(row.reason, reasons)] for row in rows]
    lines = format_table([*COLUMNS, "reason"], cells)
    for reason in reasons:
        lines += textwrap.wrap(f"{_number(reason, reasons)} {reason}", PAGE, subsequent_indent="    ")
    quantized = [row for row in rows if row.is_quantized]
    emulated = sum(1 for row in quantized if row.reason)
    detail = f", {emulated} of them emulated" if emulated else ""
    kept = len(rows) - len(quantized)
    return [
        *lines,
        f"{len(quantized)} GEMM{'s' * (len(quantized) != 1)} quantized{detail}, {kept} left in high precision",
    ]


def _ops_text(ops: Sequence[TorchOp]) -> list[str]:
    cells = [[op.op, str(op.calls), "" if op.share is None else f"{op.share:.1%}"] for op in ops]
    is_timed = any(op.share is not None for op in ops)
    hint = [] if is_timed else ["net.profile(*inputs) measures which share of a call's time they take"]
    return ["", *format_table(["op of torch's", "calls", "share of time"], cells), *hint]


def _number(reason: str, reasons: list[str]) -> str:
    return f"[{reasons.index(reason) + 1}]" if reason else ""
