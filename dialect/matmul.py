"""The matrix multiplications: `matmul` in high precision, `gemm` with quantized tensors.

The three GEMMs of a linear layer differ in what they reduce over, and `kind` says which one an op is:

| kind  | computes     | lhs          | rhs          | reads (lhs, rhs)        | result        |
|-------|--------------|--------------|--------------|-------------------------|---------------|
| fprop | y = x w^T    | x [..., K]   | w [N, K]     | rowwise, rowwise        | y [..., N]    |
| dgrad | dx = dy w    | dy [..., N]  | w [N, K]     | rowwise, columnwise     | dx [..., K]   |
| wgrad | dw = dy^T x  | dy [..., N]  | x [..., K]   | columnwise, columnwise  | dw [N, K]     |

The dims before the last of an activation count as one flattened dim. The first `batch_dims` dims of all operands and of
the result are batch dims: one product for each.
"""

from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import ext

from steelyard.dialect.base import ScaledOp, build, require, string_attribute
from steelyard.dialect.types import (
    ScaledInfo,
    Shape,
    TensorInfo,
    TensorType,
    float_info,
    format_shape,
    require_tensor,
    scaled_info,
    shapes_agree,
    sizes_agree,
    tensor_info,
)
from steelyard.errors import ConstraintError
from steelyard.formats.activations import EPILOGUES
from steelyard.formats.dtypes import FLOAT_DTYPES
from steelyard.formats.gemms import KINDS, OPERAND_USAGES
from steelyard.formats.schemes import Scheme


class MatmulOp(ScaledOp, name="matmul", traits=[ext.Pure]):
    """A GEMM that a recipe may quantize, still in high precision.

    Constraints:
    - matmul_c1: kind is fprop, dgrad or wgrad
    - matmul_c2: lhs, rhs and result are ranked tensors of f32, bf16 or f16, all builtin or all of torch
    - matmul_c3: lhs and rhs have one dtype
    - matmul_c4: 0 <= batch_dims, and each operand has the dims its kind needs beyond them
    - matmul_c5: batch dims agree
    - matmul_c6: the reduced dims agree
    - matmul_c7: the result has the shape of the product
    - matmul_c8: bias needs kind fprop and has shape [N]
    """

    assembly_format = '$kind $lhs, $rhs [bias($bias)] [batch_dims($batch_dims = 0)] [at $layer = ""]'

    lhs: ext.Operand[Any]
    rhs: ext.Operand[Any]
    result: ext.Result[Any]
    kind: ir.StringAttr
    layer: ir.StringAttr
    batch_dims: ir.IntegerAttr
    bias: ext.Operand[Any] | None = None

    def check(self) -> None:
        kind = string_attribute(self, "kind", KINDS, "matmul_c1")
        lhs, rhs = (float_info(self.operands[i], "matmul_c2", name) for i, name in enumerate(("lhs", "rhs")))
        result = float_info(self.result, "matmul_c2", "result")
        require(
            lhs.namespace == rhs.namespace == result.namespace,
            "matmul_c2",
            f"lhs, rhs and result must all be builtin or all torch tensors, got {lhs}, {rhs} and {result}",
        )
        found = f"{lhs.dtype} and {rhs.dtype}"
        require(lhs.dtype == rhs.dtype, "matmul_c3", f"lhs and rhs must have one dtype, got {found}")
        product = product_shape(kind, lhs.shape, rhs.shape, self.batch_dims.value, "matmul", 4)
        require_result(result.shape, product, "matmul_c7")
        if self.bias is not None:
            require_bias(self.bias, kind, result, "matmul_c8")


