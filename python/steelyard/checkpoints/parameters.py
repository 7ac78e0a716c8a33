"""The quantized parameters of a model from the weights of a checkpoint, and back: a matrix, or a stack of experts."""

from dataclasses import replace
from typing import Any

import torch

from steelyard.checkpoints.models import Target
from steelyard.checkpoints.plan import BLOCKS, FP8_ROW, TRANSPOSED, StoredWeight
from steelyard.checkpoints.tensors import Parts, make_tensor, parts_of, read_parts, stored_parts
from steelyard.errors import CheckpointError
from steelyard.formats.parts import scales_shape
from steelyard.formats.schemes import Scheme
from steelyard.tensor.from_scheme import make_quantizer
from steelyard.tensor.quantized_tensor import QuantizedTensor
from steelyard.tensor.stack import QuantizedStack

_MERGES = (["MergeModulelist"], ["MergeModulelist", "Concatenate"])
"""How transformers makes one parameter of the weights of experts: a stack, of weights that are joined by rows."""


def read_parameter(target: Target, expected: torch.Tensor) -> QuantizedTensor:
    """The quantized parameter that a target is, in the shape and dtype that a model expects."""
    if target.converter is not None:
        return _read_experts(target, expected)
    weight = target.weights[0]
    is_transposed = weight.arrangement in (BLOCKS, TRANSPOSED)
    shape = (weight.shape[0], *weight.shape[:0:-1]) if is_transposed else weight.shape
    if shape != tuple(expected.shape):
        raise CheckpointError(f"{weight.codes.place} must hold {list(expected.shape)}, got {list(shape)}")
    parts = read_parts(weight)
    if len(shape) == 2:
        return make_tensor(weight, parts, expected.dtype)
    return _make_stack(weight.scheme, parts, expected, is_transposed=is_transposed)


