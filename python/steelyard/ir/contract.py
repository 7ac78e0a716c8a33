"""What must hold of a module at each stage: which of our ops it has, and which attributes, where and of what kind."""

import inspect
import math
from collections.abc import Iterator, Mapping
from functools import cache

from torch_mlir import ir
from torch_mlir.dialects import torch as torch_dialect

from steelyard.dialect.attributes import SchemeAttr
from steelyard.dialect.types import TensorType, tensor_info
from steelyard.errors import ConstraintError
from steelyard.ir.attributes import FACTS, KERNEL, SOURCES, Fact
from steelyard.ir.functions import argument_attributes, result_attributes
from steelyard.ir.kernel_calls import is_declaration, read_call
from steelyard.ir.torch_ops import constant_int, info_of, op_name, walk_ops

_QUANTIZING = (
    *(
        "advance_rng",
        "amax",
        "count_saturated",
        "dequantize",
        "gemm",
        "grouped_gemm",
        "grouped_matmul",
        "join",
        "matmul",
    ),
    *("measure_influence", "measure_product", "measure_quantize"),
    *("quantize", "split", "stored", "switch", "transpose", "update_scale"),
)
OPS = {
    "traced": (),
    "raised": ("grouped_matmul", "matmul"),
    "quantized": _QUANTIZING,
    "fused": (*_QUANTIZING, "produce_quantize"),
    "partitioned": (*_QUANTIZING, "produce_quantize", "narrow"),
    "lowered": ("allocate", "contiguous", "free", "launch", "torch_call"),
}
"""Stage -> the ops of the `scaled` dialect that it may have."""

_KINDS: Mapping[str, tuple[type, str]] = {
    "unit": (ir.UnitAttr, "a unit"),
    "string": (ir.StringAttr, "a string"),
    "integer": (ir.IntegerAttr, "an integer"),
    "integers": (ir.DenseI64ArrayAttr, "an array<i64>"),
    "symbol": (ir.FlatSymbolRefAttr, "a symbol"),
    "dictionary": (ir.DictAttr, "a dictionary"),
    "scheme": (SchemeAttr, "a scheme"),
    "strings": (ir.ArrayAttr, "an array of strings"),
    "symbols": (ir.ArrayAttr, "an array of symbols"),
}
_ELEMENTS: Mapping[str, type] = {"strings": ir.StringAttr, "symbols": ir.FlatSymbolRefAttr}
_MOST_ELEMENTS = 2**48
_ATTENTION = "torch.aten._scaled_dot_product_flash_attention_for_cpu"
_OPERATORS: Mapping[str, tuple[int, int]] = {
    _ATTENTION: (7, 2),
    f"{_ATTENTION}_backward": (10, 3),
    "torch.aten._grouped_mm": (5, 1),
    "torch.aten.index_copy": (4, 1),
    "torch.aten.index_copy_": (4, 1),
    "torch.aten.select_backward": (4, 1),
    "torch.aten.silu_backward": (2, 1),
    "torch.aten.slice_backward": (6, 1),
    "torch.steelyard.count_saturated": (3, 1),
    "torch.steelyard.decode_rows": (3, 1),
    "torch.steelyard.decode_static": (3, 1),
    "torch.steelyard.encode_rows": (1, 2),
    "torch.steelyard.encode_static": (2, 1),
    "torch.steelyard.grouped_mm": (3, 1),
    "torch.transformers.grouped_mm_fallback": (3, 1),
}
"""Ops that passes read and torch-mlir does not know -> how many operands and results they have."""


def check_stage(op: ir.Operation, stage: str) -> None:
    """Hold one op of a module against the contract of a stage; raises `ConstraintError`.

    Constraints:
    - stage_c1: the op is one that the stage has
    - stage_c2: no value of a lowered module is a quantized tensor, other than one that a user's own quantizer makes
    - stage_c3: an attribute `scaled.*` is one of the contract
    - stage_c4: it stands on what may have it
    - stage_c5: it has its kind
    - stage_c6: the stage may have it

    Declarations of kernels fulfil the constraints of `KernelCall`, call_c1 to call_c5.
    """
    dialect, _, name = op.name.partition(".")
    if dialect == "scaled" and name not in OPS[stage]:
        allowed = ", ".join(f"scaled.{one}" for one in OPS[stage]) or "none of the scaled dialect"
        raise ConstraintError("stage_c1", f"must not be in a {stage} module, whose ops are: {allowed}")
    if stage == "lowered" and any(_has_parts(result.type) for result in op.results):
        raise ConstraintError("stage_c2", "must not have a quantized tensor as a result in a lowered module")
    for carrier, attribute, value in _facts_on(op):
        fact = _check_fact(attribute, value, carrier, op.name)
        if stage not in fact.stages:
            where = ", ".join(fact.stages) or "no stage"
            message = f"attribute '{attribute}' must be gone in a {stage} module: it belongs to {where}"
            raise ConstraintError("stage_c6", message)
    if is_declaration(op):
        read_call(op)


