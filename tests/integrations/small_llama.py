"""The smallest Llama with grouped-query attention."""

from transformers import LlamaConfig, LlamaForCausalLM


def make_small_llama(**options) -> LlamaForCausalLM:
    """A model of one layer with random weights; options are those of its configuration."""
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 64}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**(sizes | layers | options)))
