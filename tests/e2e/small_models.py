"""Small models with random weights, example arguments for each, and the layers that a recipe quantizes."""

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ViTConfig,
    ViTModel,
)

VOCABULARY = 101


def make_mlp() -> tuple[nn.Module, dict]:
    """Sizes that no block of any recipe divides."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(37, 131), nn.GELU(), nn.Linear(131, 70), nn.GELU(), nn.Linear(70, 10))
    return model.eval(), {"input": torch.randn(5, 37)}


def make_gpt2() -> tuple[nn.Module, dict]:
    """Conv1D layers, and a head tied to the embedding."""
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=32,
        n_embd=100,
        n_layer=2,
        n_head=4,
        initializer_range=0.1,
        bos_token_id=0,
        eos_token_id=0,
    )
    return _with_tokens(GPT2LMHeadModel, config)


def make_llama() -> tuple[nn.Module, dict]:
    """Two query heads share a key head."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=96,
        intermediate_size=200,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.1,
        eos_token_id=None,
    )
    return _with_tokens(LlamaForCausalLM, config)


def make_bert() -> tuple[nn.Module, dict]:
    """Odd sizes: the last byte of FP4 codes is half full."""
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=75,
        intermediate_size=133,
        num_hidden_layers=2,
        num_attention_heads=5,
        max_position_embeddings=32,
        initializer_range=0.1,
    )
    return _with_tokens(BertModel, config)


def make_vit() -> tuple[nn.Module, dict]:
    """17 tokens per picture."""
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=96,
        intermediate_size=144,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=20,
        patch_size=5,
        initializer_range=0.1,
    )
    return ViTModel(config).eval(), {"pixel_values": torch.randn(2, 3, 20, 20)}


def _with_tokens(model_class: type, config) -> tuple[nn.Module, dict]:
    torch.manual_seed(0)
    return model_class(config).eval(), {"input_ids": torch.randint(0, VOCABULARY, (2, 9))}


def _layers(prefix: str, names: str, *others: str) -> list[str]:
    return [f"{prefix}.{i}.{name}" for i in range(2) for name in names.split()] + list(others)


MODELS = {"mlp": make_mlp, "gpt2": make_gpt2, "llama": make_llama, "bert": make_bert, "vit": make_vit}
LINEAR_LAYERS = {
    "mlp": ["0", "2", "4"],
    "gpt2": _layers("transformer.h", "attn.c_attn attn.c_proj mlp.c_fc mlp.c_proj", "lm_head"),
    "llama": _layers(
        "model.layers",
        "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj mlp.gate_proj mlp.up_proj mlp.down_proj",
        "lm_head",
    ),
    "bert": _layers(
        "encoder.layer",
        "attention.self.query attention.self.key attention.self.value attention.output.dense intermediate.dense "
        "output.dense",
        "pooler.dense",
    ),
    "vit": _layers(
        "layers",
        "attention.q_proj attention.k_proj attention.v_proj attention.o_proj mlp.fc1 mlp.fc2",
        "pooler.dense",
    ),
}


def quantized_layers(net) -> list[str]:
    """The layers of a net whose GEMMs are quantized, one entry per GEMM."""
    return [row.layer for row in net.explain().rows if not row.reason]
