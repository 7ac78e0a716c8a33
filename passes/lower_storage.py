"""`scaled-lower-storage`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch_mlir import ir

from steelyard.dialect.base import one_of
from steelyard.dialect.epilogue import EpilogueOp
from steelyard.dialect.grouped import GroupedGemmOp
from steelyard.dialect.layout import FlattenOp, PackOp, PadOp, SwizzleOp, TurnOp, UnpadOp, flat_shape
from steelyard.dialect.matmul import GemmOp, copies_read, lhs_info
from steelyard.dialect.measure import MeasureInfluenceOp, MeasureProductOp, MeasureQuantizeOp, SwitchOp
from steelyard.dialect.parts import JoinOp, SplitOp
from steelyard.dialect.produce import PRODUCERS, ProduceQuantizeOp
from steelyard.dialect.quantize import DequantizeOp, NarrowOp, QuantizeOp, StoredOp, TransposeOp
from steelyard.dialect.scale import ALGORITHMS, AdvanceRngOp, AmaxOp, CountSaturatedOp, UpdateScaleOp
from steelyard.dialect.types import ScaledInfo, TensorInfo, TensorType, scaled_info_of, tensor_info
from steelyard.errors import ConstraintError
from steelyard.formats.activations import EPILOGUES
from steelyard.formats.gemms import COLUMNWISE, KINDS, OPERAND_USAGES, ROLES, ROWWISE, USAGES, Kind, Usage
from steelyard.formats.parts import grouped_part_shapes, part_shapes
from steelyard.formats.schemes import Scheme
from steelyard.ir.attributes import LAYER, PART, PATH, REDUCE
from steelyard.ir.functions import erase_arguments, functions_of, replace_arguments, replace_results
from steelyard.ir.kernel_calls import (
    SIZE,
    AdvanceRngCall,
    AmaxCall,
    CountSaturatedCall,
    Declarations,
    DequantizeCall,
    EpilogueCall,
    GemmCall,
    GroupedGemmCall,
    GroupedPackCall,
    GroupedQuantizeCall,
    GroupedStoredCall,
    KernelCall,
    MeasureInfluenceCall,
    MeasureProductCall,
    MeasureQuantizeCall,
    PackCall,
    PadCall,
    ProduceQuantizeCall,
    QuantizeCall,
    Slot,
    StoredCall,
    SwitchCall,
    SwizzleCall,
    TransposeCall,
    TurnCall,
    UnpadCall,
    UpdateScaleCall,
)
from steelyard.ir.kernel_calls.gemm import PATHS, Path
from steelyard.ir.torch_ops import size_of, walk_ops
from steelyard.passes.pipeline.registry import fail, register_pass
from steelyard.targets.gemm_paths import NATIVE

Parts = dict[str, ir.Value]
Named = list[tuple[str, ir.Value]]
"""Operands of a call, each with what it is to the kernel."""


@dataclass
class _Stored:
    """A quantized tensor as the plain tensors that hold it."""

    info: ScaledInfo
    parts: Parts
    sizes: list[ir.Value]
    """Sizes of its leading dims that are known only at run time, where a kernel may need them."""

    def named_parts(self, usage: Usage | None = None) -> Named:
        """The parts, of one copy or of all, by their names in the tensor: `row.codes`."""
        prefix = "" if usage is None else _PREFIXES[usage]
        return [(name, value) for name, value in self.parts.items() if name.startswith(prefix)]

    def copy(self, usage: Usage) -> Named:
        """The parts of one copy by their names in the copy: `codes`."""
        return [(name.removeprefix(_PREFIXES[usage]), value) for name, value in self.named_parts(usage)]


_PREFIXES: dict[Usage, str] = {"rowwise": "row.", "columnwise": "col."}


@register_pass
def lower_storage(module: ir.Operation) -> None:
    """Split quantized tensors into the plain tensors that hold them, and turn each op on them into a kernel call.

    Takes `scaled` ops, and functions that take or return quantized tensors. Leaves no `scaled` op except
    `scaled.matmul` and `scaled.grouped_matmul`. Each `!scaled.tensor` becomes, for each copy, its codes, scales and,
    where the scheme has one, its amax; a packed copy becomes one tensor. Those of a tensor in groups are flat, and hold
    the parts of all groups one after the other. An argument becomes several, marked with `scaled.part`. Each op becomes
    a call of a declared kernel that takes the parts of the copies it reads. Sizes known only at run time are operands
    of a GEMM. What a user's own quantizer makes stays one opaque value.
    """
    lowering = _Lowering(module)
    for function in functions_of(module):
        lowering.lower(function)


class _Lowering:
    def __init__(self, module: ir.Operation):
        self._declarations = Declarations(module)
        self._stored: dict[ir.Value, _Stored] = {}
        self._namespace = "torch"

    def lower(self, function: ir.Operation) -> None:
        """Lower one function."""
        self._stored.clear()
        self._namespace = _namespace_of(function)
        count = self._split_arguments(function)
        dead: list[ir.Operation] = []
        for op in walk_ops(function):
            lower = _LOWERINGS.get(type(op.opview))
            if lower is None:
                continue
            with ir.InsertionPoint(op), op.location:
                try:
                    lower(self, op.opview)
                except ConstraintError as error:
                    fail(op, str(error))
            dead.append(op)
        self._split_results(function)
        arguments = list(function.regions[0].blocks[0].arguments)[:count]
        _require_unread([value for op in dead for value in op.results] + arguments, dead)
        for op in reversed(dead):
            op.erase()
        erase_arguments(function, count)

    def _split_arguments(self, function: ir.Operation) -> int:
        """Add the arguments that stand for the old ones; returns how many old ones there are."""
        count = len(function.regions[0].blocks[0].arguments)

        def split(argument: ir.Value) -> list[tuple[str, ir.Type]] | None:
            info = _splittable(argument)
            return None if info is None else [(n, i.type()) for n, i in self._part_infos(info)]

        replaced = replace_arguments(function, split, PART)
        for old, new in replaced:
            info = scaled_info_of(old)
            names = [name for name, _ in self._part_infos(info)]
            self._stored[old] = _Stored(info, dict(zip(names, new, strict=True)), [])
        return count

    def _split_results(self, function: ir.Operation) -> None:
        def split(value: ir.Value) -> Sequence[tuple[str, ir.Value]] | None:
            return list(self._stored[value].parts.items()) if value in self._stored else None

        replace_results(function, split, PART)

    def _part_infos(self, info: ScaledInfo) -> list[tuple[str, TensorInfo]]:
        """Name and type of each part."""
        parts: list[tuple[str, TensorInfo]] = []
        for prefix, scheme, columnwise in (("row.", info.row, False), ("col.", info.col, True)):
            if scheme is not None:
                if info.groups:
                    shapes = grouped_part_shapes(scheme, info.shape, columnwise, info.groups)
                else:
                    shapes = part_shapes(scheme, flat_shape(info.shape), columnwise)
                parts += [(prefix + name, TensorInfo(self._namespace, *part)) for name, part in shapes.items()]
        return [(name, self._spelled(part)) for name, part in parts]

    def _spelled(self, info: TensorInfo) -> TensorInfo:
        """Bytes are unsigned in torch; builtin tensors have signless integers."""
        unsigned = info.namespace == "torch" and info.dtype == "i8"
        return info.with_(info.shape, "ui8") if unsigned else info

    def make(self, op: ir.OpView, call: KernelCall, operands: Named) -> None:
        """Call a kernel that makes the quantized result of an op."""
        values = self._declarations.call(call, [value for _, value in operands])
        made = dict(zip([slot.name for slot in call.results], values, strict=True))
        if isinstance(op, QuantizeOp) and op.new_amax is not None:
            op.new_amax.replace_all_uses_with(made.pop("new_amax") if "new_amax" in made else _amax_part(made))
        if call.is_custom:
            op.result.replace_all_uses_with(made["storage"])
            return
        info = scaled_info_of(op.result)
        self._stored[op.result] = _Stored(info, made, self._sizes(op, info))

    def _made_slots(self, op: QuantizeOp | StoredOp | ProduceQuantizeOp | TransposeOp | PackOp) -> tuple[Slot, ...]:
        """The parts of an op's quantized result; what a user's quantizer makes is one value."""
        if _splittable(op.result) is None:
            return (Slot("storage", op.result.type),)
        parts = self._part_infos(scaled_info_of(op.result))
        return tuple(Slot(name, info.type()) for name, info in parts)

    def _sizes(self, op: ir.OpView, info: ScaledInfo) -> list[ir.Value]:
        unknown = [dim for dim, size in enumerate(info.shape[:-1]) if size is None]
        source = op.operands[0]
        if source in self._stored:
            return self._stored[source].sizes
        return [size_of(source, dim) for dim in unknown]

    def quantize(self, op: QuantizeOp) -> None:
        info = scaled_info_of(op.result)
        operands = _present(source=op.source, ends=op.ends, scale=op.scale, rng=op.rng)
        results = self._made_slots(op)
        # Of a tensor in groups, they are a part of its copies.
        if op.new_amax is not None and not info.groups:
            results += (Slot("new_amax", op.new_amax.type),)
        # Equal quantizations share a kernel, whatever their layers; a user's own is found by its layer.
        is_own = _splittable(op.result) is None
        settings: dict[str, Any] = {
            "operands": _slots(operands),
            "results": results,
            "row": info.row,
            "col": info.col,
            "role": one_of(op.role.value, ROLES, "quantize_c3", "role"),
            "layer": op.layer.value if is_own else "",
        }
        grouped = info.groups > 0
        call = GroupedQuantizeCall(groups=info.groups, **settings) if grouped else QuantizeCall(**settings)
        self.make(op, call, operands)

    def stored(self, op: StoredOp) -> None:
        info = scaled_info_of(op.result)
        assert info.row is not None, "stored_c3"
        operands = _present(source=op.source)
        settings: dict[str, Any] = {
            "operands": _slots(operands),
            "results": self._made_slots(op),
            "scheme": info.row,
        }
        call = GroupedStoredCall(groups=info.groups, **settings) if info.groups else StoredCall(**settings)
        self.make(op, call, operands)

    def produce_quantize(self, op: ProduceQuantizeOp) -> None:
        info = scaled_info_of(op.result)
        operands = _present(source=op.source, other=op.other, weight=op.weight, bias=op.bias, scale=op.scale)
        call = ProduceQuantizeCall(
            operands=_slots(operands),
            results=self._made_slots(op),
            row=info.row,
            col=info.col,
            role=one_of(op.role.value, ROLES, "produce_quantize_c6", "role"),
            producer=one_of(op.producer.value, tuple(PRODUCERS), "produce_quantize_c1", "producer"),
            epsilon=op.epsilon.value,
        )
        self.make(op, call, operands)

    def transpose(self, op: TransposeOp) -> None:
        source = self._get(op, op.source)
        scheme, usage = _only_copy(op, source.info)
        operands = source.named_parts() + _lead_sizes(source)
        call = TransposeCall(
            operands=_slots(operands), results=self._made_slots(op), scheme=scheme, usage=usage, shape=source.info.shape
        )
        self.make(op, call, operands)

    def pack(self, op: PackOp) -> None:
        source = self._get(op, op.source)
        info = source.info
        operands = source.named_parts()
        settings: dict[str, Any] = {
            "operands": _slots(operands),
            "results": self._made_slots(op),
            "row": info.row,
            "col": info.col,
            "shape": info.shape,
        }
        call = GroupedPackCall(groups=info.groups, **settings) if info.groups else PackCall(**settings)
        self.make(op, call, operands)

    def pad(self, op: PadOp) -> None:
        multiples = tuple(ir.DenseI64ArrayAttr(op.multiples))
        if not isinstance(op.source.type, TensorType):
            given: Named = [("source", op.source)]
            call = PadCall(operands=_slots(given), results=_result_slots(op, "result"), multiples=multiples)
            self._replace(op, call, given)
            return
        source, types = self._get(op, op.source), self._part_types(op.result)
        changed = [name for name, type_ in types.items() if _is_padded(source.parts[name], type_)]
        # What the transform filled up may hold as much as padding would.
        if not changed:
            self._rearrange(op, source, None, changed)
            return
        scheme, usage = _only_copy(op, source.info)
        operands, results = _rearranged(source, types, changed)
        shape = source.info.shape
        call = PadCall(operands=operands, results=results, multiples=multiples, scheme=scheme, usage=usage, shape=shape)
        self._rearrange(op, source, call, changed)

    def turn(self, op: TurnOp) -> None:
        self._rearrange_part(op, TurnCall, "codes")

    def swizzle(self, op: SwizzleOp) -> None:
        self._rearrange_part(op, SwizzleCall, "scales")

    def _rearrange_part(self, op: TurnOp | SwizzleOp, kind: type[TurnCall | SwizzleCall], part: str) -> None:
        """An op that changes one part of a copy."""
        source = self._get(op, op.source)
        scheme, usage = _only_copy(op, source.info)
        changed = [_PREFIXES[usage] + part]
        operands, results = _rearranged(source, self._part_types(op.result), changed)
        call = kind(operands=operands, results=results, scheme=scheme, usage=usage, shape=source.info.shape)
        self._rearrange(op, source, call, changed)

    def _rearrange(
        self, op: PadOp | TurnOp | SwizzleOp, source: _Stored, call: KernelCall | None, changed: list[str]
    ) -> None:
        """Change some parts of a quantized tensor and keep the others."""
        operands = [source.parts[name] for name in changed]
        values = [] if call is None else self._declarations.call(call, operands)
        parts = source.parts | dict(zip(changed, values, strict=True))
        self._stored[op.result] = _Stored(scaled_info_of(op.result), parts, [])

    def _part_types(self, value: ir.Value) -> dict[str, ir.Type]:
        return {name: part.type() for name, part in self._part_infos(scaled_info_of(value))}

    def flatten(self, op: FlattenOp) -> None:
        """The same parts; no kernel runs."""
        self._stored[op.result] = _Stored(scaled_info_of(op.result), self._get(op, op.source).parts, [])

    def narrow(self, op: NarrowOp) -> None:
        """Fewer parts; no kernel runs."""
        source, info = self._get(op, op.source), scaled_info_of(op.result)
        prefix = _PREFIXES["rowwise" if info.row is not None else "columnwise"]
        parts = {name: value for name, value in source.parts.items() if name.startswith(prefix)}
        self._stored[op.result] = _Stored(info, parts, source.sizes)

    def split(self, op: SplitOp) -> None:
        """The parts themselves; no kernel runs."""
        parts = self._get(op, op.source).parts
        for part, result in zip(("codes", "scales"), op.results, strict=True):
            result.replace_all_uses_with(parts[_PREFIXES[ROWWISE] + part])

    def join(self, op: JoinOp) -> None:
        """The parts themselves; no kernel runs."""
        prefix = _PREFIXES[ROWWISE]
        info = scaled_info_of(op.result)
        parts: Parts = {f"{prefix}codes": op.codes, f"{prefix}scales": op.scales}
        if any(name == f"{prefix}amax" for name, _ in self._part_infos(info)):
            # A copy with one scale has a place for its amax, which nothing reads where the scale is given.
            parts[f"{prefix}amax"] = op.scales
        self._stored[op.result] = _Stored(info, parts, self._sizes(op, info))

    def dequantize(self, op: DequantizeOp) -> None:
        source = self._get(op, op.source)
        usage = one_of(op.usage.value, USAGES, "dequantize_c1", "usage")
        scheme = source.info.copy_of(usage)
        assert scheme is not None, "dequantize_c1"
        operands = source.named_parts(usage) + _lead_sizes(source)
        call = DequantizeCall(
            operands=_slots(operands),
            results=_result_slots(op, "result"),
            scheme=scheme,
            usage=usage,
            shape=source.info.shape,
        )
        self._replace(op, call, operands)

    def gemm(self, op: GemmOp) -> None:
        kind = one_of(op.kind.value, KINDS, "gemm_c1", "kind")
        path = _path(op)
        lhs, rhs = lhs_info(op.lhs), scaled_info_of(op.rhs)
        left, right = copies_read(kind, lhs, rhs)
        operands: Named = []
        for name, value, usage in zip(("lhs", "rhs"), (op.lhs, op.rhs), OPERAND_USAGES[kind], strict=True):
            # A plain tensor, or what a user's own quantizer makes.
            if _splittable(value) is None:
                operands.append((name, value))
            else:
                operands += [(f"{name}.{part}", tensor) for part, tensor in self._get(op, value).copy(usage)]
        operands += _present(bias=op.bias, residual=op.residual)
        # A native GEMM of CUDA multiplies matrices, whose sizes are those of their codes.
        if op.lhs in self._stored and path != NATIVE:
            operands += _lead_sizes(self._stored[op.lhs])
        elif left is None:
            operands += [(SIZE, size_of(op.lhs, dim)) for dim, size in enumerate(lhs.shape[:-1]) if size is None]
        call = GemmCall(
            operands=_slots(operands),
            results=_result_slots(op, "result", "preactivation"),
            kind=kind,
            lhs=left,
            lhs_shape=lhs.shape,
            rhs=right,
            rhs_shape=rhs.shape,
            epilogue=one_of(op.epilogue.value, EPILOGUES, "gemm_c13", "epilogue"),
            batch_dims=op.batch_dims.value,
            path=path,
        )
        self._replace(op, call, operands)

    def grouped_gemm(self, op: GroupedGemmOp) -> None:
        kind = one_of(op.kind.value, KINDS, "grouped_gemm_c1", "kind")
        rhs = scaled_info_of(op.rhs)
        lhs = lhs_info(op.lhs)
        left, right = copies_read(kind, lhs, rhs)
        operands: Named = [("lhs", op.lhs)] if left is None else self._named_copy(op, op.lhs, kind, 0)
        operands += self._named_copy(op, op.rhs, kind, 1)
        operands.append(("ends", op.ends))
        # The result of a wgrad has no rows: its sizes are known.
        if kind != "wgrad":
            operands += self._rows(op.lhs)
        call = GroupedGemmCall(
            operands=_slots(operands),
            results=_result_slots(op, "result"),
            kind=kind,
            groups=rhs.groups,
            lhs=left,
            lhs_shape=lhs.shape,
            rhs=right,
            rhs_shape=rhs.shape,
            path=_path(op),
        )
        self._replace(op, call, operands)

    def _named_copy(self, op: GroupedGemmOp, value: ir.Value, kind: Kind, side: int) -> Named:
        """The parts of the copy of an operand that a kind reads."""
        parts = self._get(op, value).copy(OPERAND_USAGES[kind][side])
        return [(f"{('lhs', 'rhs')[side]}.{part}", tensor) for part, tensor in parts]

    def _rows(self, value: ir.Value) -> Named:
        """The rows of a matrix, if only run time tells how many there are."""
        if value in self._stored:
            return [(SIZE, size) for size in self._stored[value].sizes]
        info = tensor_info(value.type)
        return [(SIZE, size_of(value, 0))] if info is not None and info.shape[0] is None else []

    def epilogue(self, op: EpilogueOp) -> None:
        operands = _present(source=op.source, bias=op.bias, residual=op.residual)
        call = EpilogueCall(
            operands=_slots(operands),
            results=_result_slots(op, "result", "preactivation"),
            epilogue=one_of(op.epilogue.value, EPILOGUES, "epilogue_c3", "epilogue"),
        )
        self._replace(op, call, operands)

    def unpad(self, op: UnpadOp) -> None:
        if isinstance(op.source.type, TensorType):
            fail(op, "has no kernel for quantized tensors; run scaled-legalize before the tensors are quantized")
        operands: Named = [("source", op.source), *((SIZE, size) for size in op.sizes)]
        self._replace(op, UnpadCall(operands=_slots(operands), results=_result_slots(op, "result")), operands)

    def amax(self, op: AmaxOp) -> None:
        operands: Named = [("source", op.source)]
        per_row, rht = (ir.BoolAttr(attribute).value for attribute in (op.per_row, op.rht))
        call = AmaxCall(operands=_slots(operands), results=_result_slots(op, "result"), per_row=per_row, rht=rht)
        self._replace(op, call, operands)

    def update_scale(self, op: UpdateScaleOp) -> None:
        operands: Named = [("scale", op.scale), ("history", op.history), ("amax", op.amax)]
        call = UpdateScaleCall(
            operands=_slots(operands),
            results=_result_slots(op, "new_scale", "new_history"),
            scheme=op.scheme.scheme,
            margin=op.margin.value,
            algorithm=one_of(op.algorithm.value, ALGORITHMS, "update_scale_c4", "algorithm"),
            reduce=REDUCE in op.attributes,
            layer=ir.StringAttr(op.attributes[LAYER]).value if LAYER in op.attributes else "",
        )
        self._replace(op, call, operands)

    def count_saturated(self, op: CountSaturatedOp) -> None:
        operands = _present(source=op.source, scale=op.scale, count=op.count, ends=op.ends)
        results = _result_slots(op, "result")
        self._replace(
            op, CountSaturatedCall(operands=_slots(operands), results=results, scheme=op.scheme.scheme), operands
        )

    def advance_rng(self, op: AdvanceRngOp) -> None:
        operands: Named = [("rng", op.rng)]
        self._replace(op, AdvanceRngCall(operands=_slots(operands), results=_result_slots(op, "result")), operands)

    def measure_quantize(self, op: MeasureQuantizeOp) -> None:
        quantized = self._get(op, op.quantized)
        info = quantized.info
        usage = one_of(op.usage.value, USAGES, "measure_quantize_c1", "usage")
        scheme = info.copy_of(usage)
        assert scheme is not None, "measure_quantize_c1"
        sizes = [] if info.groups else _lead_sizes(quantized)
        operands = quantized.named_parts(usage) + _present(source=op.source, ends=op.ends) + sizes
        call = MeasureQuantizeCall(
            operands=_slots(operands),
            results=_result_slots(op, "result"),
            scheme=scheme,
            usage=usage,
            shape=info.shape,
            groups=info.groups,
        )
        self._replace(op, call, operands)

    def measure_product(self, op: MeasureProductOp) -> None:
        operands = _present(computed=op.computed, product=op.product, bias=op.bias)
        self._replace(op, MeasureProductCall(operands=_slots(operands), results=_result_slots(op, "result")), operands)

    def measure_influence(self, op: MeasureInfluenceOp) -> None:
        operands = _present(computed=op.computed, product=op.product, gradient=op.gradient, bias=op.bias)
        call = MeasureInfluenceCall(operands=_slots(operands), results=_result_slots(op, "result"))
        self._replace(op, call, operands)

    def switch(self, op: SwitchOp) -> None:
        operands = _present(on=op.on, quantized=op.quantized, exact=op.exact)
        self._replace(op, SwitchCall(operands=_slots(operands), results=_result_slots(op, "result")), operands)

    def _get(self, op: ir.OpView, value: ir.Value) -> _Stored:
        if value not in self._stored:
            fail(op, f"reads a quantized tensor that no op of the dialect makes: {value.type}")
        return self._stored[value]

    def _replace(self, op: ir.OpView, call: KernelCall, operands: Named) -> None:
        """Call a kernel in the place of an op whose results are plain tensors."""
        values = self._declarations.call(call, [value for _, value in operands])
        for old, new in zip(op.results, values, strict=True):
            old.replace_all_uses_with(new)


_LOWERINGS: dict[type, Callable[[_Lowering, Any], None]] = {
    QuantizeOp: _Lowering.quantize,
    StoredOp: _Lowering.stored,
    ProduceQuantizeOp: _Lowering.produce_quantize,
    TransposeOp: _Lowering.transpose,
    PackOp: _Lowering.pack,
    PadOp: _Lowering.pad,
    TurnOp: _Lowering.turn,
    SwizzleOp: _Lowering.swizzle,
    FlattenOp: _Lowering.flatten,
    NarrowOp: _Lowering.narrow,
    SplitOp: _Lowering.split,
    JoinOp: _Lowering.join,
    DequantizeOp: _Lowering.dequantize,
    GemmOp: _Lowering.gemm,
    GroupedGemmOp: _Lowering.grouped_gemm,
    EpilogueOp: _Lowering.epilogue,
    UnpadOp: _Lowering.unpad,
    AmaxOp: _Lowering.amax,
    UpdateScaleOp: _Lowering.update_scale,
    CountSaturatedOp: _Lowering.count_saturated,
    AdvanceRngOp: _Lowering.advance_rng,
    MeasureQuantizeOp: _Lowering.measure_quantize,
    MeasureProductOp: _Lowering.measure_product,
    MeasureInfluenceOp: _Lowering.measure_influence,
    SwitchOp: _Lowering.switch,
}


def _amax_part(made: Mapping[str, ir.Value]) -> ir.Value:
    """The amaxes of the source, which each copy with one scale per tensor keeps."""
    return next(value for name, value in made.items() if name.endswith(".amax"))


def _require_unread(values: Iterable[ir.Value], dead: list[ir.Operation]) -> None:
    """Fail at an op that would read a quantized tensor after it is gone: a call, a branch, or an op of other passes."""
    gone = set(dead)
    for value in values:
        for use in value.uses:
            if use.owner.operation not in gone:
                fail(
                    use.owner,
                    f"reads {value.type}, which only ops of the stage partitioned may do; run scaled-plan-memory after "
                    "this pass, and inline calls before it",
                )


def _splittable(value: ir.Value) -> ScaledInfo | None:
    """What a quantized tensor says, unless a user's own quantizer makes it."""
    if not isinstance(value.type, TensorType) or any(scheme.custom for scheme in value.type.info.schemes):
        return None
    return value.type.info


