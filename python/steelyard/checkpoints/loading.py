"""`steelyard.load`: a net from the folder of a published checkpoint."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from steelyard import recipes
from steelyard.checkpoints.catalog import DTYPES, Catalog, Entry
from steelyard.checkpoints.gguf_catalog import open_catalog
from steelyard.checkpoints.kv_scales import read_scales
from steelyard.checkpoints.layers import adjust_inputs, inputs_of_model, make_overrides
from steelyard.checkpoints.methods import own
from steelyard.checkpoints.methods.choice import quantization_config, read_plan
from steelyard.checkpoints.models import (
    Target,
    check_proportions,
    find_targets,
    finish,
    make_empty_model,
    read_config,
    read_generation_config,
    set_tensor,
)
from steelyard.checkpoints.parameters import read_parameter
from steelyard.checkpoints.plan import Plan, StoredWeight, require_dtype
from steelyard.driver import progress
from steelyard.driver.net import compile
from steelyard.driver.saving import STATE_PREFIX, join
from steelyard.driver.user_warnings import warn
from steelyard.errors import CheckpointError

AS_STORED = "stored"
"""Of KV caches: as the checkpoint says."""
_RECORD = "_steelyard_checkpoint"


@dataclass
class Record:
    """What a model remembers of the checkpoint that it came from, so that it can be written again."""

    folder: Path
    config: dict[str, Any]
    metadata: dict[str, str]
    plan: Plan
    targets: dict[str, Target]
    small: dict[str, torch.Tensor]
    """Tensors that are no parameters: scales of inputs and caches."""
    places: dict[str, str]
    """In which file each tensor lies."""


def load(
    folder: str | Path,
    *,
    target: str = "cpu",
    recipe: str | recipes.Recipe | None = None,
    dtype: torch.dtype | None = None,
    kv_cache: str | None = AS_STORED,
) -> Any:
    """A net of the model in a folder, quantized as its checkpoint is.

    Weights are kept as the codes and scales that the files hold, and never decoded. Inputs of layers are quantized as
    the checkpoint says. `net.explain()` shows what became of each GEMM after the first call.

    Args:
        folder: A folder on this machine, with config.json and safetensors files or one GGUF file, or the path of a
            GGUF file beside its config.json. No code in it is run.
        target: As for `steelyard.compile`.
        recipe: What quantizes the inputs of quantized layers instead of what the checkpoint says. A checkpoint whose
            weights are plain needs one, and is quantized by it.
        dtype: The dtype of everything that is not quantized, by default that of the config.
        kv_cache: By default KV caches are as the checkpoint says, by its static scales where it has such. `"fp8"`: one
            scale per token and head, as for `steelyard.compile`. None: they stay in high precision.
    """
    chosen = None if recipe is None else recipes.get(recipe)
    with progress.doing(lambda: f"loading {folder}"):
        catalog = open_catalog(folder)
        about = quantization_config(catalog)
        if about is not None and about.get("quant_method") == own.METHOD:
            return _load_own(catalog, about, chosen, target, dtype, kv_cache)
        plan = read_plan(catalog)
        if not plan.weights and chosen is None:
            raise CheckpointError(
                f"the weights in '{folder}' are plain; name a recipe to quantize them by, as in "
                'steelyard.load(folder, recipe="mxfp8")'
            )
        model = load_model(catalog, plan, dtype)
    record: Record = vars(model)[_RECORD]
    caches: dict[str, Any] = cache_options(record, model) if kv_cache == AS_STORED else {"kv_cache": kv_cache}
    if not plan.weights:
        return compile(model, chosen or "mxfp8", target=target, weights="quantized", **caches)
    overrides = make_overrides(inputs_of_model(record.targets, plan), chosen)
    default = next(own for own in overrides.values() if own is not None)
    return compile(model, default, target=target, overrides=overrides, weights="quantized", **caches)


def _load_own(
    catalog: Catalog,
    about: dict[str, Any],
    chosen: recipes.Recipe | None,
    target: str,
    dtype: torch.dtype | None,
    kv_cache: str | None,
) -> Any:
    """A net of what `steelyard.save` wrote in Steelyard's own format."""
    model = empty_model(catalog, dtype)
    found: dict[str, Any] = {name: entry.read() for name, entry in catalog.items()}
    join(found)
    state = {name: found.pop(name) for name in list(found) if name.startswith(STATE_PREFIX)}
    known = model.state_dict()
    for name, tensor in found.items():
        if name not in known or tuple(tensor.shape) != tuple(known[name].shape):
            raise CheckpointError(
                f"{name} in '{catalog.folder}' must be a tensor of {type(model).__name__}; save it again"
            )
        set_tensor(model, name, tensor.to(known[name].dtype) if tensor.is_floating_point() else tensor)
    finish(model, catalog.folder)
    options = own.compile_options(about, model)
    if chosen is not None:
        options["recipe"] = chosen
    if kv_cache != AS_STORED:
        options |= {"kv_cache": kv_cache, "kv_scales": None}
    net = compile(model, **options, target=target, weights="quantized")
    net._steelyard.backend.state.load({name.removeprefix(STATE_PREFIX): tensor for name, tensor in state.items()})
    return net


