"""`steelyard.save`: a net as a folder that other programs, and `steelyard.load`, read."""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from steelyard.checkpoints import folders, second_levels, tensors
from steelyard.checkpoints.catalog import DTYPES, Entry
from steelyard.checkpoints.layer_formats import LayerFormat, format_of, fused_names, parts_in
from steelyard.checkpoints.layers import refuse_adjusted
from steelyard.checkpoints.loading import Record, record_of
from steelyard.checkpoints.methods import gpt_oss as gpt_oss_method
from steelyard.checkpoints.methods import modelopt as modelopt_method
from steelyard.checkpoints.methods import own
from steelyard.checkpoints.parameters import stored_tensors
from steelyard.checkpoints.selection import Selection, fits, pieces_of
from steelyard.checkpoints.writers import compressed_tensors, fine_grained_fp8, gpt_oss, modelopt
from steelyard.driver import progress
from steelyard.driver.cache_scales import CacheScales
from steelyard.driver.net import CompiledModule
from steelyard.driver.saving import STATE_PREFIX, flatten
from steelyard.driver.user_warnings import warn
from steelyard.errors import CheckpointError, shown
from steelyard.recipes import Role
from steelyard.tensor.from_scheme import make_quantizer
from steelyard.tensor.quantized_tensor import QuantizedTensor

WRITERS: dict[str, ModuleType] = {
    "compressed-tensors": compressed_tensors,
    "modelopt": modelopt,
    "fp8": fine_grained_fp8,
}
FORMATS = (*WRITERS, gpt_oss_method.METHOD, own.METHOD)
_SHARD_SIZE = 5 * 10**9
"""Bytes after which another file begins."""

Tensors = Iterator[tuple[str, torch.Tensor]]


def save(net: Any, folder: str | Path, *, format: str | None = None) -> None:
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
    """
    if not isinstance(net, CompiledModule) or not hasattr(net._steelyard.model, "config"):
        raise CheckpointError(f"steelyard.save takes a net of a transformers model, got {type(net).__name__}")
    if format is not None and format not in FORMATS:
        raise CheckpointError(f"format must be one of {', '.join(FORMATS)}, got {shown(format)}")
    folder, record = Path(folder), record_of(net._steelyard.model)
    loaded = record.plan.method if record is not None and record.plan.weights else None
    folders.check_new(folder)
    with progress.doing(lambda: f"saving {folder}"):
        if record is not None and loaded is not None and format in (None, loaded):
            _save_as_loaded(net._steelyard.model, record, folder)
        elif format == own.METHOD:
            _save_own(net, record, folder)
        elif format == gpt_oss_method.METHOD:
            _save_gpt_oss(net, record, folder)
        else:
            _save_layers(net, record, folder, format or "compressed-tensors")


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


def stored_names(model: Any) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a model that files hold, each once."""
    every = dict(model.named_parameters(remove_duplicate=False)) | dict(_buffers(model))
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    return {name: tensor for name, tensor in every.items() if tied.get(name) is None or tensor is not every[tied[name]]}


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


def _save_layers(net: Any, record: Record | None, folder: Path, format: str) -> None:
    """Write each layer in a format of other programs."""
    refuse_adjusted(net._steelyard.model)
    model, settings, writer = net._steelyard.model, net._steelyard.backend.settings, WRITERS[format]
    selection = Selection(model, settings.recipe, settings.overrides)
    written = _LayersToWrite(model, selection, writer)
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
                yield name, _plain(name, tensor)

    _write(folder, tensors(), {**_plain_config(model), "quantization_config": gpt_oss.describe()}, {}, record)