def check_input(op: ir.Operation) -> None:
    """Hold one op against what every pass takes for granted, whatever the stage; raises `ConstraintError`.

    Constraints, beside stage_c3 to stage_c5:
    - input_c1: a function has at most one block: branches are not compiled
    - input_c2: `scaled.sources` counts arguments of its function
    - input_c3: a tensor has at most 2^48 elements, so that no size or offset, in bytes and padded, exceeds 64 bits
    - input_c4: a `torch.operator` has as many operands and results as the op has that it names, if that is known
    """
    _check_sizes(op)
    if op.name == "torch.operator":
        _check_counts(op)
    # What a declaration says of its kernel is checked where it is read.
    if is_declaration(op):
        return
    for carrier, attribute, value in _facts_on(op):
        _check_fact(attribute, value, carrier, op.name)
    if op.name != "func.func":
        return
    blocks = len(op.regions[0].blocks)
    if blocks > 1:
        raise ConstraintError("input_c1", f"must have one block, got {blocks}; branches are not compiled")
    attributes = argument_attributes(op)
    for own in attributes:
        sources = list(ir.DenseI64ArrayAttr(own[SOURCES])) if SOURCES in own else []
        if not all(0 <= number < len(attributes) for number in sources):
            message = f"{SOURCES} must count arguments, of which there are {len(attributes)}, got {sources}"
            raise ConstraintError("input_c2", message)


def _check_sizes(op: ir.Operation) -> None:
    types = [result.type for result in op.results]
    if op.name == "func.func":
        function = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value)
        types += [*function.inputs, *function.results]
    for type_ in types:
        info = type_.info if isinstance(type_, TensorType) else tensor_info(type_)
        # Empty tensors have strides, too.
        if info is not None and math.prod(max(size or 1, 1) for size in info.shape) > _MOST_ELEMENTS:
            raise ConstraintError("input_c3", f"must have tensors of at most 2^48 elements, got {type_}")


def _check_counts(op: ir.Operation) -> None:
    name, found = op_name(op), (len(op.operands), len(op.results))
    wanted = operator_counts(name)
    if wanted is not None and found != wanted:
        counts, own = (" and ".join(map(str, pair)) for pair in (wanted, found))
        raise ConstraintError("input_c4", f"must have as many operands and results as {name}, {counts}, got {own}")


@cache
def operator_counts(name: str) -> tuple[int, int] | None:
    """How many operands and results an op has, by its name; None if nobody knows it, or any number will do."""
    if name in _OPERATORS:
        return _OPERATORS[name]
    builder = _builders().get(name)
    if builder is None:
        return None
    given = inspect.signature(builder.__init__).parameters
    kinds = [one.annotation for one in list(given.values())[1:] if one.kind is not one.KEYWORD_ONLY]
    if not set(kinds) <= {ir.Value, ir.Type}:
        return None
    # What MLIR infers the type of is one result.
    return kinds.count(ir.Value), 1 if "results" in given else kinds.count(ir.Type)


@cache
def _builders() -> Mapping[str, type]:
    """The ops that torch-mlir knows, by name."""
    classes = [one for one in vars(torch_dialect).values() if isinstance(one, type) and issubclass(one, ir.OpView)]
    return {one.OPERATION_NAME: one for one in classes if one is not ir.OpView}


def check_foldable(op: ir.Operation) -> None:
    """Refuse an op that MLIR's own folding would crash on; raises `ConstraintError`.

    Constraints:
    - fold_c1: the dim of a `torch.aten.cat` is one of its result
    """
    if op.name != "torch.aten.cat":
        return
    dim, info = constant_int(op.operands[1]), info_of(op.result)
    rank = None if info is None else len(info.shape)
    if dim is not None and rank is not None and not -rank <= dim < rank:
        raise ConstraintError("fold_c1", f"dim must be from {-rank} to {rank - 1}, got {dim}")


def check_module(module: ir.Operation, stage: str) -> Iterator[tuple[ir.Operation, ConstraintError]]:
    """Every op of a module that breaks the contract of a stage, and how."""
    for op in walk_ops(module):
        try:
            check_stage(op, stage)
        except ConstraintError as error:
            yield op, error


def _facts_on(op: ir.Operation) -> Iterator[tuple[str, str, ir.Attribute]]:
    """What carries an attribute of ours, its name and its value."""
    carrier = "op"
    if op.name == "func.func":
        carrier = "kernel" if KERNEL in op.attributes else "function"
        for owner, attributes in (("argument", argument_attributes(op)), ("result", result_attributes(op))):
            for own in attributes:
                yield from ((owner, name, value) for name, value in own.items() if name.startswith("scaled."))
    elif op.name == "func.call":
        carrier = "call"
    for name in op.attributes:
        if name.startswith("scaled."):
            yield carrier, name, op.attributes[name]


def _check_fact(name: str, value: ir.Attribute, carrier: str, op_name: str) -> Fact:
    fact = FACTS.get(name)
    if fact is None:
        known = ", ".join(sorted(FACTS))
        raise ConstraintError("stage_c3", f"has the attribute '{name}', which is none of the contract's: {known}")
    if carrier not in fact.carriers and op_name not in fact.carriers:
        wanted = " or ".join(fact.carriers)
        raise ConstraintError(
            "stage_c4", f"attribute '{name}' must stand on {wanted}, got one on {carrier} of {op_name}"
        )
    if not _has_kind(value, fact):
        raise ConstraintError("stage_c5", f"attribute '{name}' must be {_KINDS[fact.kind][1]}, got {value}")
    return fact


def _has_parts(type_: ir.Type) -> bool:
    """Whether a type is a quantized tensor that has been, or must be, split into its parts."""
    return isinstance(type_, TensorType) and not any(scheme.custom for scheme in type_.info.schemes)


def _has_kind(value: ir.Attribute, fact: Fact) -> bool:
    kind, _ = _KINDS[fact.kind]
    if not isinstance(value, kind):
        return False
    element = _ELEMENTS.get(fact.kind)
    return element is None or all(isinstance(one, element) for one in ir.ArrayAttr(value))
