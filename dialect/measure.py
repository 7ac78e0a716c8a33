"""What low precision costs, as ops: `measure_quantize`, `measure_product`, `measure_influence` and `switch`.

Their results are numbers in f64, in the order of `steelyard.formats.statistics`.
"""

from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import ext

from steelyard.dialect.base import ScaledOp, build, require, string_attribute
from steelyard.dialect.quantize import require_same_values
from steelyard.dialect.types import (
    ScaledInfo,
    TensorInfo,
    float_info,
    format_shape,
    require_tensor,
    scaled_info,
    shapes_agree,
    tensor_info,
)
from steelyard.formats.gemms import USAGES
from steelyard.formats.schemes import Scheme
from steelyard.formats.statistics import INFLUENCE_FIELDS, PRODUCT_FIELDS, copy_length


class MeasureQuantizeOp(ScaledOp, name="measure_quantize", traits=[ext.Pure]):
    """What quantizing did to the values of a tensor: how large they are, how large the errors, and how codes are used.

    `source` is what was quantized. Without it, as for a parameter that is stored in low precision, only the decoded
    values are known, and no error. A matrix whose rows are in groups has the `ends` of these groups.

    Constraints:
    - measure_quantize_c1: usage is rowwise or columnwise, and quantized has that copy, of a built-in scheme in the
      compact layout
    - measure_quantize_c2: source, if there is one, is a ranked tensor with quantized's shape and dtype
    - measure_quantize_c3: ends, a 32-bit integer for each group, is there for a matrix in groups and only then
    - measure_quantize_c4: result is a vector of f64, as long as the statistics of that copy
    """

    assembly_format = "$usage $quantized [source($source)] [ends($ends)]"

    quantized: ext.Operand[Any]
    result: ext.Result[Any]
    usage: ir.StringAttr
    source: ext.Operand[Any] | None = None
    ends: ext.Operand[Any] | None = None

    def check(self) -> None:
        usage = string_attribute(self, "usage", USAGES, "measure_quantize_c1")
        info = scaled_info(self.quantized, "measure_quantize_c1", "quantized")
        scheme = _measured_copy(info, usage)
        if self.source is not None:
            source = float_info(self.source, "measure_quantize_c2", "source")
            require_same_values(source, info, "measure_quantize_c2")
        result = _numbers_beside(self.result)
        is_wanted = info.groups > 0 and len(info.shape) == 2
        found = "none" if self.ends is None else "some"
        message = f"ends must be there for a matrix in groups and only then, got {found} for {self.quantized.type}"
        require(is_wanted == (self.ends is not None), "measure_quantize_c3", message)
        if self.ends is not None:
            require_tensor(self.ends, result.group_ends(info.groups), "measure_quantize_c3", "ends")
        require_tensor(self.result, result.with_((copy_length(scheme),)), "measure_quantize_c4", "result")


