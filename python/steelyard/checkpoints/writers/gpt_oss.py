"""transformers' own MXFP4, in which gpt-oss is published: experts in stacks, and nothing else quantized."""

from typing import Any

import torch

from steelyard.checkpoints.layer_formats import format_of, parts_in
from steelyard.checkpoints.methods.gpt_oss import CODES, METHOD, SCALES
from steelyard.checkpoints.parameters import parts_of_stack
from steelyard.checkpoints.tensors import Parts
from steelyard.errors import CheckpointError
from steelyard.recipes import Recipe
from steelyard.tensor.stack import QuantizedStack

_MODEL = "gpt_oss"
_PLAIN = ("model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head")


def check_model(model: Any) -> None:
    """Refuse another model than gpt-oss."""
    found = getattr(model.config, "model_type", None)
    if found != _MODEL:
        raise CheckpointError(
            f"the format {METHOD} is that of gpt-oss, whose experts lie in stacks of blocks, got a model of type "
            f'{found!r}; choose format="compressed-tensors", which holds MXFP4 of any model'
        )


def stack_tensors(name: str, stack: torch.Tensor, recipe: Recipe) -> dict[str, torch.Tensor]:
    """The tensors of a stack of experts, a parameter [E, K, N]."""
    format = format_of(name, name, recipe)
    own = stack.scheme if isinstance(stack, QuantizedStack) else format.weights
    if own.family != "mxfp4" or stack.shape[1] % 32:
        raise CheckpointError(
            f"{name} must be quantized by mxfp4, in blocks of 32 that are full, for the format {METHOD}, got "
            f'{own.element} in {own.block} of {stack.shape[1]} columns; compile with recipe="mxfp4/none", or choose '
            'format="steelyard"'
        )
    if isinstance(stack, QuantizedStack):
        parts = parts_of_stack(stack)
    else:
        experts = [parts_in(own, matrix.detach().mT, 0.0, format) for matrix in stack]
        parts = Parts(
            torch.stack([each.codes for each in experts]), torch.stack([each.scales for each in experts]), None
        )
    codes = parts.codes.reshape(*parts.scales.shape, 16)
    return {name + CODES: codes, name + SCALES: parts.scales}


def describe() -> dict[str, Any]:
    """The config."""
    return {"quant_method": METHOD, "modules_to_not_convert": list(_PLAIN)}
