"""`steelyard.save`: a net as a folder that other programs, and `steelyard.load`, read."""

import itertools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from steelyard.checkpoints import folders
from steelyard.checkpoints.catalog import DTYPES, Entry
from steelyard.checkpoints.layers import refuse_adjusted
from steelyard.checkpoints.layers_to_write import LayersToWrite, Tensors, plain_tensor, revert, stored_names
from steelyard.checkpoints.loading import Record, record_of
from steelyard.checkpoints.methods import gpt_oss as gpt_oss_method
from steelyard.checkpoints.methods import modelopt as modelopt_method
from steelyard.checkpoints.methods import own
from steelyard.checkpoints.parameters import stored_tensors
from steelyard.checkpoints.selection import Selection
from steelyard.checkpoints.writers import compressed_tensors, fine_grained_fp8, gpt_oss, modelopt
from steelyard.driver import progress
from steelyard.driver.cache_scales import CacheScales
from steelyard.driver.net import CompiledModule
from steelyard.driver.saving import STATE_PREFIX, flatten
from steelyard.driver.user_warnings import warn
from steelyard.errors import CheckpointError, shown
from steelyard.recipes import Role
from steelyard.tensor.from_scheme import make_quantizer

WRITERS: dict[str, ModuleType] = {
    "compressed-tensors": compressed_tensors,
    "modelopt": modelopt,
    "fp8": fine_grained_fp8,
}
FORMATS = (*WRITERS, gpt_oss_method.METHOD, own.METHOD)
_SHARD_SIZE = 5 * 10**9
"""Bytes after which another file begins."""


def save(
    net: Any,
    folder: str | Path,
    *,
    format: str | None = None,
    input_scales: Mapping[str, float] | None = None,
) -> None:
    """Write a net as a checkpoint.

    What `steelyard.load` read is written in its own format with the same bytes. What was quantized here is written so
    that readers of the format, `steelyard.load` among them, decode it to the values that the net multiplies. NVFP4 of a
    net that still has plain weights is quantized again, with the second scale as the format has it, and one for layers
    that other programs multiply as one. The folder appears when it is complete.

    Args:
        net: A net of a transformers model, from `steelyard.compile` or `steelyard.load`.
        folder: Where; it must not exist, or be empty.
        format: `compressed-tensors`, `modelopt`, `fp8` (tiles of 128x128, as DeepSeek has them), `mxfp4` (gpt-oss), or
            `steelyard`, which holds every recipe and only Steelyard reads. By default the format that was loaded, or
            else `compressed-tensors`.
        input_scales: Static scales of inputs for formats that have such, by patterns of layers, beside those of the
            recipe: what decoded inputs are multiplied by. ModelOpt's FP8 and NVFP4 need one for each layer.
    """
    if not isinstance(net, CompiledModule) or not hasattr(net._steelyard.model, "config"):
        raise CheckpointError(f"steelyard.save takes a net of a transformers model, got {type(net).__name__}")
    if format is not None and format not in FORMATS:
        raise CheckpointError(f"format must be one of {', '.join(FORMATS)}, got {shown(format)}")
    folder, record = Path(folder), record_of(net._steelyard.model)
    loaded = record.plan.method if record is not None and record.plan.weights else None
    if not isinstance(input_scales, Mapping | None):
        raise CheckpointError(f"input_scales must map patterns of layers to numbers, got {shown(input_scales)}")
    is_as_loaded = loaded is not None and format in (None, loaded)
    if input_scales and (is_as_loaded or format not in (None, *WRITERS)):
        raise CheckpointError(
            f"input_scales are for what is written as {', '.join(WRITERS)} and was not loaded from that, got format "
            f"{format or loaded!r}; leave them out"
        )
    folders.check_new(folder)
    with progress.doing(lambda: f"saving {folder}"):
        if record is not None and is_as_loaded:
            _save_as_loaded(net._steelyard.model, record, folder)
        elif format == own.METHOD:
            _save_own(net, record, folder)
        elif format == gpt_oss_method.METHOD:
            _save_gpt_oss(net, record, folder)
        else:
            _save_layers(net, record, folder, format or "compressed-tensors", input_scales or {})


def _save_as_loaded(model: Any, record: Record, folder: Path) -> None:
    """Write what was loaded, into files of the same names."""
    if not all(name.endswith(".safetensors") for name in record.places.values()):
        raise CheckpointError(f"the format {record.plan.method} is only read; choose one of {', '.join(WRITERS)}")
    expected, first = Counter(record.places.values()), min(record.places.values())
    pending: dict[str, dict[str, torch.Tensor]] = {file: {} for file in expected}
    weight_map: dict[str, str] = {}
    size = 0
    with folders.new_folder(folder) as unfinished:
        for name, tensor in _as_loaded(model, record):
            file = weight_map[name] = record.places.get(name, first)
            pending[file][name] = tensor
            size += tensor.nbytes
            if len(pending[file]) == expected[file]:
                folders.write_shard(unfinished / file, pending[file], record.metadata)
                pending[file] = {}
        for file, rest in pending.items():
            if rest:
                folders.write_shard(unfinished / file, rest, record.metadata)
        folders.write_texts(unfinished, record.config, weight_map, size)
        folders.copy_companions(record.folder, unfinished, (modelopt_method.FILE,))


