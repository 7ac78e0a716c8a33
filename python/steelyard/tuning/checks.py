"""What must hold of the arguments of `steelyard.tune`, checked before any work is done."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from steelyard.driver.net import CompiledModule
from steelyard.errors import RecipeError, SteelyardError, UnsupportedModelError, shown
from steelyard.files import failure
from steelyard.tuning.batches import Batch, for_inference, output_of
from steelyard.tuning.gptq import Options
from steelyard.tuning.layers import Layer

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_SEEDS = range(-(2**63), 2**64)
_LISTED = 8
"""How many names an error lists."""


def check_context() -> None:
    """Refuse modes of torch in which tuning cannot compute."""
    if torch.is_inference_mode_enabled():
        raise UnsupportedModelError(
            "steelyard.tune must be called outside of torch.inference_mode, as it differentiates the model, and was "
            "called in it; leave the mode, or use torch.no_grad"
        )
    if torch.get_default_dtype() != torch.float32:
        raise UnsupportedModelError(
            f"torch's default dtype must be float32 while a model is tuned, got {torch.get_default_dtype()}; call "
            "torch.set_default_dtype(torch.float32)"
        )


def check_model(model: Any) -> None:
    """Refuse what is no model in high precision whose values are here."""
    if isinstance(model, CompiledModule):
        raise UnsupportedModelError(
            f"steelyard.tune takes a model in high precision, got a compiled net of {type(model).__name__}; give "
            "net.model"
        )
    if not isinstance(model, nn.Module):
        raise UnsupportedModelError(
            f"steelyard.tune takes a model in high precision, got {type(model).__name__}; give it the nn.Module that "
            "steelyard.compile takes"
        )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type != "cpu":
            raise UnsupportedModelError(
                f"a model must be on the CPU to be tuned, and {name} is on {tensor.device.type}; "
                + ("load its values first" if tensor.device.type == "meta" else "move it by model.cpu()")
            )
        if tensor.is_inference():
            raise UnsupportedModelError(
                f"parameters must be made outside of torch.inference_mode to be tuned, and {name} was made in it; "
                "tune copy.deepcopy(model), made outside of that mode"
            )


def check_layers(layers: Mapping[str, Layer]) -> None:
    """Refuse weights that no format holds."""
    for name, layer in layers.items():
        weight = layer.parameter
        if weight.dtype not in _DTYPES:
            raise UnsupportedModelError(
                f"weights that are tuned must be in float32, bfloat16 or float16, and that of {name} is in "
                f"{weight.dtype}; convert the model by model.float(), and batches with it"
            )
        if not torch.isfinite(weight.detach()).all():
            raise UnsupportedModelError(
                f"weights that are tuned must be finite, and that of {name} has an infinity or a NaN; look at how the "
                f"model was trained or loaded, or leave {name} out by ignore="
            )


def read_patterns(ignore: Any) -> tuple[str, ...]:
    """Patterns of names of layers; one may be given by itself."""
    if isinstance(ignore, str):
        return (ignore,)
    patterns: tuple[Any, ...] = tuple(ignore) if isinstance(ignore, Iterable) else (None,)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise RecipeError(f"ignore must be a list of patterns of layer names, as in ['lm_head'], got {shown(ignore)}")
    return patterns


def check_patterns(patterns: Sequence[str], default: Sequence[str], model: nn.Module, layers: Iterable[str]) -> None:
    """Refuse patterns that match neither a layer nor another module that has parameters."""
    owners = [name for name, module in model.named_modules() if any(True for _ in module.parameters(recurse=False))]
    names = dict.fromkeys((*layers, *owners))
    for pattern in patterns:
        if pattern not in default and not any(fnmatchcase(name, pattern) for name in names):
            raise RecipeError(
                f"ignore has {pattern!r}, which matches no layer; there are {_listed(list(layers))}; a pattern such as "
                f"'{pattern}.*' matches all layers within a module"
            )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def check_options(options: Any, seed: Any) -> None:
    """Refuse options and seeds that are of another kind, or out of their range."""
    if not isinstance(options, Options):
        raise RecipeError(
            f"options must be steelyard.tuning.gptq.Options, as in Options(damping=0.01), got {shown(options)}"
        )
    damping = options.damping
    is_number = isinstance(damping, int | float) and not isinstance(damping, bool)
    if not is_number or not math.isfinite(damping) or damping < 0:
        raise RecipeError(f"options.damping must be a number of at least 0, such as 0.01, got {shown(damping)}")
    for name in ("order", "fold"):
        if not isinstance(getattr(options, name), bool):
            raise RecipeError(f"options.{name} must be True or False, got {shown(getattr(options, name))}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed not in _SEEDS:
        raise RecipeError(f"seed must be a whole number of 64 bits, got {shown(seed)}")


def read_folder(folder: Any) -> Path | None:
    """The folder of finished work, which is made if it is missing."""
    if folder is None:
        return None
    if not isinstance(folder, str | os.PathLike):
        raise RecipeError(f"folder must be a path, got {shown(folder)}")
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise failure(f"folder must be one that finished work can be kept in; cannot make '{path}'", error) from error
    return path


def check_batches(batches: Sequence[Batch], what: str) -> None:
    """Refuse batches that no model can be called with."""
    for index, batch in enumerate(batches):
        name = f"{what}[{index}]"
        if not isinstance(batch, torch.Tensor | tuple | list | Mapping):
            raise UnsupportedModelError(
                f"{name} must be what the model is called with, a tensor, a tuple of arguments or a dict of keywords, "
                f"got {shown(batch)}"
            )
        tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
        for tensor in tensors:
            if tensor.device.type != "cpu":
                raise UnsupportedModelError(
                    f"tensors of {name} must be on the CPU, with values, and one is on {tensor.device.type}; give "
                    "tensors with values, by .cpu() if they are on another device"
                )
            if tensor.is_inference():
                raise UnsupportedModelError(
                    f"tensors of {name} must be made outside of torch.inference_mode, and one was made in it; clone it "
                    "outside of that mode"
                )
        if tensors and not tensors[0].numel():
            raise UnsupportedModelError(
                f"{name} must have rows, and its first tensor has the shape {tuple(tensors[0].shape)}; leave empty "
                "batches out"
            )


@torch.no_grad()
def outputs_of(model: nn.Module, batches: Sequence[Batch], what: str) -> list[tuple[torch.Tensor, bool]]:
    """What the model computes from each batch, as `output_of` says; raises where it fails, or is not finite."""
    found = []
    for index, batch in enumerate(batches):
        with for_inference(model):
            found.append(_output(model, batch, f"{what}[{index}]"))
    return found


def run(model: nn.Module, batch: Batch) -> None:
    """Call the model with a batch; raises where it fails, or its output is not finite."""
    _output(model, batch, "one")


def _output(model: nn.Module, batch: Batch, name: str) -> tuple[torch.Tensor, bool]:
    try:
        output, is_logits = output_of(model, batch)
    except SteelyardError:
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise UnsupportedModelError(
            f"the model must run with each batch, and with {name}, {_described(batch)}, it raised "
            f"{type(error).__name__}: {reason}; give batches as the model is called with"
        ) from error
    if not output.numel() or not torch.isfinite(output).all():
        problem = "has an infinity or a NaN" if output.numel() else f"has the shape {tuple(output.shape)}"
        raise UnsupportedModelError(
            f"the output of a model that is tuned must be finite and not empty, and that of {name}, "
            f"{_described(batch)}, {problem}; look at the model's parameters and at this batch"
        )
    return output, is_logits


def _described(batch: Batch) -> str:
    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    shapes = ", ".join(f"{str(each.dtype).removeprefix('torch.')} {list(each.shape)}" for each in tensors)
    return f"{type(batch).__name__} of {shapes}" if shapes else shown(batch)
