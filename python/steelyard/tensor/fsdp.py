"""FSDP2 gathers the codes and scales of a sharded parameter, not its values in high precision."""

from typing import NamedTuple

import torch

from steelyard.errors import RecipeError
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import is_stored_transposed, round_up
from steelyard.tensor.elements import matrix_shape


class _Gathered(NamedTuple):
    """What each rank knows about a gather without communication."""

    columnwise: tuple[bool, ...]
    shape: torch.Size


def pre_all_gather(shard, mesh, outer_size) -> tuple[tuple[torch.Tensor, ...], _Gathered]:
    """The codes, scales and amaxes of a shard, each with the rows of the shard as its first dim."""
    _check_shard(shard, mesh.size(), outer_size)
    # From now on, the optimizer must update all shards with the same scale.
    owner, group = shard if shard._root is None else shard._root, mesh.get_group()
    if owner._quantizer.amax_reduction_group is not group:
        owner._quantizer = owner._quantizer.copy()
        owner._quantizer.amax_reduction_group = group
    usages = _gathered_usages(shard)
    inputs = []
    for columnwise in usages:
        copy = shard._copy(columnwise)
        inputs += [_rows_first(copy, copy.codes), _rows_first(copy, copy.scales)]
        inputs += [] if copy.scheme.family != "nvfp4" else [copy.amax.reshape(-1)]
    return tuple(inputs), _Gathered(usages, torch.Size(outer_size))


def post_all_gather(shard, outputs, gathered: _Gathered, dtype: torch.dtype, out):
    """The whole parameter, whose parts are views of what was gathered; stored in `out` if it is given."""
    outputs = list(outputs)
    copies = [_gathered_copy(shard, columnwise, gathered.shape, outputs) for columnwise in gathered.columnwise]
    quantizer = shard._quantizer.copy()
    quantizer.amax_reduction_group = None
    storage = shard.STORAGE._from_copies(copies, gathered.shape, dtype, quantizer)
    if out is None:
        return type(shard)._wrap(storage), ()
    for tensor in (out, out._root):
        if tensor is not None:
            for name in shard.PARTS:
                setattr(tensor, name, getattr(storage, name))
    return None


def _gathered_usages(tensor) -> tuple[bool, ...]:
    """Both copies, unless one can be computed from the codes of the other."""
    rowwise, columnwise = tensor._has(False), tensor._has(True)
    if rowwise and columnwise and tensor._scheme(False).is_transposable:
        return (False,)
    return tuple(usage for usage, exists in ((False, rowwise), (True, columnwise)) if exists)


def _check_shard(tensor, world_size: int, outer_size) -> None:
    """Refuse shards whose blocks are not the blocks of the whole parameter."""
    rows = matrix_shape(tensor.shape)[0]
    if tensor._with_gemm_swizzled_scales:
        raise RecipeError("a parameter to shard must have compact scales, got swizzled ones; unset optimize_for_gemm")
    multiple = 1
    for columnwise in _gathered_usages(tensor):
        scheme = tensor._scheme(columnwise)
        stored_rows, stored_columns = scheme.block_shape or (1, 1)
        transposed = is_stored_transposed(scheme, columnwise)
        if transposed and scheme.family == "row":
            raise RecipeError(
                "a parameter to shard must have no scales that span the rows of all shards, got a columnwise copy with "
                "one scale per column; quantize it rowwise only"
            )
        multiple = max(multiple, stored_columns if transposed else stored_rows)
    whole = matrix_shape(outer_size)[0]
    if rows % multiple or rows * world_size != whole:
        raise RecipeError(
            f"each of {world_size} shards of a {tuple(outer_size)} parameter must have the same number of rows, a "
            f"multiple of {multiple} for {tensor._scheme(False).block} blocks, got {rows}; pad the parameter to "
            f"{round_up(whole, multiple * world_size)} rows, or quantize it rowwise only"
        )


def _rows_first(copy: QuantizedCopy, part: torch.Tensor) -> torch.Tensor:
    """A part with the rows of the shard as its first dim; a single value becomes one row."""
    if part.dim() == 0:
        return part.reshape(1)
    return part.T.contiguous() if copy.is_stored_transposed else part


def _gathered_copy(shard, columnwise: bool, shape: torch.Size, outputs: list[torch.Tensor]) -> QuantizedCopy:
    scheme = shard._scheme(columnwise)
    copy = QuantizedCopy(outputs.pop(0), outputs.pop(0), None, scheme, matrix_shape(shape), columnwise)
    if copy.is_stored_transposed:
        copy.codes = copy.codes.T
    if scheme.family == "tensor":
        copy.scales = _shared(copy.scales, "scale")
    elif copy.is_stored_transposed:
        copy.scales = copy.scales.T
    if scheme.family == "nvfp4":
        amaxes = outputs.pop(0)
        copy.amax = amaxes if scheme.second_level == "row" else _shared(amaxes, "amax")
    return copy


def _shared(values: torch.Tensor, name: str) -> torch.Tensor:
    """The one value that all ranks must hold."""
    bits = values.view(torch.int32)
    if not bool((bits == bits[0]).all()):
        raise RecipeError(
            f"the shards of a parameter must have one {name}, got {values.tolist()}; quantize the parameter before "
            "it is sharded, and write to the shards only after the first forward"
        )
    return values[0]
