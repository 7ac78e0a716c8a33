"""Small models: their configs, and the names and shapes of their tensors in files."""

from dataclasses import dataclass, field
from typing import Any

import numpy

WIDTH, INNER, VOCABULARY, HEADS, EXPERTS = 64, 160, 48, 4, 2
BLOCK = "model.layers.0"
ATTENTION = {f"{BLOCK}.self_attn.{name}_proj": (WIDTH, WIDTH) for name in "qkvo"}
_SIZES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": WIDTH // HEADS,
    "hidden_act": "silu",
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "dtype": "float32",
    "vocab_size": VOCABULARY,
}
_PLAIN = {
    "model.embed_tokens.weight": (VOCABULARY, WIDTH),
    "lm_head.weight": (VOCABULARY, WIDTH),
    "model.norm.weight": (WIDTH,),
    f"{BLOCK}.input_layernorm.weight": (WIDTH,),
    f"{BLOCK}.post_attention_layernorm.weight": (WIDTH,),
}
_HEAD_NORMS = {f"{BLOCK}.self_attn.{name}_norm.weight": (WIDTH // HEADS,) for name in "qk"}


@dataclass(frozen=True)
class Model:
    """What a format is a format of."""

    config: dict[str, Any]
    plain: dict[str, tuple[int, ...]]
    """Tensors that no format quantizes."""
    layers: dict[str, tuple[int, int]]
    """The matrices [N, K] of layers that a format may quantize."""
    stacks: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Experts in one tensor, as matrices [E, N, K]; the model has [E, K, N]."""
    joined: dict[str, list[list[str]]] = field(default_factory=dict)
    """Parameters that are made of layers: those of each expert, joined by rows."""

    def quantized(self, *, has_layers: bool) -> set[str]:
        """The parameters that a format quantizes; `has_layers`: not the stacks alone."""
        of_experts = {name for experts in self.joined.values() for expert in experts for name in expert}
        layers = {f"{name}.weight" for name in self.layers if name not in of_experts}
        return {*self.stacks, *self.joined, *layers} if has_layers else set(self.stacks)

    def join(self, weights: dict[str, numpy.ndarray]) -> dict[str, numpy.ndarray]:
        """Parameters of the model from the weights of files: those of experts become stacks."""
        found = dict(weights)
        for name, experts in self.joined.items():
            matrices = [[found.pop(f"{layer}.weight") for layer in expert] for expert in experts]
            found[name] = numpy.stack([numpy.concatenate(each) for each in matrices])
        return found


def llama(inner: int = INNER) -> Model:
    mlp = {"gate_proj": (inner, WIDTH), "up_proj": (inner, WIDTH), "down_proj": (WIDTH, inner)}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "intermediate_size": inner, **_SIZES}
    layers = {**ATTENTION, **{f"{BLOCK}.mlp.{name}": shape for name, shape in mlp.items()}}
    return Model({**config, "rope_theta": 10000.0}, _PLAIN, layers)


def qwen3(inner: int = INNER) -> Model:
    """A Llama whose queries and keys are normalized."""
    base = llama(inner)
    config = {**base.config, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    return Model(config, {**base.plain, **_HEAD_NORMS}, base.layers)


def qwen3_moe(inner: int = 32) -> Model:
    """Experts that are one layer each in files."""
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "moe_intermediate_size": inner,
        "intermediate_size": inner,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 1,
        **_SIZES,
    }
    names = [f"{BLOCK}.mlp.experts.{index}" for index in range(EXPERTS)]
    shapes = {"gate_proj": (inner, WIDTH), "up_proj": (inner, WIDTH), "down_proj": (WIDTH, inner)}
    experts = {f"{name}.{part}": shape for name in names for part, shape in shapes.items()}
    joined = {
        f"{BLOCK}.mlp.experts.gate_up_proj": [[f"{name}.gate_proj", f"{name}.up_proj"] for name in names],
        f"{BLOCK}.mlp.experts.down_proj": [[f"{name}.down_proj"] for name in names],
    }
    plain = {**_PLAIN, **_HEAD_NORMS, f"{BLOCK}.mlp.gate.weight": (EXPERTS, WIDTH)}
    return Model(config, plain, {**ATTENTION, **experts}, joined=joined)


def gpt_oss(inner: int = 96) -> Model:
    """Experts of each layer in two stacks, with biases."""
    config = {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "intermediate_size": inner,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": 1,
        "layer_types": ["full_attention"],
        **_SIZES,
    }
    biases = {f"{layer}.bias": (WIDTH,) for layer in ATTENTION}
    stacks = _stacks(f"{BLOCK}.mlp.experts", inner)
    plain = {
        **{f"{name}_bias": (experts, rows) for name, (experts, rows, _) in stacks.items()},
        f"{BLOCK}.self_attn.sinks": (HEADS,),
        f"{BLOCK}.mlp.router.weight": (EXPERTS, WIDTH),
        f"{BLOCK}.mlp.router.bias": (EXPERTS,),
    }
    return Model(config, {**_PLAIN, **biases, **plain}, ATTENTION, stacks)


def llama4(inner: int = 96) -> Model:
    """Experts of each layer in two stacks, and one that all tokens go through."""
    config = {
        "architectures": ["Llama4ForCausalLM"],
        "model_type": "llama4_text",
        "intermediate_size": inner,
        "intermediate_size_mlp": inner,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 1,
        **_SIZES,
    }
    prefix = f"{BLOCK}.feed_forward"
    shapes = {"gate_proj": (inner, WIDTH), "up_proj": (inner, WIDTH), "down_proj": (WIDTH, inner)}
    shared = {f"{prefix}.shared_expert.{name}": shape for name, shape in shapes.items()}
    plain = {**_PLAIN, f"{prefix}.router.weight": (EXPERTS, WIDTH)}
    return Model(config, plain, {**ATTENTION, **shared}, _stacks(f"{prefix}.experts", inner))


def _stacks(prefix: str, inner: int) -> dict[str, tuple[int, int, int]]:
    return {f"{prefix}.gate_up_proj": (EXPERTS, 2 * inner, WIDTH), f"{prefix}.down_proj": (EXPERTS, WIDTH, inner)}


LLAMA = llama()
LAYERS = LLAMA.layers
