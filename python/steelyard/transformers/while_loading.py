"""Plain weights that are quantized one by one while transformers reads them, so that they never are all in memory."""

from typing import Any

from transformers.core_model_loading import ConversionOps

from steelyard.checkpoints.selection import Selection, fits
from steelyard.recipes import Overrides, Role
from steelyard.tensor.from_scheme import make_quantizer
from steelyard.tensor.scheme_quantizer import SchemeQuantizer


class WeightQuantizers:
    """Knows which parameters of a model without weights a net would replace by quantized ones, and what makes those.

    It leaves out what only a call shows, such as the weights of experts in one tensor. The first call replaces these.
    """

    def __init__(self, model: Any, options: dict[str, Any]):
        """`options`: what `steelyard.compile` will be told."""
        others = {name: own and own.settled(trains=False) for name, own in options["overrides"].items()}
        self._model = model
        self._selection = Selection(model, options["recipe"].settled(trains=False), Overrides(others))

    def of(self, parameter: str) -> SchemeQuantizer | None:
        """What quantizes a parameter; None if it is read as it is."""
        path, _, attribute = parameter.rpartition(".")
        if attribute != "weight":
            return None
        recipe = self._selection.recipe_of(parameter)
        scheme = None if recipe is None else recipe.schemes(Role("weight", path))[0]
        if scheme is None or scheme.custom or not fits(scheme, self._model.get_parameter(parameter).shape):
            return None
        return make_quantizer(scheme)


class QuantizeWeight(ConversionOps):
    """What transformers calls with a weight that it has read."""

    def __init__(self, quantizers: WeightQuantizers):
        self._quantizers = quantizers

    def convert(self, input_dict: dict[str, Any], *, full_layer_name: str = "", **_: Any) -> dict[str, Any]:
        """The quantized weight; a weight on a GPU is left to the first call."""
        (found,) = input_dict.values()
        weight = found[0] if isinstance(found, list) else found
        quantizer = self._quantizers.of(full_layer_name) if weight.device.type == "cpu" else None
        return {full_layer_name: weight if quantizer is None else quantizer(weight.detach())}
