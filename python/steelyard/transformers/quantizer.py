"""The quantizer that transformers calls while it loads and saves a model."""

from typing import Any

import torch
from transformers.quantizers.auto import (
    AUTO_QUANTIZATION_CONFIG_MAPPING,
    register_quantization_config,
    register_quantizer,
)
from transformers.quantizers.base import HfQuantizer

from steelyard.checkpoints.layers import WEIGHTS_ONLY, inputs_of_model, make_overrides, refuse_adjusted
from steelyard.checkpoints.loading import Record, cache_options
from steelyard.checkpoints.methods import own
from steelyard.driver.net import compile_in_place
from steelyard.errors import RecipeError, SteelyardError, TargetError, UnsupportedModelError, shown
from steelyard.tensor.quantized_tensor import QuantizedTensor
from steelyard.transformers.config import SteelyardConfig
from steelyard.transformers.stored import Stored, TakenNames, find_stored
from steelyard.transformers.while_loading import QuantizeWeight, WeightQuantizers


class SteelyardQuantizer(HfQuantizer):
    """Makes the model of `from_pretrained` a net, with the quantized weights of its files if they have such."""

    is_trainable = True  # pyright: ignore[reportAssignmentType]
    """What is beside the quantized weights is: adapters. Transformers refuses to train a model without."""
    quantization_config: SteelyardConfig

    def __init__(self, quantization_config: SteelyardConfig, **options: Any):
        super().__init__(quantization_config, **options)
        self._stored: Stored | None = None
        self._weights: WeightQuantizers | None = None

    def is_serializable(self) -> bool:
        """Whether `save_pretrained` works."""
        return True

    def validate_environment(self, *_: Any, device_map: Any = None, **__: Any) -> None:
        """Refuse what cannot be loaded, before anything is."""
        config = self.quantization_config
        if config.recipe is None and config.source is None:
            raise RecipeError('a checkpoint that is not quantized needs a recipe, as in SteelyardConfig("mxfp8")')
        if not self.pre_quantized and config.source is not None:
            raise RecipeError("source must be None for a checkpoint that is not quantized; leave it out")
        devices = device_map.values() if isinstance(device_map, dict) else [device_map or "cpu"]
        found = {"cuda" if isinstance(each, int) else str(each).partition(":")[0] for each in devices}
        if len(found) > 1 or not found <= {"cpu", "cuda", "auto"}:
            raise TargetError(
                f"device_map must put all of the model on one device, got {shown(device_map)}; leave it out"
            )
        if "cuda" in found and not torch.cuda.is_available():
            raise TargetError(f"device_map {shown(device_map)} needs a GPU, and torch finds none; leave it out")

    def _process_model_before_weight_loading(self, model: Any, **options: Any) -> None:
        if getattr(model.config, "distributed_config", None) is not None:
            raise UnsupportedModelError(
                "a net of from_pretrained must be whole in one process, got distributed_config, tp_plan or tp_size; "
                "leave it out"
            )
        if not self.pre_quantized:
            self._weights = WeightQuantizers(model, self.quantization_config.options_for(model))
        else:
            self._stored = find_stored(model, self.quantization_config.source, options.get("checkpoint_files"))
            self._stored.hide(model)

    def param_needs_quantization(self, model: Any, param_name: str, **_: Any) -> bool:
        """Whether a plain weight is quantized as soon as it is read."""
        return self._weights is not None and self._weights.of(param_name) is not None

    def get_quantize_ops(self) -> QuantizeWeight:
        """What quantizes such a weight."""
        assert self._weights is not None
        return QuantizeWeight(self._weights)

    def update_weight_conversions(self, weight_conversions: list[Any], model: Any) -> list[Any]:
        """Let transformers pass over the tensors that Steelyard reads."""
        return weight_conversions if self._stored is None else [TakenNames(self._stored.taken), *weight_conversions]

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        stored, self._stored, self._weights = self._stored, None, None
        if stored is not None:
            stored.read_into(model)
        if stored is not None and stored.record is not None:
            self.quantization_config = _config_of(stored.record, self.quantization_config, model)
            model.config.quantization_config = self.quantization_config
        # Only what is added later is trained, such as adapters.
        model.requires_grad_(False)
        compile_in_place(model, **self.quantization_config.options_for(model))
        if stored is not None and stored.state:
            model._steelyard.backend.state.load(stored.read_state())
        return model

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """None, for the state dict of the net: the codes of quantized parameters."""
        if getattr(model, "_hf_peft_config_loaded", False):
            return None, {}  # only adapters are saved
        refuse_adjusted(model)
        has_codes = any(isinstance(parameter, QuantizedTensor) for parameter in model.parameters())
        if not has_codes or (not self.pre_quantized and not model._steelyard.backend.compilations):
            _quantize_now(model)
        # Tensors keep their names in the model: transformers can neither rename nor split codes.
        model._weight_conversions = []
        return None, {}


def _config_of(record: Record, given: SteelyardConfig, model: Any) -> SteelyardConfig:
    """What a published checkpoint says, as a config of Steelyard."""
    overrides = make_overrides(inputs_of_model(record.targets, record.plan), given.chosen_recipe)
    default = next((each for each in overrides.values() if each is not None), WEIGHTS_ONLY)
    is_chosen = given.kv_cache is not None
    caches = {"kv_cache": given.kv_cache, "kv_scales": given.kv_scales} if is_chosen else cache_options(record, model)
    return SteelyardConfig(default, ignore=[], overrides=overrides, target=given.target, **caches)


def _quantize_now(model: Any) -> None:
    """Quantize the parameters of a net that has not been called yet."""
    try:
        with torch.no_grad():
            model.lower(**{name: tensor.to(model.device) for name, tensor in model.dummy_inputs.items()})
    except SteelyardError:
        raise
    except Exception as error:
        raise UnsupportedModelError(
            f"weights are quantized by the first call, and one with the model's dummy_inputs failed: {error}; call the "
            "model once before save_pretrained"
        ) from error


for _method in (own.METHOD, "modelopt"):
    if _method not in AUTO_QUANTIZATION_CONFIG_MAPPING:
        register_quantization_config(_method)(SteelyardConfig)
        register_quantizer(_method)(SteelyardQuantizer)
