"""Architectures of other libraries with small random weights, and arguments for a call of each."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

VOCABULARY = 101
BATCH, TOKENS = 2, 24


@dataclass(frozen=True)
class Architecture:
    """A class of a library with a configuration, and what it is called with."""

    model: str
    """The name of the class."""
    config: str
    """The name of the configuration's class; empty for a class of diffusers, which takes the sizes itself."""
    sizes: dict[str, Any]
    inputs: Callable[[], dict[str, Any]]
    library: str = "transformers"
    nested: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    """Configurations inside the configuration, each with its class and its sizes."""

    def make(self) -> tuple[nn.Module, dict[str, Any]]:
        """The model, ready for inference, and the arguments of a call."""
        torch.manual_seed(0)
        library = importlib.import_module(self.library)
        model_class = getattr(library, self.model)
        if not self.config:
            return model_class(**self.sizes).eval(), self.inputs()
        nested = {name: getattr(library, kind)(**sizes) for name, (kind, sizes) in self.nested.items()}
        config = getattr(library, self.config)(**self.sizes, **nested)
        return model_class(config).eval(), self.inputs()


def tokens(name: str = "input_ids", count: int = TOKENS) -> dict[str, Any]:
    # The first ids mean padding, begin and end in many configurations.
    return {name: torch.randint(5, VOCABULARY, (BATCH, count))}


def uncached_tokens() -> dict[str, Any]:
    return tokens() | {"use_cache": False}


def masked_tokens() -> dict[str, Any]:
    """The second row ends in padding."""
    mask = torch.ones(BATCH, TOKENS, dtype=torch.int64)
    mask[1, -5:] = 0
    return tokens() | {"attention_mask": mask}


def tokens_of_both_sides() -> dict[str, Any]:
    return tokens() | tokens("decoder_input_ids", 9) | {"use_cache": False}


def picture(size: int = 32, channels: int = 3) -> Callable[[], dict[str, Any]]:
    return lambda: {"pixel_values": torch.randn(BATCH, channels, size, size)}


def sound(length: int = 800) -> Callable[[], dict[str, Any]]:
    return lambda: {"input_values": torch.randn(BATCH, length)}


WIDTH, HIDDEN, LAYERS, HEADS = 64, 144, 2, 4
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = COMMON | {"num_key_value_heads": 2}
VISION = {
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "image_size": 32,
    "patch_size": 8,
    "initializer_range": 0.1,
}
# The sizes of Wav2Vec2 and its kin: a stack of convolutions before the encoder.
SOUND = COMMON | {
    "conv_dim": (32, 32),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 4, "num_experts": 4}
# Bart and its kin name the sizes of encoder and decoder apart.
BOTH_SIDES = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": HIDDEN,
    "decoder_ffn_dim": HIDDEN,
    "max_position_embeddings": 64,
    "init_std": 0.1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def decoder(family: str, **sizes) -> Architecture:
    return Architecture(f"{family}ForCausalLM", f"{family}Config", GROUPED | sizes, uncached_tokens)


def encoder(family: str, inputs: Callable = masked_tokens, **sizes) -> Architecture:
    return Architecture(f"{family}Model", f"{family}Config", COMMON | sizes, inputs)