def _lead_sizes(stored: _Stored) -> Named:
    """The sizes of leading dims that are known only at run time; those of a saved matrix are read off its codes."""
    shape = stored.info.shape
    if stored.sizes or len(shape) != 2 or shape[0] is not None:
        return [(SIZE, size) for size in stored.sizes]
    if "row.codes" in stored.parts:
        return [(SIZE, size_of(stored.parts["row.codes"], 0))]
    col = stored.info.col
    # Two codes in one byte do not tell an odd size.
    if col is None or col.element == "f4E2M1FN":
        return []
    return [(SIZE, size_of(stored.parts["col.codes"], 0 if col.family == "mx" else 1))]


def _only_copy(op: ir.OpView, info: ScaledInfo) -> tuple[Scheme, Usage]:
    """The one copy of a quantized tensor that an op reads."""
    if info.row is not None and info.col is not None:
        fail(op, "has a kernel for one copy only; narrow the source to the copy that is read")
    return (info.row, ROWWISE) if info.row is not None else (info.schemes[0], COLUMNWISE)


def _is_padded(part: ir.Value, type_: ir.Type) -> bool:
    """Whether a part changes, or may at run time."""
    info = tensor_info(type_)
    return part.type != type_ or (info is not None and None in info.shape)


def _rearranged(
    source: _Stored, types: Mapping[str, ir.Type], changed: Sequence[str]
) -> tuple[tuple[Slot, ...], tuple[Slot, ...]]:
    """The operands and results of a call that changes some parts."""
    operands = _slots([(name, source.parts[name]) for name in changed])
    return operands, tuple(Slot(name, types[name]) for name in changed)


def _path(op: GemmOp | GroupedGemmOp) -> Path | None:
    if PATH not in op.attributes:
        return None
    return one_of(ir.StringAttr(op.attributes[PATH]).value, PATHS, "call_c2", PATH)


def _present(**values: ir.Value | None) -> Named:
    """The operands that an op has."""
    return [(name, value) for name, value in values.items() if value is not None]


def _slots(operands: Named) -> tuple[Slot, ...]:
    return tuple(Slot(name, value.type) for name, value in operands)


def _result_slots(op: ir.OpView, *names: str) -> tuple[Slot, ...]:
    """The results that an op has, in their order."""
    return tuple(Slot(name, value.type) for name, value in zip(names, op.results, strict=False))


def _namespace_of(function: ir.Operation) -> str:
    """Whose tensors a function works on."""
    for argument in function.regions[0].blocks[0].arguments:
        info = tensor_info(argument.type)
        if info is not None:
            return info.namespace
    return "torch"