def _plain(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that a format has no codes for."""
    if not isinstance(tensor, QuantizedTensor):
        return tensor.detach()
    warn(f"{name} is quantized in a form that this format cannot hold, and written in {tensor.dtype}")
    return tensor.dequantize()


class _LayersToWrite:
    """The tensors of a model under the names of a checkpoint, and how its quantized layers are written."""

    def __init__(self, model: Any, selection: Selection, writer: ModuleType):
        self._model, self._writer = model, writer
        self._tensors = stored_names(model)
        chosen = {name: recipe for name in self._tensors if (recipe := selection.recipe_of(name)) is not None}
        stacks = {name: self._tensors[name] for name in chosen if self._tensors[name].dim() == 3}
        self._pieces = pieces_of(model, stacks)
        self._split = {stack for stack, _, _ in self._pieces.values()}
        self.layers: dict[str, LayerFormat] = {}
        """By the names of weights in the checkpoint without `.weight`."""
        names = {name: name for name in chosen if name not in stacks} | {
            written: stack for written, (stack, _, _) in self._pieces.items()
        }
        for written, name in names.items():
            layer = written.removesuffix(".weight")
            format = format_of(layer, name.removesuffix(".weight"), chosen[name], self._tensors[name])
            scheme = writer.stored_scheme(format)
            if fits(scheme, self._tensors[name].shape):
                self.layers[layer] = format
        _warn_of_levels(self)

    def matrix(self, layer: str) -> torch.Tensor:
        """The weight of a layer."""
        name = f"{layer}.weight"
        if name not in self._pieces:
            return self._tensors[name].detach()
        stack, expert, rows = self._pieces[name]
        return self._tensors[stack].detach()[expert][rows]

    def tensors(self) -> Tensors:
        """Every tensor that is written."""
        differences: dict[str, float] = {}
        for layer, format in self.layers.items():
            progress.step(layer)
            weight = self.matrix(layer)
            amax = max((self._amax(each) for each in fused_names(layer) if each in self.layers), default=0.0)
            scheme = self._writer.stored_scheme(format)
            if isinstance(weight, QuantizedTensor):
                parts, differences[layer] = second_levels.convert(scheme, weight, layer)
            else:
                parts = parts_in(scheme, weight, amax, format)
            yield from self._writer.layer_tensors(format, parts).items()
        _warn_of_differences({layer: each for layer, each in differences.items() if each})
        for name, tensor in self._tensors.items():
            if name.removesuffix(".weight") in self.layers or name in self._split:
                continue
            yield from revert(self._model, name, _plain(name, tensor)).items()

    def _amax(self, layer: str) -> float:
        weight = self.matrix(layer)
        return 0.0 if isinstance(weight, QuantizedTensor) else float(weight.abs().amax())


def _warn_of_differences(differences: Mapping[str, float]) -> None:
    """Say so where the format has no second scale by which a weight decodes to the values that the net has."""
    if not differences:
        return
    layer = max(differences, key=lambda name: differences[name])
    warn(
        f"the second scales of {len(differences)} layers are written as floats of another kind, by which their weights "
        f"decode to other values: {layer} differs most, by {differences[layer]:.1e} of a value; save the net before "
        "its first call, or use steelyard convert, for weights that are quantized in the format's own way"
    )


def _warn_of_levels(written: _LayersToWrite) -> None:
    """Say so where layers that other programs multiply as one have second levels of their own already."""
    for layer, format in written.layers.items():
        group = [each for each in fused_names(layer) if each in written.layers]
        fixed = [each for each in group if isinstance(written.matrix(each), QuantizedTensor)]
        if format.weights.family == "nvfp4" and len(fixed) > 1 and layer == group[0]:
            levels = {float(tensors.parts_of(written.matrix(each)).second_level or 0) for each in fixed}  # pyright: ignore[reportArgumentType]
            if len(levels) > 1:
                warn(
                    f"{', '.join(group)} have second scales of their own, and vLLM reads the largest for all of them; "
                    "save the net before its first call, when its weights are quantized with one, or use steelyard "
                    "convert"
                )
                return


def revert(model: Any, name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """What transformers writes of a parameter."""
    from transformers.core_model_loading import revert_weight_conversion

    return revert_weight_conversion(model, {name: tensor})


def _buffers(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The buffers that a state dict has."""
    for path, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield f"{path}.{name}" if path else name, buffer


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

        def flush() -> None:
            folders.write_shard(unfinished / f"{len(shards)}.safetensors", pending, {})
            shards.append(list(pending))
            pending.clear()

        for name, tensor in found:
            if sum(each.nbytes for each in pending.values()) + tensor.nbytes > _SHARD_SIZE and pending:
                flush()
            pending[name] = tensor
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