TEXT_DECODERS = {
    "llama": decoder("Llama"),
    "mistral, sliding window": decoder("Mistral", sliding_window=8),
    "mixtral, mixture of experts": decoder("Mixtral", **EXPERTS),
    "qwen2, biases on queries and keys": decoder("Qwen2"),
    "qwen3, norms on queries and keys": decoder("Qwen3", head_dim=16),
    "qwen3 mixture of experts": decoder("Qwen3Moe", head_dim=16, moe_intermediate_size=48, **EXPERTS),
    "gemma2, soft caps": decoder("Gemma2", head_dim=16, sliding_window=8),
    "gemma3": Architecture(
        "Gemma3ForCausalLM", "Gemma3TextConfig", GROUPED | {"head_dim": 16, "sliding_window": 8}, uncached_tokens
    ),
    "phi, parallel attention and MLP": decoder("Phi"),
    "phi3, fused projections": decoder("Phi3"),
    "falcon, one key head": decoder("Falcon", multi_query=True, parallel_attn=True),
    "gpt2, transposed weights": Architecture(
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS}
        | {"initializer_range": 0.1, "bos_token_id": 1, "eos_token_id": 2},
        uncached_tokens,
    ),
    "gpt neox, parallel residual": decoder("GPTNeoX", use_parallel_residual=True),
    "gptj, rotary halves": Architecture(
        "GPTJForCausalLM",
        "GPTJConfig",
        {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS}
        | {"rotary_dim": 8, "initializer_range": 0.1, "bos_token_id": 1, "eos_token_id": 2},
        uncached_tokens,
    ),
    "opt": decoder("OPT", ffn_dim=HIDDEN, word_embed_proj_dim=WIDTH, init_std=0.1),
    "bloom, ALiBi": decoder("Bloom", n_layer=LAYERS, n_head=HEADS),
    "mpt": decoder("Mpt", d_model=WIDTH, n_heads=HEADS, n_layers=LAYERS, max_seq_len=64),
    "gpt bigcode, one key head": decoder(
        "GPTBigCode", n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=64, multi_query=True
    ),
    "deepseek v3, latent attention and experts": decoder(
        "DeepseekV3",
        moe_intermediate_size=48,
        q_lora_rank=32,
        kv_lora_rank=32,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        n_routed_experts=4,
        n_group=2,
        topk_group=1,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
        num_key_value_heads=4,
    ),
    "cohere, parallel block": decoder("Cohere", logit_scale=1.0),
    "olmo2, norms after": decoder("Olmo2"),
    "starcoder2": decoder("Starcoder2"),
    "stablelm, partial rotary": decoder("StableLm"),
    "glm4": decoder("Glm4", head_dim=16),
    "granite, multipliers": decoder("Granite"),
    "gpt oss, attention sinks and experts": decoder(
        "GptOss", head_dim=16, sliding_window=8, num_local_experts=4, num_experts_per_tok=2
    ),
    "mamba": Architecture(
        "MambaForCausalLM",
        "MambaConfig",
        {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "state_size": 16}
        | {"initializer_range": 0.1, "time_step_rank": 16},
        uncached_tokens,
    ),
    "mamba2": Architecture(
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "state_size": 16}
        | {"num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 8, "initializer_range": 0.1},
        uncached_tokens,
    ),
}

