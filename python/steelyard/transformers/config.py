"""What `from_pretrained` is told, and what a `config.json` says."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig
from transformers.utils.quantization_config import QuantizationConfigMixin

from steelyard.checkpoints.methods import own
from steelyard.errors import CheckpointError, RecipeError, shown
from steelyard.recipes import Recipe


class SteelyardConfig(QuantizationConfigMixin):
    """`quantization_config` of `from_pretrained`.

    Args:
        recipe: The name of a recipe, or a recipe object.
        ignore: Patterns of layers that stay in high precision, as in `["lm_head"]`. By default that is the output layer
            where it shares the weight of the input embedding, and no other.
        overrides: As for `steelyard.compile`; `ignore` comes first.
        kv_cache: As for `steelyard.compile`. A checkpoint in another format says it itself unless it is given here.
        kv_scales: As for `steelyard.compile`.
        target: As for `steelyard.compile`. By default the kind of device that the model is on. It is not saved.
        source: The quantization config of a checkpoint in another format. Layers are quantized as that says; a recipe,
            if there is one, quantizes the inputs of quantized layers instead.
    """

    def __init__(
        self,
        recipe: str | Recipe | Mapping[str, Any] | None = None,
        *,
        ignore: Sequence[str] | None = None,
        overrides: Mapping[str, str | Recipe | None] | Sequence[Sequence[Any]] | None = None,
        kv_cache: str | None = None,
        kv_scales: Mapping[str, tuple[float, float]] | Sequence[Sequence[Any]] | None = None,
        target: str | None = None,
        source: dict[str, Any] | None = None,
        quant_method: str = own.METHOD,
    ):
        if isinstance(ignore, str) or not all(isinstance(each, str) for each in ignore or ()):
            raise RecipeError(f'ignore must be a list of patterns of layers, as in ["lm_head"], got {shown(ignore)}')
        if quant_method != own.METHOD:
            raise RecipeError(f"quant_method must be {own.METHOD!r}, got {shown(quant_method)}")
        pairs = overrides.items() if isinstance(overrides, Mapping) else overrides or ()
        # Plain data throughout, and lists where the order counts: transformers writes objects with sorted keys.
        self.quant_method: Any = own.METHOD
        self.recipe = None if recipe is None else own.as_data(own.as_recipe(recipe))
        self.ignore = None if ignore is None else list(ignore)
        self.overrides = [[pattern, own.kept(each, self.recipe)] for pattern, each in pairs]
        self.kv_cache = kv_cache
        scales = kv_scales.items() if isinstance(kv_scales, Mapping) else kv_scales or ()
        self.kv_scales = [[name, list(pair)] for name, pair in scales]
        self.target = target
        self.source = source

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any) -> Any:
        """The config that a `config.json` holds, of Steelyard or of another method."""
        is_own = config_dict.get("quant_method") == own.METHOD
        found = cls(**config_dict) if is_own else cls(source=config_dict)
        return (found, kwargs) if return_unused_kwargs else found

    def to_dict(self) -> dict[str, Any]:
        """What a `config.json` holds."""
        values = super().to_dict()
        del values["target"]
        if self.source is None:
            del values["source"]
        return values

    @property
    def chosen_recipe(self) -> Recipe | None:
        """The recipe."""
        return None if self.recipe is None else own.as_recipe(self.recipe)

    def options_for(self, model: Any) -> dict[str, Any]:
        """What `steelyard.compile` is told about a model that has its weights."""
        options = own.compile_options(self.to_dict(), model)
        return {**options, "target": self.target or model.device.type, "weights": "quantized"}


def read_config(folder: str | Path, **options: Any) -> PreTrainedConfig:
    """The config of a quantized checkpoint, so that Steelyard reads it, whatever its method.

    For methods that transformers has loaders of its own for: `from_pretrained(folder, config=read_config(folder))`.
    Options are those of `AutoConfig.from_pretrained`.
    """
    config = AutoConfig.from_pretrained(folder, **options)
    for holder in (config, config.get_text_config(decoder=True)):
        found = getattr(holder, "quantization_config", None)
        if isinstance(found, dict):
            is_own = found.get("quant_method") == own.METHOD
            config.quantization_config = found if is_own else {"quant_method": own.METHOD, "source": found}
            return config
    raise CheckpointError(
        f"config.json of '{folder}' must have a quantization_config, and has none; pass "
        'quantization_config=SteelyardConfig("mxfp8") to from_pretrained to quantize plain weights'
    )
