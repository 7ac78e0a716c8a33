"""The transformers model of a checkpoint: without weights at first, then with those that the checkpoint has."""

import copy
import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from steelyard.checkpoints.catalog import Catalog, Entry
from steelyard.checkpoints.plan import Plan, StoredWeight
from steelyard.checkpoints.proportions import Limits, at_registration, refuse_absurd_counts, refuse_large_buffers
from steelyard.errors import CheckpointError, SteelyardError, shown

Source = Entry | StoredWeight
GENERATION = "generation_config.json"
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass
class Target:
    """A parameter or buffer of a model, and what it is made from."""

    name: str
    sources: dict[str, list[tuple[str, Source]]] = field(default_factory=dict)
    """By the pattern of a converter, or by the name itself: names in the checkpoint, and what is there."""
    converter: Any = None
    """How transformers makes one parameter of several tensors; None if there is one."""

    @property
    def weights(self) -> list[StoredWeight]:
        """The quantized weights among the sources."""
        every = (source for sources in self.sources.values() for _, source in sources)
        return [source for source in every if isinstance(source, StoredWeight)]

    @property
    def entries(self) -> list[Entry]:
        """All tensors that it is made from."""
        every = (source for sources in self.sources.values() for _, source in sources)
        return [each for source in every for each in ([source] if isinstance(source, Entry) else source.entries)]

    @property
    def only(self) -> Source:
        """The one source."""
        ((_, source),) = next(iter(self.sources.values()))
        return source


def read_config(folder: Path, config: Mapping[str, Any]) -> Any:
    """The config of a folder as transformers' own class of it, without what it says about quantization."""
    transformers = import_transformers()
    refuse_absurd_counts(config)
    _check_dtype(config)
    try:
        found = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except SteelyardError:
        raise
    except Exception as error:
        kind = config.get("model_type")
        raise CheckpointError(
            f"config.json in '{folder}' must be that of a model that transformers {transformers.__version__} knows, "
            f"got model_type {shown(kind)}: {_in_one_line(error)}"
        ) from error
    for each in (found, getattr(found, "text_config", None)):
        if each is not None and hasattr(each, "quantization_config"):
            del each.quantization_config
    return found


def _check_dtype(config: Mapping[str, Any]) -> None:
    """Refuse what is no dtype of weights: transformers would take any attribute of torch for one."""
    known = {"auto", *(str(dtype).removeprefix("torch.") for dtype in _DTYPES)}
    for key in ("dtype", "torch_dtype"):
        found = config.get(key)
        if not isinstance(found, str | None) or (found or "auto").removeprefix("torch.") not in known:
            raise CheckpointError(f"{key} in config.json must be float32, bfloat16 or float16, got {shown(found)}")


def import_transformers() -> Any:
    """The package, or an error that says how to install it."""
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise CheckpointError(
            "loading a checkpoint needs transformers; install it by pip install 'steelyard[transformers]'"
        ) from error


def read_generation_config(folder: Path, config: Any) -> Any:
    """How a folder says that its model writes text; by default as the model's own config says."""
    transformers = import_transformers()
    try:
        if (folder / GENERATION).is_file():
            return transformers.GenerationConfig.from_pretrained(folder, local_files_only=True)
        return transformers.GenerationConfig.from_model_config(config)
    except (ValueError, TypeError, AttributeError, KeyError, OSError) as error:
        raise CheckpointError(f"{GENERATION} in '{folder}' cannot be used: {error}; remove it") from error


def check_proportions(config: Any, dtype: torch.dtype, catalog: Catalog) -> None:
    """Refuse a config whose model is out of all proportion to the checkpoint, before it takes memory or hours."""
    make = _maker(config, dtype)
    with _made(config, dtype), torch.device("meta"), Limits(catalog).watching():
        empty = make()
    refuse_large_buffers(empty, catalog)


def make_empty_model(config: Any, dtype: torch.dtype) -> Any:
    """The model of a config, its parameters on the meta device, its other tensors as they are made."""
    make = _maker(config, dtype)
    with _made(config, dtype), _parameters_on_meta():
        return make().eval()


def _maker(config: Any, dtype: torch.dtype) -> Callable[[], Any]:
    """What makes the model of a config: the class that it names, if it is one of transformers for such a config."""
    transformers = import_transformers()
    names = getattr(config, "architectures", None) or []
    if not isinstance(names, list):
        raise CheckpointError(f"architectures in config.json must be a list of names, got {shown(names)}")
    if not names:
        return lambda: transformers.AutoModel.from_config(copy.deepcopy(config), dtype=dtype)
    with _of_transformers(f"import {shown(names[0])}"):
        found = getattr(transformers, names[0], None) if isinstance(names[0], str) else None
    is_model = isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
    if not is_model or not isinstance(config, found.config_class or ()):  # pyright: ignore[reportOptionalMemberAccess]
        raise CheckpointError(
            f"architectures in config.json must name a model of transformers {transformers.__version__} for its "
            f"model_type, got {shown(names[0])}; fetch it again, or install a newer transformers"
        )
    return lambda: found(copy.deepcopy(config))  # pyright: ignore[reportOptionalCall]


