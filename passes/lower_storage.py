"""`scaled-lower-storage`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch_mlir import ir

from steelyard.dialect.epilogue import EpilogueOp
from steelyard.dialect.layout import FlattenOp, PackOp, PadOp, SwizzleOp, TurnOp, UnpadOp, flat_shape
from steelyard.dialect.matmul import GemmOp
from steelyard.dialect.produce import ProduceQuantizeOp
from steelyard.dialect.quantize import DequantizeOp, NarrowOp, QuantizeOp, TransposeOp
from steelyard.dialect.scale import AdvanceRngOp, AmaxOp, ComputeScaleOp, UpdateScaleOp
from steelyard.dialect.types import ScaledInfo, TensorInfo, TensorType, tensor_info
from steelyard.formats.gemms import OPERAND_USAGES
from steelyard.formats.parts import part_shapes
from steelyard.formats.schemes import Scheme
from steelyard.ir.attributes import LAYER, PART, PATH, REDUCE
from steelyard.ir.functions import erase_arguments, functions_of, replace_arguments, replace_results
from steelyard.ir.kernel_calls import Kernels, Setting
from steelyard.ir.torch_ops import size_of, walk_ops
from steelyard.passes.pipeline.registry import fail, register_pass
from steelyard.targets.gemm_paths import NATIVE

Parts = dict[str, ir.Value]


@dataclass
class _Stored:
    """A quantized tensor as the plain tensors that hold it."""

    info: ScaledInfo
    parts: Parts
    sizes: list[ir.Value]
    """Sizes of its leading dims that are known only at run time, where somebody may ask for them."""

    def copy(self, usage: str) -> list[tuple[str, ir.Value]]:
        """Parts of one copy."""
        prefix = _PREFIXES[usage]
        return [(name.removeprefix(prefix), value) for name, value in self.parts.items() if name.startswith(prefix)]


_PREFIXES = {"rowwise": "row.", "columnwise": "col."}


@register_pass
def lower_storage(module: ir.Operation) -> None:
    """Split quantized tensors into the plain tensors that hold them, and turn each op on them into a kernel call.

    Takes `scaled` ops, and functions that take or return quantized tensors. Leaves no `scaled` op except
    `scaled.matmul`. Each `!scaled.tensor` becomes, for each copy, its codes, its scales and, where the scheme has one,
    its amax; a packed copy becomes one tensor. An argument becomes several, marked with `scaled.part`. Each op becomes
    a call of a declared kernel that takes the parts of the copies it reads. Sizes known only at run time are operands
    of a GEMM. What a user's own quantizer makes stays one opaque value.
    """
    lowering = _Lowering(module)
    for function in functions_of(module):
        lowering.lower(function)


class _Lowering:
    def __init__(self, module: ir.Operation):
        self._kernels = Kernels(module)
        self._stored: dict[ir.Value, _Stored] = {}
        self._namespace = "torch"

    def lower(self, function: ir.Operation) -> None:
        """Lower one function."""
        self._stored.clear()
        self._namespace = _namespace_of(function)
        count = self._split_arguments(function)
        dead = []
        for op in walk_ops(function):
            lower = _LOWERINGS.get(type(op.opview))
            if lower is None:
                continue
            with ir.InsertionPoint(op), op.location:
                lower(self, op.opview)
            dead.append(op)
        self._split_results(function)
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
            info = old.type.info
            names = [name for name, _ in self._part_infos(info)]
            self._stored[old] = _Stored(info, dict(zip(names, new, strict=True)), [])
        return count

    def _split_results(self, function: ir.Operation) -> None:
        def split(value: ir.Value) -> Sequence[tuple[str, ir.Value]] | None:
            return list(self._stored[value].parts.items()) if value in self._stored else None

        replace_results(function, split, PART)

    def _part_infos(self, info: ScaledInfo) -> list[tuple[str, TensorInfo]]:
        """Name and type of each part."""
        parts = []
        for prefix, scheme, columnwise in (("row.", info.row, False), ("col.", info.col, True)):
            if scheme is not None:
                shapes = part_shapes(scheme, flat_shape(info.shape), columnwise)
                parts += [(prefix + name, TensorInfo(self._namespace, *part)) for name, part in shapes.items()]
        return [(name, self._spelled(part)) for name, part in parts]

    def _spelled(self, info: TensorInfo) -> TensorInfo:
        """Bytes are unsigned in torch; builtin tensors have signless integers."""
        unsigned = info.namespace == "torch" and info.dtype == "i8"
        return info.with_(info.shape, "ui8") if unsigned else info

    def make(self, op: ir.OpView, name: str, config: dict[str, Setting], operands: list[tuple[str, ir.Value]]) -> None:
        """Call a kernel that makes the quantized result of an op."""
        info = op.result.type.info
        custom = _splittable(op.result) is None
        if custom:
            results = [("storage", op.result.type)]
        else:
            results = [(part, part_info.type()) for part, part_info in self._part_infos(info)]
        extra = [("new_amax", op.new_amax.type)] if getattr(op, "new_amax", None) is not None else []
        values = self._kernels.call(name, config, operands, results + extra)
        if extra:
            op.new_amax.replace_all_uses_with(values.pop())
        if custom:
            op.result.replace_all_uses_with(values[0])
            return
        names = [part for part, _ in results]
        self._stored[op.result] = _Stored(info, dict(zip(names, values, strict=True)), self._sizes(op, info))

    def _sizes(self, op: ir.OpView, info: ScaledInfo) -> list[ir.Value]:
        unknown = [dim for dim, size in enumerate(info.shape[:-1]) if size is None]
        source = op.operands[0]
        if source in self._stored:
            return self._stored[source].sizes
        return [size_of(source, dim) for dim in unknown]

    def quantize(self, op: QuantizeOp) -> None:
        config = _copies(op.result.type.info) | {"role": op.role.value}
        if _splittable(op.result) is None:
            config |= {"layer": op.layer.value}
        self.make(op, "quantize", config, _present(op, "source", "scale", "amax", "rng"))

    def produce_quantize(self, op: ProduceQuantizeOp) -> None:
        config = _copies(op.result.type.info)
        config |= {"producer": op.producer.value, "epsilon": op.epsilon.value, "role": op.role.value}
        self.make(op, "produce_quantize", config, _present(op, "source", "other", "weight", "bias", "scale"))

    def remake(self, op: TransposeOp | PackOp) -> None:
        """An op that makes every part of one quantized tensor from another."""
        name = op.OPERATION_NAME.removeprefix("scaled.")
        source = self._get(op, op.source)
        config = {f"from_{copy}": scheme for copy, scheme in _copies(source.info).items()}
        config |= _copies(op.result.type.info)
        operands = list(source.parts.items()) + [("size", size) for size in _lead_sizes(source)]
        self.make(op, name, config | {"shape": source.info.shape}, operands)

    def rearrange(self, op: PadOp | TurnOp | SwizzleOp) -> None:
        """An op that changes some parts of a quantized tensor and keeps the others."""
        if isinstance(op, PadOp) and not isinstance(op.source.type, TensorType):
            return self.plain(op)
        source, info = self._get(op, op.source), op.result.type.info
        types = {name: part.type() for name, part in self._part_infos(info)}
        changed = [name for name in types if _changes(op, name, source.parts[name], types[name])]
        config: dict[str, Setting] = {f"from_{copy}": scheme for copy, scheme in _copies(source.info).items()}
        config |= _copies(info) | {"shape": source.info.shape}
        if isinstance(op, PadOp):
            config["multiples"] = tuple(op.multiples)
        operands = [(name, source.parts[name]) for name in changed]
        name = op.OPERATION_NAME.removeprefix("scaled.")
        # What the transform filled up may hold as much as padding would.
        values = self._kernels.call(name, config, operands, [(p, types[p]) for p in changed]) if changed else []
        self._stored[op.result] = _Stored(info, source.parts | dict(zip(changed, values, strict=True)), [])
        return None

    def flatten(self, op: FlattenOp) -> None:
        """The same parts; no kernel runs."""
        self._stored[op.result] = _Stored(op.result.type.info, self._get(op, op.source).parts, [])

    def narrow(self, op: NarrowOp) -> None:
        """Fewer parts; no kernel runs."""
        source, info = self._get(op, op.source), op.result.type.info
        prefix = _PREFIXES["rowwise" if info.row is not None else "columnwise"]
        parts = {name: value for name, value in source.parts.items() if name.startswith(prefix)}
        self._stored[op.result] = _Stored(info, parts, source.sizes)

    def dequantize(self, op: DequantizeOp) -> None:
        source = self._get(op, op.source)
        usage = op.usage.value
        config: dict[str, Setting] = {"scheme": source.info.copy_of(usage), "usage": usage, "shape": source.info.shape}
        operands = source.copy(usage) + [("size", size) for size in _lead_sizes(source)]
        self._replace(op, "dequantize", config, operands)

    def gemm(self, op: GemmOp) -> None:
        kind = op.kind.value
        config: dict[str, Setting] = {"kind": kind, "epilogue": op.epilogue.value}
        if op.batch_dims.value:
            config["batch_dims"] = op.batch_dims.value
        if PATH in op.attributes:
            config["path"] = _value(op.attributes[PATH])
        operands: list[tuple[str, ir.Value]] = []
        for name, value, usage in zip(("lhs", "rhs"), (op.lhs, op.rhs), OPERAND_USAGES[kind], strict=True):
            if _splittable(value) is None:
                config |= {name: value.type.info.copy_of(usage), f"{name}_shape": value.type.info.shape}
                operands.append((name, value))
                continue
            stored = self._get(op, value)
            config |= {name: stored.info.copy_of(usage), f"{name}_shape": stored.info.shape}
            operands += [(f"{name}.{part}", tensor) for part, tensor in stored.copy(usage)]
        operands += _present(op, "bias", "residual", "accumulator")
        # A native GEMM of CUDA multiplies matrices, whose sizes are those of their codes.
        if op.lhs in self._stored and config.get("path") != NATIVE:
            operands += [("size", size) for size in _lead_sizes(self._stored[op.lhs])]
        self._replace(op, "gemm", config, operands)

    def epilogue(self, op: EpilogueOp) -> None:
        config: dict[str, Setting] = {"epilogue": op.epilogue.value}
        self._replace(op, "epilogue", config, _present(op, "source", "bias", "residual", "accumulator"))

    def plain(self, op: ir.OpView) -> None:
        """An op on plain tensors."""
        if any(isinstance(value.type, TensorType) for value in (*op.operands, *op.results)):
            fail(op, "has no kernel for quantized tensors; run scaled-legalize before the tensors are quantized")
        name = op.OPERATION_NAME.removeprefix("scaled.")
        found = {key: _value(op.attributes[key]) for key in _ATTRIBUTES[type(op)]}
        config: dict[str, Setting] = {key: value for key, value in found.items() if value is not None}
        if REDUCE in op.attributes:
            config["reduce"] = True
        if LAYER in op.attributes:
            config["layer"] = _value(op.attributes[LAYER])
        operands = [(f"operand{i}", value) for i, value in enumerate(op.operands)]
        self._replace(op, name, config, operands)

    def _get(self, op: ir.OpView, value: ir.Value) -> _Stored:
        if value not in self._stored:
            fail(op, f"reads a quantized tensor that no op of the dialect makes: {value.type}")
        return self._stored[value]

    def _replace(self, op: ir.OpView, name: str, config: dict[str, Setting], operands: list) -> None:
        fields = [("result", op.result)] if len(op.results) == 1 else []
        names = ("result", "preactivation") if isinstance(op, GemmOp | EpilogueOp) else ("new_scale", "new_history")
        fields = fields or list(zip(names, op.results, strict=True))
        values = self._kernels.call(name, config, operands, [(field, value.type) for field, value in fields])
        for (_, old), new in zip(fields, values, strict=True):
            old.replace_all_uses_with(new)


_LOWERINGS: dict[type, Callable[[_Lowering, ir.OpView], None]] = {
    QuantizeOp: _Lowering.quantize,
    ProduceQuantizeOp: _Lowering.produce_quantize,
    TransposeOp: _Lowering.remake,
    PackOp: _Lowering.remake,
    PadOp: _Lowering.rearrange,
    TurnOp: _Lowering.rearrange,
    SwizzleOp: _Lowering.rearrange,
    FlattenOp: _Lowering.flatten,
    NarrowOp: _Lowering.narrow,
    DequantizeOp: _Lowering.dequantize,
    GemmOp: _Lowering.gemm,
    EpilogueOp: _Lowering.epilogue,
    UnpadOp: _Lowering.plain,
    AmaxOp: _Lowering.plain,
    ComputeScaleOp: _Lowering.plain,
    UpdateScaleOp: _Lowering.plain,
    AdvanceRngOp: _Lowering.plain,
}
_ATTRIBUTES = {
    PadOp: ("multiples",),
    UnpadOp: (),
    AmaxOp: ("per_row", "rht"),
    ComputeScaleOp: ("scheme",),
    UpdateScaleOp: ("scheme", "margin", "algorithm"),
    AdvanceRngOp: (),
}


def _splittable(value: ir.Value) -> ScaledInfo | None:
    """What a quantized tensor says, unless a user's own quantizer makes it."""
    if not isinstance(value.type, TensorType) or any(scheme.custom for scheme in value.type.info.schemes):
        return None
    return value.type.info