def cache_options(record: Record, model: Any) -> dict[str, Any]:
    """What `steelyard.compile` is told about the KV caches of a model; warns of what a checkpoint asks for in vain."""
    scales = read_scales(model, record.targets, record.plan)
    for sentence in record.plan.not_run:
        warn(sentence)
    return {"kv_cache": record.plan.kv_cache, "kv_scales": scales}


def empty_model(catalog: Catalog, dtype: torch.dtype | None) -> Any:
    """The transformers model of a checkpoint, without weights."""
    config = read_config(catalog.folder, catalog.config)
    chosen: torch.dtype = dtype or getattr(config, "dtype", None) or torch.float32
    check_proportions(config, chosen, catalog)
    model = make_empty_model(config, chosen)
    if model.can_generate():
        model.generation_config = read_generation_config(catalog.folder, config)
    return model


def load_model(catalog: Catalog, plan: Plan, dtype: torch.dtype | None = None) -> Any:
    """The transformers model of a checkpoint, in eval mode; quantized weights are quantized tensors."""
    model = empty_model(catalog, dtype)
    targets = find_targets(model, catalog, plan)
    fill(model, targets)
    finish(model, catalog.folder)
    remember(model, make_record(catalog, plan, targets))
    return model


def fill(model: Any, targets: Mapping[str, Target]) -> None:
    """Read parameters and buffers into a model that has them without values."""
    for name, tensor in read_tensors(model, targets):
        set_tensor(model, name, tensor)


def make_record(catalog: Catalog, plan: Plan, targets: dict[str, Target]) -> Record:
    """What a model of a checkpoint remembers of it."""
    small = {entry.name: entry.read() for each in plan.inputs.values() for entry in each.entries}
    small.update({name: entry.read() for name, entry in plan.kept.items()})
    places = {name: entry.file.name for name, entry in catalog.items()}
    return Record(catalog.folder, catalog.config, catalog.metadata, plan, targets, small, places)


def remember(model: Any, record: Record) -> None:
    """Let layers of a loaded model treat their inputs as its checkpoint says, and keep where it came from."""
    inputs = inputs_of_model(record.targets, record.plan)
    adjust_inputs(model, {layer: each[0] for layer, each in inputs.items()})
    vars(model)[_RECORD] = record


def read_tensors(model: Any, targets: Mapping[str, Target]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a model from its files, in the order in which they lie there."""
    for count, name in enumerate(sorted(targets, key=lambda name: _place(targets[name])), 1):
        progress.step(f"{count} of {len(targets)} tensors")
        yield name, _read(targets[name], model)


def record_of(model: Any) -> Record | None:
    """What a model, or a net of it, remembers of its checkpoint."""
    return vars(model).get(_RECORD)


def _place(target: Target) -> tuple[str, int]:
    """Where the first tensor of a target lies: files are read from their beginning to their end."""
    _, source = next(iter(target.sources.values()))[0]
    entry = source.codes if isinstance(source, StoredWeight) else source
    return entry.file.name, entry.offset


def _read(target: Target, model: Any) -> torch.Tensor:
    """The tensor of a parameter or buffer."""
    expected = model.get_parameter_or_buffer(target.name)
    if target.weights:
        return read_parameter(target, expected)
    if target.converter is not None:
        return _read_several(target, model)
    source = target.only
    assert isinstance(source, Entry), "what is not quantized is one tensor"
    return _read_plain(source, expected)


def _read_plain(entry: Entry, expected: torch.Tensor) -> torch.Tensor:
    if entry.shape != tuple(expected.shape):
        raise CheckpointError(f"{entry.place} must have shape {list(expected.shape)}, got {list(entry.shape)}")
    if expected.is_floating_point():
        # Codes of 8 bits or fewer mean nothing without a scale.
        require_dtype(entry, "F32", "BF16", "F16", "F64")
    elif DTYPES[entry.dtype] != expected.dtype:
        raise CheckpointError(f"{entry.place} must be {expected.dtype}, got {entry.dtype}; fetch it again")
    return entry.read().to(expected.dtype)


def _read_several(target: Target, model: Any) -> torch.Tensor:
    """A parameter that transformers makes of several plain tensors: experts, for instance."""
    converter = copy.deepcopy(target.converter)
    for pattern, sources in target.sources.items():
        for name, source in sources:
            assert isinstance(source, Entry), "what is not quantized is plain"
            converter.add_tensor(target.name, name, pattern, source.read())
    found = converter.convert(target.name, model=model, config=model.config)
    expected = model.get_parameter_or_buffer(target.name)
    tensor = found[target.name][0] if isinstance(found[target.name], list) else found[target.name]
    if len(found) != 1 or tensor.shape != expected.shape:
        names = ", ".join(name for sources in target.sources.values() for name, _ in sources[:1])
        raise CheckpointError(f"{names} must make {target.name} {list(expected.shape)}, got {list(tensor.shape)}")
    return tensor.to(expected.dtype)