def matmul(
    lhs: ir.Value,
    rhs: ir.Value,
    *,
    kind: str,
    layer: str = "",
    batch_dims: int = 0,
    bias: ir.Value | None = None,
    dtype: str | None = None,
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> MatmulOp:
    """Build a `scaled.matmul`; the result has lhs's dtype unless one is given."""
    info = float_info(lhs, "matmul_c2", "lhs")
    other = float_info(rhs, "matmul_c2", "rhs")
    result = info.with_(product_shape(kind, info.shape, other.shape, batch_dims, "matmul", 4), dtype)
    attributes = _attributes(kind, layer, batch_dims)
    return build(MatmulOp, [lhs, rhs, bias], [result.type()], attributes, loc, ip)


class GemmOp(ScaledOp, name="gemm", traits=[ext.Pure]):
    """The product of two quantized tensors: epilogue(product + bias) + residual.

    `kind` decides which copy of each operand is read. Their formats may differ, and activations or gradients that are
    not quantized may be multiplied by a quantized weight. `preactivation` is product + bias, for a backward that reads
    it.

    Constraints:
    - gemm_c1: kind is fprop, dgrad or wgrad
    - gemm_c2: lhs and rhs are !scaled.tensor with the copy this kind reads; lhs of fprop and dgrad without batch dims
      may be a plain tensor of f32, bf16 or f16
    - gemm_c3: custom copies belong to one custom quantizer, on both sides
    - gemm_c4: two copies in 128x128 tiles cannot be multiplied
    - gemm_c5: both copies have the random Hadamard transform, or neither
    - gemm_c6: a second level per row is on lhs only
    - gemm_c7: only a gradient (lhs of dgrad and wgrad, one side of a product with batch dims) is rounded stochastically
    - gemm_c8: 0 <= batch_dims, and each operand has the dims its kind needs beyond them
    - gemm_c9: batch dims agree
    - gemm_c10: the reduced dims agree
    - gemm_c11: the result is a tensor of f32, bf16 or f16 with the shape of the product
    - gemm_c12: bias needs kind fprop and has shape [N]
    - gemm_c13: epilogue is none, relu, gelu, gelu_tanh or silu
    - gemm_c14: residual has the result's type
    - gemm_c15: preactivation needs an epilogue other than none and has the result's shape
    - gemm_c16: only rhs is packed
    - gemm_c17: both copies are in the gemm layout, or neither is; neither is in the turned layout
    """

    assembly_format = (
        "$kind $lhs, $rhs [bias($bias)] [epilogue($epilogue = none)] [residual($residual)] "
        '[batch_dims($batch_dims = 0)] [at $layer = ""]'
    )

    lhs: ext.Operand[Any]
    rhs: ext.Operand[Any]
    result: ext.Result[Any]
    kind: ir.StringAttr
    layer: ir.StringAttr
    batch_dims: ir.IntegerAttr
    epilogue: ir.StringAttr
    bias: ext.Operand[Any] | None = None
    residual: ext.Operand[Any] | None = None
    preactivation: ext.Result[Any] | None = None

    def check(self) -> None:
        kind = string_attribute(self, "kind", KINDS, "gemm_c1")
        lhs, rhs = lhs_info(self.lhs), scaled_info(self.rhs, "gemm_c2", "rhs")
        require_pair(*copies_read(kind, lhs, rhs), kind, batched=self.batch_dims.value > 0)
        may_be_plain = kind != "wgrad" and not self.batch_dims.value
        message = f"lhs of {kind} must be a !scaled.tensor, got {self.lhs.type}"
        require(may_be_plain or isinstance(lhs, ScaledInfo), "gemm_c2", message)
        result = float_info(self.result, "gemm_c11", "result")
        product = product_shape(kind, lhs.shape, rhs.shape, self.batch_dims.value, "gemm", 8)
        require_result(result.shape, product, "gemm_c11")
        self._check_epilogue(kind, result)

    def _check_epilogue(self, kind: str, result: TensorInfo) -> None:
        epilogue = string_attribute(self, "epilogue", EPILOGUES, "gemm_c13")
        if self.bias is not None:
            require_bias(self.bias, kind, result, "gemm_c12")
        if self.residual is not None:
            require_tensor(self.residual, result, "gemm_c14", "residual")
        if self.preactivation is not None:
            require(epilogue != "none", "gemm_c15", "a preactivation needs an epilogue other than none")
            require_tensor(self.preactivation, result, "gemm_c15", "preactivation")


def gemm(
    lhs: ir.Value,
    rhs: ir.Value,
    *,
    kind: str,
    result: ir.Type,
    layer: str = "",
    batch_dims: int = 0,
    epilogue: str = "none",
    bias: ir.Value | None = None,
    residual: ir.Value | None = None,
    preactivation: bool = False,
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> GemmOp:
    """Build a `scaled.gemm`. A quantized tensor does not say whose tensors surround it, so the result type is given."""
    attributes = _attributes(kind, layer, batch_dims) | {"epilogue": ir.StringAttr.get(epilogue)}
    results = [result, result if preactivation else None]
    return build(GemmOp, [lhs, rhs, bias, residual], results, attributes, loc, ip)


def lhs_info(value: ir.Value) -> ScaledInfo | TensorInfo:
    """What the type of a gemm's lhs says: that of a quantized tensor, or of a plain one."""
    if isinstance(value.type, TensorType):
        return value.type.info
    info = tensor_info(value.type)
    if info is None or info.dtype not in FLOAT_DTYPES:
        dtypes = ", ".join(FLOAT_DTYPES)
        raise ConstraintError("gemm_c2", f"lhs must be a !scaled.tensor or a tensor of {dtypes}, got {value.type}")
    return info


def copies_read(kind: str, lhs: ScaledInfo | TensorInfo, rhs: ScaledInfo) -> tuple[Scheme | None, Scheme]:
    """The schemes of the two copies that a gemm of this kind reads; None for a plain lhs."""
    left, right = OPERAND_USAGES[kind]
    read = _copy_read(kind, lhs, left, "lhs") if isinstance(lhs, ScaledInfo) else None
    return read, _copy_read(kind, rhs, right, "rhs")


def _copy_read(kind: str, info: ScaledInfo, usage: str, name: str) -> Scheme:
    scheme = info.copy_of(usage)
    if scheme is None:
        raise ConstraintError("gemm_c2", f"{kind} reads the {usage} copy of {name}, which has none")
    return scheme


def require_pair(lhs: Scheme | None, rhs: Scheme, kind: str, *, batched: bool = False) -> None:
    """Require that a gemm can multiply the two copies, or a plain lhs by a copy."""
    custom = "" if lhs is None else lhs.custom
    message = f"custom copies must be of one quantizer on both sides, got {_family_name(lhs)} and {_family_name(rhs)}"
    require(custom == rhs.custom, "gemm_c3", message)
    require(rhs.second_level != "row", "gemm_c6", "a second level per row must be on lhs, got it on rhs")
    rht = lhs is not None and lhs.rht
    require(rht == rhs.rht, "gemm_c5", "the random Hadamard transform must be on both copies or on none, got one")
    layouts = "compact" if lhs is None else lhs.layout, rhs.layout
    message = f"both copies or none must be in the gemm layout, and none turned, got {layouts[0]} and {layouts[1]}"
    fits = "turned" not in layouts and ("gemm" not in layouts or layouts[0] == layouts[1])
    require(fits, "gemm_c17", message)
    # A product of attention may have its gradient on either side.
    _require_nearest(rhs, "rhs", kind, gradient=batched)
    if lhs is not None:
        _require_lhs(lhs, rhs)
        may_be_gradient = kind != "fprop" or (batched and rhs.rounding == "nearest")
        _require_nearest(lhs, "lhs", kind, gradient=may_be_gradient)


def _require_lhs(lhs: Scheme, rhs: Scheme) -> None:
    """What holds of the copy of lhs alone, or of the blocks of both."""
    both_tiled = lhs.block == rhs.block == "128x128"
    remedy = "quantize one in 1x128 blocks"
    require(not both_tiled, "gemm_c4", f"at most one copy may be in 128x128 tiles, got both; {remedy}")
    require(lhs.layout != "packed", "gemm_c16", "a packed copy must be on rhs, got it on lhs")


def product_shape(kind: str, lhs: Shape, rhs: Shape, batch_dims: int, op: str, first: int) -> Shape:
    """The shape of a product; failures are named `<op>_c<first>` (ranks), and the two numbers after it (dims)."""
    require(kind in KINDS, f"{op}_c1", f"kind must be one of {', '.join(KINDS)}, got {kind}")
    ranks = f"{op}_c{first}"
    require(batch_dims >= 0, ranks, f"batch_dims must not be negative, got {batch_dims}")
    require(len(lhs) > batch_dims, ranks, f"lhs must have more than {batch_dims} dims, got {format_shape(lhs)}")
    matrix = kind != "wgrad"
    fits = len(rhs) == batch_dims + 2 if matrix else len(rhs) == len(lhs)
    wanted = f"{batch_dims + 2} dims" if matrix else "as many dims as lhs"
    require(fits, ranks, f"rhs of {kind} must have {wanted}, got {format_shape(rhs)}")

    batch, lhs, rhs_batch, rhs = lhs[:batch_dims], lhs[batch_dims:], rhs[:batch_dims], rhs[batch_dims:]
    _require_dims(batch, rhs_batch, f"{op}_c{first + 1}", "batch dims of lhs and rhs")
    reduced = {"fprop": (lhs[-1:], rhs[-1:]), "dgrad": (lhs[-1:], rhs[:1]), "wgrad": (lhs[:-1], rhs[:-1])}[kind]
    _require_dims(*reduced, f"{op}_c{first + 2}", f"the dims that {kind} reduces over")
    if kind == "wgrad":
        return (*batch, lhs[-1], rhs[-1])
    return (*batch, *lhs[:-1], rhs[0] if kind == "fprop" else rhs[1])


def require_result(shape: Shape, product: Shape, constraint: str) -> None:
    """Require the shape of a product."""
    found, wanted = format_shape(shape), format_shape(product)
    require(shapes_agree(shape, product), constraint, f"the result must have shape {wanted}, got {found}")


def require_bias(bias: ir.Value, kind: str, result: TensorInfo, constraint: str) -> None:
    """Require a bias that fits the last dim of a forward product."""
    require(kind == "fprop", constraint, f"only fprop takes a bias, got kind {kind}")
    info = float_info(bias, constraint, "bias")
    fits = info.namespace == result.namespace and len(info.shape) == 1 and sizes_agree(info.shape[0], result.shape[-1])
    require(fits, constraint, f"bias must have shape {format_shape(result.shape[-1:])}, got {bias.type}")


def _require_dims(left: Shape, right: Shape, constraint: str, what: str) -> None:
    found = f"{format_shape(left)} and {format_shape(right)}"
    require(shapes_agree(left, right), constraint, f"{what} must agree, got {found}")


def _require_nearest(scheme: Scheme, name: str, kind: str, *, gradient: bool) -> None:
    message = f"{name} of {kind} is no gradient and must be rounded to nearest, got stochastic"
    require(gradient or scheme.rounding == "nearest", "gemm_c7", message)


def _family_name(scheme: Scheme | None) -> str:
    if scheme is None:
        return "a plain tensor"
    return f"custom '{scheme.custom}'" if scheme.custom else scheme.family


def _attributes(kind: str, layer: str, batch_dims: int) -> dict[str, ir.Attribute]:
    return {
        "kind": ir.StringAttr.get(kind),
        "layer": ir.StringAttr.get(layer),
        "batch_dims": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), batch_dims),
    }