def measure_quantize(
    quantized: ir.Value,
    namespace: str,
    *,
    usage: str,
    source: ir.Value | None = None,
    ends: ir.Value | None = None,
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> MeasureQuantizeOp:
    """Build a `scaled.measure_quantize`; a quantized tensor does not say whose tensors surround it."""
    scheme = _measured_copy(scaled_info(quantized, "measure_quantize_c1", "quantized"), usage)
    result = TensorInfo(namespace, (copy_length(scheme),), "f64").type()
    attributes = {"usage": ir.StringAttr.get(usage)}
    return build(MeasureQuantizeOp, [quantized, source, ends], [result], attributes, loc, ip)


class MeasureProductOp(ScaledOp, name="measure_product", traits=[ext.Pure]):
    """The error of a GEMM: its result without the bias that it adds, beside the same product in high precision.

    Constraints:
    - measure_product_c1: product is a ranked tensor of f32, bf16 or f16
    - measure_product_c2: computed is a float tensor of product's shape
    - measure_product_c3: bias has computed's dtype, and the size of its last dim
    - measure_product_c4: result is a vector of f64, as long as the statistics of a product
    """

    assembly_format = "$computed, $product [bias($bias)]"

    computed: ext.Operand[Any]
    product: ext.Operand[Any]
    result: ext.Result[Any]
    bias: ext.Operand[Any] | None = None

    def check(self) -> None:
        product = float_info(self.product, "measure_product_c1", "product")
        computed = float_info(self.computed, "measure_product_c2", "computed")
        _require_shape(computed, product, "measure_product_c2")
        if self.bias is not None:
            require_tensor(self.bias, computed.with_(product.shape[-1:]), "measure_product_c3", "bias")
        numbers = product.with_((len(PRODUCT_FIELDS),), "f64")
        require_tensor(self.result, numbers, "measure_product_c4", "result")


def measure_product(
    computed: ir.Value,
    product: ir.Value,
    *,
    bias: ir.Value | None = None,
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> MeasureProductOp:
    """Build a `scaled.measure_product`."""
    info = float_info(product, "measure_product_c1", "product")
    result = info.with_((len(PRODUCT_FIELDS),), "f64").type()
    return build(MeasureProductOp, [computed, product, bias], [result], {}, loc, ip)


class MeasureInfluenceOp(ScaledOp, name="measure_influence", traits=[ext.Pure]):
    """How far the error of a GEMM moves the loss, to first order: for each row, its error times its gradient.

    Constraints:
    - measure_influence_c1: product is a ranked tensor of f32, bf16 or f16
    - measure_influence_c2: computed and gradient are float tensors too; computed has the shape of product, gradient as
      many columns
    - measure_influence_c3: bias has computed's dtype, and the size of its last dim
    - measure_influence_c4: result is a vector of f64, as long as the statistics of an influence
    """

    assembly_format = "$computed, $product, $gradient [bias($bias)]"

    computed: ext.Operand[Any]
    product: ext.Operand[Any]
    gradient: ext.Operand[Any]
    result: ext.Result[Any]
    bias: ext.Operand[Any] | None = None

    def check(self) -> None:
        product = float_info(self.product, "measure_influence_c1", "product")
        computed, gradient = (
            float_info(value, "measure_influence_c2", name)
            for name, value in (("computed", self.computed), ("gradient", self.gradient))
        )
        _require_shape(computed, product, "measure_influence_c2")
        found = format_shape(gradient.shape)
        fits = len(gradient.shape) > 0 and shapes_agree(gradient.shape[-1:], product.shape[-1:])
        message = f"gradient must have as many columns as {format_shape(product.shape)}, got {found}"
        require(fits, "measure_influence_c2", message)
        if self.bias is not None:
            require_tensor(self.bias, computed.with_(product.shape[-1:]), "measure_influence_c3", "bias")
        numbers = product.with_((len(INFLUENCE_FIELDS),), "f64")
        require_tensor(self.result, numbers, "measure_influence_c4", "result")


def measure_influence(
    computed: ir.Value,
    product: ir.Value,
    gradient: ir.Value,
    *,
    bias: ir.Value | None = None,
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> MeasureInfluenceOp:
    """Build a `scaled.measure_influence`."""
    info = float_info(product, "measure_influence_c1", "product")
    result = info.with_((len(INFLUENCE_FIELDS),), "f64").type()
    return build(MeasureInfluenceOp, [computed, product, gradient, bias], [result], {}, loc, ip)


class SwitchOp(ScaledOp, name="switch", traits=[ext.Pure]):
    """One of two results of a GEMM: the quantized one where `on` is not 0, otherwise that in high precision.

    Constraints:
    - switch_c1: on is an f32 scalar
    - switch_c2: quantized, exact and result are ranked tensors of one type, f32, bf16 or f16
    """

    assembly_format = "$on, $quantized, $exact"

    on: ext.Operand[Any]
    quantized: ext.Operand[Any]
    exact: ext.Operand[Any]
    result: ext.Result[Any]

    def check(self) -> None:
        exact = float_info(self.exact, "switch_c2", "exact")
        require_tensor(self.on, exact.with_((), "f32"), "switch_c1", "on")
        for name in ("quantized", "result"):
            require_tensor(getattr(self, name), exact, "switch_c2", name)


def switch(
    on: ir.Value,
    quantized: ir.Value,
    exact: ir.Value,
    *,
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> SwitchOp:
    """Build a `scaled.switch`."""
    return build(SwitchOp, [on, quantized, exact], [exact.type], {}, loc, ip)


def _measured_copy(info: ScaledInfo, usage: str) -> Scheme:
    scheme = info.copy_of(usage)
    require(scheme is not None, "measure_quantize_c1", f"quantized must have the {usage} copy, got none")
    assert scheme is not None
    fits = not scheme.custom and scheme.layout == "compact"
    found = "a user's own" if scheme.custom else f"layout {scheme.layout}"
    message = f"the {usage} copy must be of a built-in scheme in the compact layout, got {found}"
    require(fits, "measure_quantize_c1", message)
    return scheme


def _numbers_beside(value: ir.Value) -> TensorInfo:
    """A vector of f64 of whose tensors a value is one."""
    info = tensor_info(value.type)
    return TensorInfo("builtin" if info is None else info.namespace, (None,), "f64")


def _require_shape(computed: TensorInfo, product: TensorInfo, constraint: str) -> None:
    message = f"computed must have shape {format_shape(product.shape)}, got {format_shape(computed.shape)}"
    require(shapes_agree(computed.shape, product.shape), constraint, message)