def _lead_sizes(stored: _Stored) -> list[ir.Value]:
    """The sizes of leading dims that are known only at run time; those of a saved matrix are read off its codes."""
    shape = stored.info.shape
    if stored.sizes or len(shape) != 2 or shape[0] is not None:
        return stored.sizes
    if "row.codes" in stored.parts:
        return [size_of(stored.parts["row.codes"], 0)]
    col = stored.info.col
    # Two codes a byte do not tell an odd size.
    if col is None or col.element == "f4E2M1FN":
        return []
    return [size_of(stored.parts["col.codes"], 0 if col.family == "mx" else 1)]


def _changes(op: PadOp | TurnOp | SwizzleOp, name: str, part: ir.Value, type_: ir.Type) -> bool:
    """Whether an op changes a part of a quantized tensor."""
    if not isinstance(op, PadOp):
        return name.endswith("codes" if isinstance(op, TurnOp) else "scales")
    info = tensor_info(type_)
    return part.type != type_ or (info is not None and None in info.shape)


def _copies(info: ScaledInfo) -> dict[str, Setting]:
    return {name: scheme for name, scheme in (("row", info.row), ("col", info.col)) if scheme is not None}


def _present(op: ir.OpView, *names: str) -> list[tuple[str, ir.Value]]:
    return [(name, value) for name in names if (value := getattr(op, name)) is not None]


def _value(attribute: ir.Attribute) -> Setting:
    scheme: Scheme | None = getattr(attribute, "scheme", None)
    if scheme is not None:
        return scheme
    return tuple(attribute) if isinstance(attribute, ir.DenseI64ArrayAttr) else attribute.value  # pyright: ignore


def _namespace_of(function: ir.Operation) -> str:
    """Whose tensors a function works on."""
    for argument in function.regions[0].blocks[0].arguments:
        info = tensor_info(argument.type)
        if info is not None:
            return info.namespace
    return "torch"