TEXT_ENCODERS = {
    "bert": encoder("Bert"),
    "roberta": encoder("Roberta"),
    "albert, one layer used twice": encoder("Albert", embedding_size=32),
    "electra": encoder("Electra", embedding_size=32),
    "distilbert": encoder("DistilBert", dim=WIDTH, n_layers=LAYERS, n_heads=HEADS, hidden_dim=HIDDEN),
    "mpnet": encoder("MPNet"),
    "deberta v2, relative positions": encoder("DebertaV2", relative_attention=True, pos_att_type="p2c|c2p"),
    "modernbert, local attention": encoder("ModernBert", local_attention=8, cls_token_id=1, sep_token_id=2),
    "xlnet, two relative terms": Architecture(
        "XLNetModel",
        "XLNetConfig",
        {"vocab_size": VOCABULARY, "d_model": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "d_inner": HIDDEN}
        | {"initializer_range": 0.1},
        lambda: tokens() | {"use_mems": False},
    ),
    "t5 encoder": Architecture(
        "T5EncoderModel",
        "T5Config",
        {"vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 16, "d_ff": HIDDEN, "num_layers": LAYERS, "num_heads": 4},
        masked_tokens,
    ),
}

ENCODER_DECODERS = {
    "t5": Architecture(
        "T5ForConditionalGeneration",
        "T5Config",
        {"vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 16, "d_ff": HIDDEN, "num_layers": LAYERS, "num_heads": 4},
        tokens_of_both_sides,
    ),
    "bart": Architecture("BartForConditionalGeneration", "BartConfig", BOTH_SIDES, tokens_of_both_sides),
    "marian": Architecture("MarianMTModel", "MarianConfig", BOTH_SIDES, tokens_of_both_sides),
}

VISION_MODELS = {
    "vit": Architecture("ViTModel", "ViTConfig", VISION, picture()),
    "deit": Architecture("DeiTModel", "DeiTConfig", VISION, picture()),
    "dinov2": Architecture("Dinov2Model", "Dinov2Config", VISION, picture()),
    "beit": Architecture("BeitModel", "BeitConfig", VISION | {"layer_scale_init_value": 1.0}, picture()),
    "siglip": Architecture("SiglipVisionModel", "SiglipVisionConfig", VISION, picture()),
    "swin, shifted windows": Architecture(
        "SwinModel",
        "SwinConfig",
        {"image_size": 32, "patch_size": 2, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
        | {"initializer_range": 0.1},
        picture(),
    ),
    "convnext": Architecture(
        "ConvNextModel",
        "ConvNextConfig",
        {"hidden_sizes": [32, 64], "depths": [1, 1], "num_stages": 2, "initializer_range": 0.1}
        | {"layer_scale_init_value": 1.0},
        picture(),
    ),
    "segformer": Architecture(
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [32, 64]}
        | {"patch_sizes": [7, 3], "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2]}
        | {"decoder_hidden_size": 32, "initializer_range": 0.1},
        picture(),
    ),
    "sam": Architecture(
        "SamModel",
        "SamConfig",
        {"initializer_range": 0.1},
        lambda: picture(32)() | {"input_points": torch.rand(BATCH, 1, 2, 2) * 32, "multimask_output": False},
        nested={
            "vision_config": (
                "SamVisionConfig",
                {"hidden_size": 32, "output_channels": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
                | {"image_size": 32, "patch_size": 8, "window_size": 2, "global_attn_indexes": [1], "mlp_dim": 64}
                | {"num_pos_feats": 16, "initializer_range": 0.1},
            ),
            "prompt_encoder_config": (
                "SamPromptEncoderConfig",
                {"hidden_size": 32, "image_size": 32, "patch_size": 8, "mask_input_channels": 4},
            ),
            "mask_decoder_config": (
                "SamMaskDecoderConfig",
                {"hidden_size": 32, "mlp_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
                | {"iou_head_hidden_dim": 32},
            ),
        },
    ),
}

AUDIO_MODELS = {
    "whisper": Architecture(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        BOTH_SIDES | {"num_mel_bins": 16, "max_source_positions": 30, "max_target_positions": 32},
        lambda: {"input_features": torch.randn(BATCH, 16, 60), "use_cache": False} | tokens("decoder_input_ids", 9),
    ),
    "wav2vec2": Architecture("Wav2Vec2Model", "Wav2Vec2Config", SOUND, sound()),
    "hubert": Architecture("HubertModel", "HubertConfig", SOUND, sound()),
    "audio spectrogram transformer": Architecture(
        "ASTModel",
        "ASTConfig",
        {name: size for name, size in VISION.items() if name != "image_size"}
        | {"max_length": 32, "num_mel_bins": 16, "frequency_stride": 8, "time_stride": 8},
        lambda: {"input_values": torch.randn(BATCH, 32, 16)},
    ),
}

MULTIMODAL_MODELS = {
    "clip": Architecture(
        "CLIPModel",
        "CLIPConfig",
        {"projection_dim": 32},
        lambda: tokens() | picture()(),
        nested={"text_config": ("CLIPTextConfig", COMMON), "vision_config": ("CLIPVisionConfig", VISION)},
    ),
    "llava, pictures among tokens": Architecture(
        "LlavaForConditionalGeneration",
        "LlavaConfig",
        {"image_token_id": 3, "vision_feature_layer": -1, "vision_feature_select_strategy": "default"},
        lambda: (
            {
                "input_ids": torch.cat([torch.full((BATCH, 16), 3), tokens(count=8)["input_ids"]], 1),
                "use_cache": False,
            }
            | picture()()
        ),
        nested={"text_config": ("LlamaConfig", GROUPED), "vision_config": ("CLIPVisionConfig", VISION)},
    ),
    "blip": Architecture(
        "BlipForConditionalGeneration",
        "BlipConfig",
        {"projection_dim": 32},
        lambda: tokens() | picture()(),
        nested={
            "text_config": ("BlipTextConfig", COMMON | {"encoder_hidden_size": WIDTH}),
            "vision_config": ("BlipVisionConfig", VISION),
        },
    ),
}

DIFFUSION_MODELS = {
    "stable diffusion UNet": Architecture(
        "UNet2DConditionModel",
        "",
        {"sample_size": 8, "block_out_channels": (32, 64), "layers_per_block": 1, "cross_attention_dim": 32}
        | {"down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"), "norm_num_groups": 8}
        | {"up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"), "attention_head_dim": 8},
        lambda: {
            "sample": torch.randn(BATCH, 4, 8, 8),
            "timestep": torch.tensor(10),
            "encoder_hidden_states": torch.randn(BATCH, 7, 32),
        },
        library="diffusers",
    ),
    "diffusion transformer": Architecture(
        "SD3Transformer2DModel",
        "",
        {"sample_size": 8, "patch_size": 2, "in_channels": 4, "num_layers": 2, "attention_head_dim": 16}
        | {"num_attention_heads": 4, "joint_attention_dim": 32, "caption_projection_dim": 64}
        | {"pooled_projection_dim": 48, "out_channels": 4, "pos_embed_max_size": 8},
        lambda: {
            "hidden_states": torch.randn(BATCH, 4, 8, 8),
            "encoder_hidden_states": torch.randn(BATCH, 7, 32),
            "pooled_projections": torch.randn(BATCH, 48),
            "timestep": torch.tensor([10.0, 20.0]),
        },
        library="diffusers",
    ),
}

ARCHITECTURES = (
    TEXT_DECODERS
    | TEXT_ENCODERS
    | ENCODER_DECODERS
    | VISION_MODELS
    | AUDIO_MODELS
    | MULTIMODAL_MODELS
    | DIFFUSION_MODELS
)
