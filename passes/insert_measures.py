"""`scaled-insert-measures`."""

from collections import Counter
from dataclasses import dataclass

from torch_mlir import ir

from steelyard.dialect.assembly.scheme_names import full_text, name_of
from steelyard.dialect.grouped import GroupedGemmOp
from steelyard.dialect.matmul import GemmOp
from steelyard.dialect.measure import measure_influence, measure_product, measure_quantize
from steelyard.dialect.types import TensorType, info_namespace, scaled_info_of
from steelyard.formats.gemms import OPERAND_USAGES, Role
from steelyard.formats.schemes import Scheme
from steelyard.ir.attributes import MEASURES
from steelyard.ir.functions import append_results, functions_of, is_private, terminator_of
from steelyard.ir.gradients import find_gradients, is_batched_gradient, operand_roles
from steelyard.ir.torch_ops import walk_ops
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.exact_products import product_in_f32, quantized_from

Gemm = GemmOp | GroupedGemmOp
_SHORT = {"rowwise": "row", "columnwise": "col"}


@register_pass
def insert_measures(module: ir.Operation, *, influence: bool = False) -> None:
    """Measure what each quantized GEMM loses.

    Takes a quantized module. Leaves beside each `scaled.gemm` and `scaled.grouped_gemm` a `scaled.measure_quantize` of
    each quantized operand, the same product in high precision (`scaled.matmul`), and a `scaled.measure_product` of both
    results. Their numbers are results of the function, marked with what they are of (`scaled.measures`). An operand
    that several GEMMs read is measured once. What a user's own quantizer makes is measured by the product alone.

    With `influence`, of a function with gradients, each GEMM of the forward whose result has a gradient also has a
    `scaled.measure_influence`.
    """
    numbers = Counter[tuple[str, str]]()
    for function in functions_of(module):
        # The GEMMs of a loop's body are numbered together with those around it.
        numbers = numbers if is_private(function) else Counter[tuple[str, str]]()
        _Measures(function, numbers).insert(influence)


@dataclass(frozen=True)
class _Measured:
    """A GEMM of the forward with its product in high precision."""

    gemm: Gemm
    product: ir.Value
    name: str


class _Measures:
    """The measuring ops of one function."""

    def __init__(self, function: ir.Operation, numbers: Counter[tuple[str, str]]):
        self._function, self._numbers = function, numbers
        self._gradients = find_gradients(function)
        self._gemms = [op.opview for op in walk_ops(function) if isinstance(op.opview, GemmOp | GroupedGemmOp)]
        self._copies: dict[tuple[ir.Value, str], ir.Value] = {}
        self._names: dict[ir.Value, list[str]] = {}
        """What each vector of numbers is of."""
        self._forward: list[_Measured] = []

    def insert(self, influence: bool) -> None:
        """Measure every GEMM."""
        output_gradients = self._output_gradients() if influence else {}
        for gemm in self._gemms:
            with ir.InsertionPoint.after(gemm), gemm.location:
                self._measure(gemm)
        for measured in self._forward:
            self._measure_influence(measured, output_gradients)
        append_results(
            self._function,
            [
                (value, {MEASURES: ir.ArrayAttr.get([ir.StringAttr.get(name) for name in names])})
                for value, names in self._names.items()
            ],
        )

    def _measure(self, gemm: Gemm) -> None:
        layer = gemm.layer.value
        kind = "dgrad" if is_batched_gradient(gemm, self._gradients) else gemm.kind.value
        number = self._numbers[layer, kind]
        self._numbers[layer, kind] += 1
        name = f"{layer}:{kind}:{number}"
        usages, roles = OPERAND_USAGES[gemm.kind.value], operand_roles(gemm, self._gradients)
        for side, operand, usage, role in zip(("lhs", "rhs"), (gemm.lhs, gemm.rhs), usages, roles, strict=True):
            if isinstance(operand.type, TensorType):
                self._measure_operand(gemm, operand, usage, role, f"{name}:{side}")
        product = product_in_f32(gemm)
        if product is None:
            return
        bias = gemm.bias if isinstance(gemm, GemmOp) else None
        self._note(measure_product(gemm.result, product, bias=bias).result, f"{name}:result")
        if kind == "fprop" and gemm.result not in self._gradients:
            self._forward.append(_Measured(gemm, product, name))

    def _measure_operand(self, gemm: Gemm, operand: ir.Value, usage: str, role: Role, name: str) -> None:
        info = scaled_info_of(operand)
        scheme = info.copy_of(usage)
        assert scheme is not None, "gemm_c2"
        if scheme.custom:
            return
        key = operand, usage
        if key not in self._copies:
            # A stack of matrices has no ends.
            ends = gemm.ends if isinstance(gemm, GroupedGemmOp) and len(info.shape) == 2 else None
            self._copies[key] = measure_quantize(
                operand,
                info_namespace(gemm.result),
                usage=usage,
                source=quantized_from(operand),
                ends=ends,
            ).result
        self._note(self._copies[key], f"{name} {role} {_SHORT[usage]} {_spelled(scheme)}")

    def _note(self, numbers: ir.Value, name: str) -> None:
        self._names.setdefault(numbers, []).append(name)

    def _output_gradients(self) -> dict[str, ir.Value]:
        """The gradient of what each layer returns, by layer, if it is called once."""
        found: dict[str, set[ir.Value]] = {}
        for gemm in self._gemms:
            if gemm.kind.value == "fprop":
                continue
            source = quantized_from(gemm.lhs) if isinstance(gemm.lhs.type, TensorType) else gemm.lhs
            if source is not None:
                found.setdefault(gemm.layer.value, set()).add(source)
        calls = Counter(gemm.layer.value for gemm in self._gemms if gemm.kind.value == "fprop")
        return {layer: next(iter(values)) for layer, values in found.items() if len(values) == calls[layer] == 1}

    def _measure_influence(self, measured: _Measured, gradients: dict[str, ir.Value]) -> None:
        gemm = measured.gemm
        gradient = gradients.get(gemm.layer.value)
        if gradient is None:
            return
        with ir.InsertionPoint(terminator_of(self._function)), gemm.location:
            bias = gemm.bias if isinstance(gemm, GemmOp) else None
            numbers = measure_influence(gemm.result, measured.product, gradient, bias=bias).result
        self._note(numbers, f"{measured.name}:influence")


def _spelled(scheme: Scheme) -> str:
    return name_of(scheme) or full_text(scheme)
