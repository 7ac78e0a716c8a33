"""How a layer is written: its formats as plain data, and its weight in them."""

from dataclasses import dataclass, replace

import torch

from steelyard.checkpoints.tensors import Parts
from steelyard.formats.schemes import Scheme
from steelyard.recipes import Recipe, Role
from steelyard.reference.scales import nvfp4_range
from steelyard.tensor import kernels
from steelyard.tensor.quantized_tensor import QuantizedTensor

FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
)
"""Layers that other programs multiply as one, so that they must share their second level."""


@dataclass(frozen=True)
class LayerFormat:
    """How the weight and the input of a layer are quantized."""

    name: str
    """In the checkpoint: that of the weight without `.weight`."""
    weights: Scheme
    inputs: Scheme | None
    """None: they stay in high precision."""
    input_scale: float | None = None
    """What decoded inputs are multiplied by where that is given."""

    @property
    def kind(self) -> tuple[Scheme, Scheme | None]:
        """Equal for layers that are quantized alike."""
        return self.weights, self.inputs


def format_of(name: str, layer: str, recipe: Recipe, weight: torch.Tensor | None = None) -> LayerFormat:
    """The format of a layer by its recipe; a weight that is quantized already has its own."""
    scheme, _ = recipe.schemes(Role("weight", layer))
    inputs, _ = recipe.schemes(Role("input", layer))
    if isinstance(weight, QuantizedTensor):
        scheme = weight._quantizer.row_scheme
    assert scheme is not None, "a recipe quantizes weights"
    return LayerFormat(name, _measured(scheme), inputs and _measured(inputs), recipe.input_scale(layer))


def _measured(scheme: Scheme) -> Scheme:
    """A scheme for files, which have no scales of earlier steps: such a tensor is measured itself."""
    return replace(scheme, source="current") if scheme.source == "delayed" else scheme


def fused_names(name: str) -> list[str]:
    """The layers that are multiplied as one with a layer, itself included."""
    parent, _, own = name.rpartition(".")
    group = next((group for group in FUSED if own in group), (own,))
    return [f"{parent}.{each}" if parent else each for each in group]


def parts_in(scheme: Scheme, weight: torch.Tensor, amax: float, layer: LayerFormat) -> Parts:
    """The parts of a plain matrix in a scheme. `amax`: the largest magnitude of all that share a second level."""
    matrix = weight.detach().contiguous()
    if layer.weights.four_over_six != "none":
        # Blocks choose by the recipe's own rule; its second level is then written as the format has it.
        given = torch.tensor(amax, dtype=torch.float32)
        copy, _ = kernels.quantize(matrix, layer.weights, None, amax=given)
        assert copy is not None
        return Parts(copy.codes, copy.scales, second_level(scheme.source, nvfp4_range(layer.weights), amax))
    is_given = scheme.second_level == "tensor" and scheme.source != "current"
    given = second_level(scheme.source, nvfp4_range(scheme), amax) if is_given else None
    copy, _ = kernels.quantize(matrix, scheme, None, scale=given)
    assert copy is not None
    return Parts(copy.codes, copy.scales, copy.amax if scheme.family == "nvfp4" else None)


def second_level(source: str, whole: float, amax: float) -> torch.Tensor:
    """What a matrix whose largest magnitude becomes `whole` is multiplied or divided by; 1 for one of zeros."""
    if not 0 < amax < float("inf"):
        return torch.ones(())
    largest = torch.tensor(amax, dtype=torch.float32)
    return whole / largest if source == "divisor" else largest / whole
