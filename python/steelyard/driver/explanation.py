"""`explain()`: one row per GEMM."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from torch_mlir import ir

from steelyard.dialect.matmul import GemmOp, MatmulOp, copies_read
from steelyard.dialect.produce import ProduceQuantizeOp
from steelyard.dialect.quantize import QuantizeOp
from steelyard.dialect.types import Shape, scaled_info_of, tensor_info
from steelyard.formats.schemes import Scheme
from steelyard.ir.attributes import HIGH_PRECISION
from steelyard.ir.gemm_plans import GemmPlan, plan_gemm
from steelyard.ir.locations import layer_of
from steelyard.ir.torch_ops import defining_op, parameter_of, walk_ops
from steelyard.targets import CPU, cuda_target
from steelyard.targets.gemm_paths import CUSTOM, NATIVE

_CUDA = "cuda "
COLUMNS = ("layer", "kind", "M", "N", "K", "lhs", "rhs", "padding", "kernel", "producer", "epilogue", "reason")


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
    """The parameter that rhs is quantized from."""
    stays: str = ""
    """With `weights="quantized"`, why that parameter was not replaced by its codes."""

    @property
    def is_quantized(self) -> bool:
        """Whether its operands are quantized. Emulated GEMMs are, although they have a reason."""
        return not self.reason or self.kernel.startswith(_CUDA)


class Explanation(str):
    """The rows of every graph as a table, followed by notes. `rows` and `notes` hold the same as data."""

    rows: list[Row]
    notes: list[str]

    def __new__(cls, rows: list[Row], notes: Sequence[str] = ()):
        text = super().__new__(cls, "\n".join([_table(rows), *notes]))
        text.rows = rows
        text.notes = list(notes)
        return text

    def to_json(self) -> str:
        """The rows as JSON."""
        return json.dumps([asdict(row) for row in self.rows], indent=1)


def rows_of(module: ir.Module, target: str = CPU) -> list[Row]:
    """The rows of a module after quantization, as a target runs its GEMMs."""
    rows = []
    chosen = cuda_target(target)
    for op in walk_ops(module.operation):
        view = op.opview
        if isinstance(view, GemmOp):
            row = _gemm_row(view)
            rows.append(row if chosen is None else _on_cuda(row, plan_gemm(view, chosen)))
        elif HIGH_PRECISION in op.attributes:
            rows.append(_high_precision_row(op))
    return rows


def _gemm_row(op: GemmOp) -> Row:
    lhs, rhs = scaled_info_of(op.lhs), scaled_info_of(op.rhs)
    kind = op.kind.value
    left, right = copies_read(kind, lhs, rhs)
    sizes = _sizes(kind, lhs.shape[op.batch_dims.value :], rhs.shape[op.batch_dims.value :])
    kernel = f"{left.custom}.qgemm" if left.custom else f"cpu {left.family} gemm"
    steps = ["bias"] * (op.bias is not None) + [op.epilogue.value] * (op.epilogue.value != "none")
    epilogue = ", ".join(steps + ["residual"] * (op.residual is not None))
    maker = defining_op(op.lhs)
    producer = maker.opview.producer.value if maker and isinstance(maker.opview, ProduceQuantizeOp) else ""
    formats = _format(left), _format(right)
    return Row(op.layer.value, kind, *sizes, *formats, "", kernel, producer, epilogue, "", _parameter(op.rhs))


def _on_cuda(row: Row, plan: GemmPlan) -> Row:
    """The row of a GEMM that a CUDA target runs."""
    if plan.path == CUSTOM:
        return row
    family = row.kernel.split()[1]
    kernel = f"{_CUDA}{family} {'scaled_mm' if plan.path == NATIVE else 'emulated'}"
    dims = zip("MNK", plan.sizes, plan.multiples, plan.padded, strict=True)
    padding = ", ".join(_padding(name, size, by) for name, size, by, is_padded in dims if is_padded)
    own_kernel = " (own kernel)" if plan.leaves_epilogue else ""
    return replace(row, kernel=kernel, padding=padding, epilogue=row.epilogue + own_kernel, reason=plan.reason)


def _padding(name: str, size: int | None, multiple: int) -> str:
    return f"{name} to {multiple}s" if size is None else f"{name} {size} to {-(-size // multiple) * multiple}"


def _parameter(value: ir.Value) -> str:
    maker = defining_op(value)
    return (maker and isinstance(maker.opview, QuantizeOp) and parameter_of(maker.opview.source)) or ""


def _high_precision_row(op: ir.Operation) -> Row:
    reason = ir.StringAttr(op.attributes[HIGH_PRECISION]).value
    view = op.opview
    layer = layer_of(op.location)
    if not isinstance(view, MatmulOp):
        name = ir.StringAttr(op.attributes["name"]).value if op.name == "torch.operator" else op.name
        return Row(layer, "", "", "", "", "", "", "", name.removeprefix("torch."), "", "", reason)
    lhs, rhs = (tensor_info(value.type) for value in (view.lhs, view.rhs))
    assert lhs is not None
    assert rhs is not None
    sizes = _sizes(view.kind.value, lhs.shape[view.batch_dims.value :], rhs.shape[view.batch_dims.value :])
    epilogue = "bias" if view.bias is not None else ""
    return Row(layer, view.kind.value, *sizes, lhs.dtype, rhs.dtype, "", "torch", "", epilogue, reason)


def _sizes(kind: str, lhs: Shape, rhs: Shape) -> tuple[str, str, str]:
    tokens = _product(lhs[:-1])
    if kind == "fprop":
        return tokens, _size(rhs[0]), _size(lhs[-1])
    if kind == "dgrad":
        return tokens, _size(rhs[1]), _size(lhs[-1])
    return _size(lhs[-1]), _size(rhs[-1]), tokens


def _product(sizes: Shape) -> str:
    product = 1
    for size in sizes:
        if size is None:
            return "?"
        product *= size
    return str(product)


def _size(size: int | None) -> str:
    return "?" if size is None else str(size)


def _format(scheme: Scheme) -> str:
    if scheme.custom:
        return scheme.custom
    element = {"f8E4M3FN": "e4m3", "f8E5M2": "e5m2", "f4E2M1FN": "e2m1"}[scheme.element]
    return f"{element} {scheme.block}"


def _table(rows: list[Row]) -> str:
    cells = [COLUMNS, *(tuple(str(getattr(row, column)) for column in COLUMNS) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    quantized = [row for row in rows if row.is_quantized]
    emulated = sum(1 for row in quantized if row.reason)
    detail = f", {emulated} of them emulated" if emulated else ""
    summary = f"{len(quantized)} GEMMs quantized{detail}, {len(rows) - len(quantized)} left in high precision"
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:], summary])