def stored_tensors(target: Target, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint that a quantized parameter is written as."""
    if not isinstance(tensor, QuantizedTensor):
        raise CheckpointError(
            f"{target.name} must be quantized as it was loaded to be saved in the same format, and is "
            f"{tensor.dtype} now; choose a format, so that it is quantized again"
        )
    if not isinstance(tensor, QuantizedStack):
        return stored_parts(target.weights[0], parts_of(tensor))
    parts = parts_of_stack(tensor)
    if target.converter is None:
        return stored_parts(target.weights[0], parts)
    found: dict[str, torch.Tensor] = {}
    for index, expert in enumerate(_experts(target)):
        row = 0
        for weight in expert:
            found.update(stored_parts(weight, _cut(parts, index, row, weight)))
            row += weight.shape[0]
    return found


def _read_experts(target: Target, expected: torch.Tensor) -> QuantizedStack:
    """The stack of experts that are one weight each in the checkpoint, or two that are joined by rows."""
    experts = _experts(target)
    scheme = _common_scheme(target, experts[0])
    rows, columns = sum(weight.shape[0] for weight in experts[0]), experts[0][0].shape[1]
    if (len(experts), rows, columns) != tuple(expected.shape):
        raise CheckpointError(
            f"the weights of {target.name} must make {list(expected.shape)}, got {[len(experts), rows, columns]}"
        )
    parts = _empty(scheme, (len(experts), rows, columns))
    for index, expert in enumerate(experts):
        row = 0
        for weight in expert:
            if weight.shape[1] != columns or len(expert) != len(experts[0]):
                raise CheckpointError(f"{weight.codes.place} must be like the other experts of {target.name}")
            _put(parts, index, row, weight, _as_rows(read_parts(weight), weight, scheme))
            row += weight.shape[0]
    return _make_stack(scheme, parts, expected, is_transposed=False)


def _experts(target: Target) -> list[list[StoredWeight]]:
    """The weights of each expert, in the order of their rows."""
    operations: list[Any] = target.converter.operations
    names = [type(operation).__name__ for operation in operations]
    dims = [getattr(operation, "dim", None) for operation in operations]
    sources = [target.sources.get(pattern, []) for pattern in target.converter.source_patterns]
    weights = [[source for _, source in each if isinstance(source, StoredWeight)] for each in sources]
    is_complete = {len(each) for each in weights} == {len(each) for each in sources} == {len(weights[0])}
    if names not in _MERGES or dims != [0, 1][: len(dims)] or not is_complete:
        found = ", ".join(names)
        raise CheckpointError(
            f"{target.name} must be made of quantized experts by stacking and joining them, got {found} of weights "
            "that are not all quantized"
        )
    return [list(expert) for expert in zip(*weights, strict=True)]


def _common_scheme(target: Target, expert: list[StoredWeight]) -> Scheme:
    """The scheme of all rows of an expert: FP8 weights with a scale each have a scale per row together."""
    schemes = {weight.scheme for weight in expert}
    scheme = expert[0].scheme
    is_cut = scheme.family == "block" and scheme.is_tiled and any(weight.shape[0] % 128 for weight in expert[:-1])
    if len(schemes) > 1 or is_cut:
        raise CheckpointError(f"the weights of {target.name} must have one format and join in whole tiles")
    return replace(FP8_ROW, element=scheme.element) if scheme.family == "tensor" and len(expert) > 1 else scheme


def _as_rows(parts: Parts, weight: StoredWeight, scheme: Scheme) -> Parts:
    if scheme.family == weight.scheme.family:
        return parts
    return parts._replace(scales=parts.scales.reshape(1, 1).expand(weight.shape[0], 1))


def _empty(scheme: Scheme, shape: tuple[int, int, int]) -> Parts:
    count, rows, columns = shape
    width = -(-columns // 2) if scheme.element == "f4E2M1FN" else columns
    codes = torch.empty(count, rows, width, dtype=torch.uint8)
    dtype = torch.float32 if scheme.scale == "f32" else torch.uint8
    scales = torch.empty(count, *scales_shape(scheme, (rows, columns), False), dtype=dtype)
    return Parts(codes, scales, None if scheme.second_level == "none" else torch.full((count,), torch.nan))


def _scale_rows(scheme: Scheme, row: int, count: int) -> slice:
    """Which rows of scales belong to rows of codes."""
    tall = 128 if scheme.family == "block" and scheme.is_tiled else 1
    return slice(row // tall, -(-(row + count) // tall))


def _put(parts: Parts, index: int, row: int, weight: StoredWeight, given: Parts) -> None:
    """Write a weight into its rows of its expert."""
    count = weight.shape[0]
    parts.codes[index, row : row + count] = given.codes
    if given.scales.dim() == 0:
        parts.scales[index] = given.scales
    else:
        parts.scales[index, _scale_rows(weight.scheme, row, count)] = given.scales
    if parts.second_level is None or given.second_level is None:
        return
    known = parts.second_level[index]
    if not known.isnan() and known != given.second_level:
        raise CheckpointError(
            f"{weight.codes.place} must have the second scale of the weight that it is joined with, {float(known)}, "
            f"got {float(given.second_level)}: a stack has one per expert; take a checkpoint in which they share it, "
            "or quantize the plain one by steelyard convert"
        )
    parts.second_level[index] = given.second_level


def _cut(parts: Parts, index: int, row: int, weight: StoredWeight) -> Parts:
    """What `_put` wrote of a weight."""
    count = weight.shape[0]
    scales = parts.scales[index]
    if scales.dim() > 0:
        scales = scales[_scale_rows(weight.scheme, row, count)]
    if weight.scheme.family == "tensor":
        scales = scales.reshape(-1)[0]
    level = None if parts.second_level is None else parts.second_level[index]
    return Parts(parts.codes[index, row : row + count], scales, level)


def _make_stack(scheme: Scheme, parts: Parts, expected: torch.Tensor, *, is_transposed: bool) -> QuantizedStack:
    level = None if parts.second_level is None else parts.second_level[0]
    quantizer = make_quantizer(scheme, level)
    assert quantizer is not None, "every format of a checkpoint has its tensor"
    given = [part for part in parts if part is not None]
    return QuantizedStack.from_parts(given, quantizer, expected.shape, expected.dtype, transposed=is_transposed)


def parts_of_stack(stack: QuantizedStack) -> Parts:
    """The parts of all matrices of a stack."""
    compact = stack.unpacked()
    return Parts(compact._codes, compact._scales, compact._amax if stack.scheme.family == "nvfp4" else None)
