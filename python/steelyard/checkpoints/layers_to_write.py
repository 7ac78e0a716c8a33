"""The tensors of a net under the names of a checkpoint, quantized as a format of other programs has them."""

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from types import ModuleType
from typing import Any

import torch

from steelyard.checkpoints import second_levels, tensors
from steelyard.checkpoints.layer_formats import LayerFormat, format_of, fused_names, parts_in
from steelyard.checkpoints.selection import Selection, fits, pieces_of
from steelyard.driver import progress
from steelyard.driver.user_warnings import warn
from steelyard.errors import CheckpointError
from steelyard.recipes import Recipe
from steelyard.tensor.quantized_tensor import QuantizedTensor

Tensors = Iterator[tuple[str, torch.Tensor]]


def stored_names(model: Any) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a model that files hold, each once."""
    every = dict(model.named_parameters(remove_duplicate=False)) | dict(_buffers(model))
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    return {name: tensor for name, tensor in every.items() if tied.get(name) is None or tensor is not every[tied[name]]}


def _buffers(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The buffers that a state dict has."""
    for path, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield f"{path}.{name}" if path else name, buffer


def plain_tensor(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that a format has no codes for."""
    if not isinstance(tensor, QuantizedTensor):
        return tensor.detach()
    warn(f"{name} is quantized in a form that this format cannot hold, and written in {tensor.dtype}")
    return tensor.dequantize()


def revert(model: Any, name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """What transformers writes of a parameter."""
    from transformers.core_model_loading import revert_weight_conversion

    return revert_weight_conversion(model, {name: tensor})


class LayersToWrite:
    """The tensors of a model under the names of a checkpoint, and how its quantized layers are written."""

    def __init__(self, model: Any, selection: Selection, writer: ModuleType, input_scales: Mapping[str, float]):
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
            recipe = _with_scales(chosen[name], name.removesuffix(".weight"), input_scales)
            format = format_of(layer, name.removesuffix(".weight"), recipe, self._tensors[name])
            scheme = writer.stored_scheme(format)
            if fits(scheme, self._tensors[name].shape):
                self.layers[layer] = format
        _refuse_unmatched(input_scales, [name.removesuffix(".weight") for name in names.values()])
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
            yield from revert(self._model, name, plain_tensor(name, tensor)).items()

    def _amax(self, layer: str) -> float:
        weight = self.matrix(layer)
        return 0.0 if isinstance(weight, QuantizedTensor) else float(weight.abs().amax())


def _with_scales(recipe: Recipe, layer: str, scales: Mapping[str, float]) -> Recipe:
    """The recipe of a layer, with the scale of its input if it is among these."""
    scale = next((scale for pattern, scale in scales.items() if fnmatchcase(layer, pattern)), None)
    return recipe if scale is None else recipe.with_input_scales({layer: scale})


def _refuse_unmatched(scales: Mapping[str, float], layers: Iterable[str]) -> None:
    names = list(layers)
    for pattern in scales:
        if not any(fnmatchcase(name, pattern) for name in names):
            known = ", ".join(names)
            raise CheckpointError(f"input_scales has {pattern!r}, which matches no quantized layer; these are: {known}")


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


def _warn_of_levels(written: LayersToWrite) -> None:
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