@contextmanager
def _of_transformers(what: str) -> Iterator[None]:
    """Whatever transformers raises means that it cannot use a config."""
    try:
        yield
    except SteelyardError:
        raise
    except Exception as error:
        raise CheckpointError(f"transformers cannot {what}: {_in_one_line(error)}; fetch it again") from error


def _in_one_line(error: Exception) -> str:
    text = " ".join(str(error).split())[:300]
    return "".join(letter if letter.isprintable() else "?" for letter in text) or type(error).__name__


@contextmanager
def _made(config: Any, dtype: torch.dtype) -> Iterator[None]:
    """A model is made within, in a dtype, without values."""
    from transformers import initialization

    if dtype not in _DTYPES:
        raise CheckpointError(f"dtype in config.json must be one of {', '.join(map(str, _DTYPES))}, got {shown(dtype)}")
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        what = f"make {getattr(config, 'architectures', None)} from config.json"
        with _of_transformers(what), initialization.no_init_weights(), initialization.no_tie_weights():
            yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Parameters that modules register hold no memory; buffers, which no file has, keep their values."""

    def move(module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter:
        return nn.Parameter(parameter.detach().to("meta"), requires_grad=False)

    with at_registration(move):
        yield


def find_targets(model: Any, catalog: Catalog, plan: Plan, *, allows_extra: bool = False) -> dict[str, Target]:
    """What each parameter and buffer of a model is made from, by the rules of transformers for its class.

    `allows_extra`: leave out tensors that the model has no place for.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    with _of_transformers("convert weights as config.json says"):
        rules = get_model_conversion_mapping(model)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    known = model.state_dict()
    used = plan.used()
    sources: dict[str, Source] = {name: entry for name, entry in catalog.items() if name not in used}
    sources.update(plan.weights)
    targets: dict[str, Target] = {}
    for name in sorted(sources, key=dot_natural_key):
        given = plan.renamed.get(name, name)
        renamed, pattern = rename_source_key(given, renamings, converters, model.base_model_prefix, known)
        if renamed not in known and given in known:
            renamed, pattern = given, None
        if renamed not in known:
            if not allows_extra:
                _refuse_extra(model, renamed, sources[name])
            continue
        target = targets.setdefault(renamed, Target(renamed))
        if pattern is not None:
            target.converter = by_pattern[pattern]
        target.sources.setdefault(pattern or name, []).append((name, sources[name]))
    _refuse_doubled(targets)
    return targets


def _refuse_extra(model: Any, name: str, source: Source) -> None:
    """Refuse a tensor that the model has no place for, unless transformers leaves it out, too."""
    patterns = {r"rotary_emb\.inv_freq", r"(^|\.)position_ids$", *(model._keys_to_ignore_on_load_unexpected or ())}
    if any(re.search(pattern, name) for pattern in patterns):
        return
    entry = source.codes if isinstance(source, StoredWeight) else source
    raise CheckpointError(
        f"{entry.place} must be a tensor of {type(model).__name__}, which has no {name}; the config may be that of "
        "another model"
    )


def _refuse_doubled(targets: dict[str, Target]) -> None:
    for target in targets.values():
        if target.converter is None and len(target.sources) > 1:
            first, second = list(target.sources)[:2]
            raise CheckpointError(f"{target.name} must be made from one tensor, got {first} and {second}")


def set_tensor(model: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Put a tensor into the place of a parameter or buffer of the same name."""
    path, _, attribute = name.rpartition(".")
    module = model.get_submodule(path)
    if attribute in module._buffers:
        module._buffers[attribute] = tensor
    else:
        module._parameters[attribute] = nn.Parameter(tensor, requires_grad=False)


def missing_parameters(model: nn.Module) -> set[str]:
    """The parameters that have no values yet."""
    every = model.named_parameters(remove_duplicate=False)
    return {name for name, parameter in every if parameter.device.type == "meta"}


def finish(model: Any, folder: Path) -> None:
    """Tie what a config ties, and refuse a model that lacks weights."""
    missing = missing_parameters(model)
    with _of_transformers("tie weights as config.json says"):
        model.tie_weights(missing_keys=set(missing))
    missing = sorted(missing_parameters(model))
    if missing:
        more = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise CheckpointError(f"'{folder}' must have the weight {missing[0]}{more}, and has none; fetch it again")