def _as_loaded(model: Any, record: Record) -> Tensors:
    """The tensors of a checkpoint as a model holds them now, those that were not changed byte for byte."""
    yield from record.small.items()
    # A file may have both of two that are tied.
    names = stored_names(model) | {name: model.get_parameter_or_buffer(name) for name in record.targets}
    for name, tensor in names.items():
        progress.step(name)
        target = record.targets.get(name)
        if target is not None and target.weights:
            yield from stored_tensors(target, tensor.detach()).items()
        elif target is not None and target.converter is None:
            entry = target.only
            assert isinstance(entry, Entry)
            yield entry.name, tensor.detach().to(DTYPES[entry.dtype])
        else:
            yield from revert(model, name, tensor.detach()).items()


def _save_own(net: Any, record: Record | None, folder: Path) -> None:
    """Write the state dict of a net, in which quantized parameters are plain tensors."""
    refuse_adjusted(net._steelyard.model)
    model, settings = net._steelyard.model, net._steelyard.backend.settings
    selection = Selection(model, settings.recipe, settings.overrides)
    state = net.state_dict(keep_vars=True)
    for name, parameter in state.items():
        recipe = selection.recipe_of(name) if not name.startswith(STATE_PREFIX) else None
        if recipe is not None and type(parameter) is torch.nn.Parameter and parameter.dim() == 2:
            scheme, _ = recipe.schemes(Role("weight", name.removesuffix(".weight")))
            quantizer = None if scheme is None else make_quantizer(scheme)
            state[name] = parameter if quantizer is None else quantizer(parameter.detach())
    flatten(state)
    config = {**_plain_config(model), "quantization_config": own.describe(settings)}
    _write(folder, ((name, tensor.detach()) for name, tensor in state.items()), config, {}, record)


def _save_layers(net: Any, record: Record | None, folder: Path, format: str, input_scales: Mapping[str, float]) -> None:
    """Write each layer in a format of other programs."""
    refuse_adjusted(net._steelyard.model)
    model, settings, writer = net._steelyard.model, net._steelyard.backend.settings, WRITERS[format]
    selection = Selection(model, settings.recipe, settings.overrides)
    written = LayersToWrite(model, selection, writer, input_scales)
    if not written.layers:
        raise CheckpointError("the net must have linear layers that its recipe quantizes to be saved, and has none")
    caches = _cache_tensors(net._steelyard.backend.cache_scales, writer)
    layers, ignored = list(written.layers.values()), selection.ignored(written.layers)
    about, texts = writer.describe(layers, ignored, has_caches=bool(caches))
    found = itertools.chain(written.tensors(), caches.items())
    _write(folder, found, {**_plain_config(model), "quantization_config": about}, texts, record)


def _cache_tensors(scales: CacheScales, writer: ModuleType) -> dict[str, torch.Tensor]:
    """The static scales of a net's KV caches, under the names of a format."""
    found: dict[str, torch.Tensor] = {}
    for number, attention in scales.layers.items():
        given = scales.given(number)
        assert given is not None
        found.update(writer.cache_tensors(attention, given["keys"].scale, given["values"].scale))
    if scales.layers and not found:
        warn("the format holds no scales of KV caches; they are left out")
    return found


def _save_gpt_oss(net: Any, record: Record | None, folder: Path) -> None:
    """Write the experts of gpt-oss in stacks of MXFP4, and everything else plain."""
    model, settings = net._steelyard.model, net._steelyard.backend.settings
    gpt_oss.check_model(model)
    selection = Selection(model, settings.recipe, settings.overrides)

    def tensors() -> Tensors:
        for name, tensor in stored_names(model).items():
            progress.step(name)
            recipe = selection.recipe_of(name) if tensor.dim() == 3 else None
            if recipe is not None:
                yield from gpt_oss.stack_tensors(name, tensor, recipe).items()
            else:
                yield name, plain_tensor(name, tensor)

    _write(folder, tensors(), {**_plain_config(model), "quantization_config": gpt_oss.describe()}, {}, record)


def _plain_config(model: Any) -> dict[str, Any]:
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    config["architectures"] = [type(model).__name__]
    return config


def _write(
    folder: Path, found: Tensors, config: dict[str, Any], texts: Mapping[str, Any], record: Record | None
) -> None:
    """Write tensors into files of a size that others can handle, then what describes them."""
    shards: list[list[str]] = []
    size = 0
    with folders.new_folder(folder) as unfinished:
        pending: dict[str, torch.Tensor] = {}
        waiting = 0

        def flush() -> None:
            folders.write_shard(unfinished / f"{len(shards)}.safetensors", pending, {})
            shards.append(list(pending))
            pending.clear()

        for name, tensor in found:
            if pending and waiting + tensor.nbytes > _SHARD_SIZE:
                flush()
                waiting = 0
            pending[name] = tensor
            waiting += tensor.nbytes
            size += tensor.nbytes
        flush()
        weight_map: dict[str, str] = {}
        for index, names in enumerate(shards):
            is_one = len(shards) == 1
            file = folders.ONE_FILE if is_one else f"model-{index + 1:05}-of-{len(shards):05}.safetensors"
            (unfinished / f"{index}.safetensors").rename(unfinished / file)
            weight_map.update(dict.fromkeys(names, file))
        folders.write_texts(unfinished, config, weight_map, size)
        folders.write_json_files(unfinished, texts)
        if record is not None:
            folders.copy_companions(record.folder, unfinished)
