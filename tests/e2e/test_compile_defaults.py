"""Layers that stay in high precision by default: routers, and those with few in-features."""

import pytest
import torch
from oracle import assert_follows, make_oracle
from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM, SamConfig, SamModel

import steelyard

RANKED = "its result is ranked, like a router's: a small error could change the choice"


def make_mixtral() -> tuple[nn.Module, dict]:
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=101,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        initializer_range=0.1,
    )
    return MixtralForCausalLM(config).eval(), {"input_ids": torch.randint(0, 101, (2, 9))}


def make_sam() -> tuple[nn.Module, dict]:
    torch.manual_seed(0)
    sizes = {"image_size": 32, "patch_size": 8}
    vision = {"hidden_size": 32, "output_channels": 32, "num_hidden_layers": 1, "num_pos_feats": 16, "mlp_dim": 64}
    config = SamConfig(
        vision_config=sizes | vision | {"num_attention_heads": 2, "global_attn_indexes": [0]},
        prompt_encoder_config=sizes | {"hidden_size": 32, "image_embedding_size": 4, "mask_input_channels": 4},
        mask_decoder_config={
            "num_hidden_layers": 1,
            "hidden_size": 32,
            "mlp_dim": 64,
            "num_attention_heads": 2,
            "iou_head_hidden_dim": 32,
        },
    )
    arguments = {"pixel_values": torch.randn(1, 3, 32, 32), "input_points": torch.tensor([[[[8.0, 20.0]]]])}
    return SamModel(config).eval(), arguments


def reasons(net, layer: str) -> dict[str, str]:
    return {row.kind: row.reason for row in net.explain().rows if row.layer == layer}


@pytest.mark.slow
@torch.no_grad()
def test_the_position_embedding_of_sam_stays_in_high_precision():
    model, arguments = make_sam()
    embeddings = ["shared_image_embedding", "prompt_encoder.shared_embedding"]
    net, asked = (steelyard.compile(model, "mxfp8", overrides=o) for o in (None, dict.fromkeys(embeddings, "mxfp8")))
    exact, got, worse = (m(**arguments).pred_masks for m in (model, net, asked))
    for layer in embeddings:
        assert reasons(net, layer) == {"fprop": "the layer has 2 in-features, fewer than 16"}
        assert reasons(asked, layer) == {"fprop": ""}
    # The sine of a product of two numbers: its error is as large as the result.
    assert (got - exact).norm() < 0.3 * (worse - exact).norm()


def test_routers_of_mixtral_stay_in_high_precision():
    model, arguments = make_mixtral()
    net = steelyard.compile(model, "mxfp8")
    with torch.no_grad():
        net(**arguments)
    assert reasons(net, "model.layers.0.mlp.gate") == {"fprop": RANKED}
    assert reasons(net, "model.layers.0.self_attn.q_proj") == {"fprop": ""}
    assert reasons(net, "lm_head") == {"fprop": ""}


@pytest.mark.slow
def test_routers_of_mixtral_stay_in_high_precision_in_training():
    model, arguments = make_mixtral()
    net = steelyard.compile(model.train(), "mxfp8")
    net(**arguments, labels=arguments["input_ids"]).loss.backward()
    assert reasons(net, "model.layers.0.mlp.gate") == dict.fromkeys(("fprop", "dgrad", "wgrad"), RANKED)


class Router(nn.Module):
    """Scores that are ranked after a bias, as in group-limited routing, beside a layer of the same input and shape."""

    def __init__(self, rank):
        super().__init__()
        self.gate = nn.Linear(48, 6)
        self.value = nn.Linear(48, 6)
        self.correction = nn.Parameter(torch.randn(6))
        self.rank = rank

    def forward(self, x, with_scores=False):
        scores = (self.gate(x).float().sigmoid() + self.correction).view(-1, 6)
        chosen = self.rank(scores)
        values = self.value(x).view(-1, 6).gather(1, chosen)
        return values * scores.gather(1, chosen) if with_scores else values


RANKINGS = {
    "topk": lambda scores: scores.topk(2).indices,
    "sort": lambda scores: scores.sort(descending=True).indices[:, :2],
    "argsort": lambda scores: scores.argsort()[:, :2],
    "argmax": lambda scores: scores.argmax(-1, keepdim=True),
    "max": lambda scores: scores.max(-1, keepdim=True).indices,
    "grouped": lambda scores: scores.view(-1, 2, 3).topk(2).values.sum(-1).argmax(-1, keepdim=True),
}


@pytest.mark.parametrize("ranking", RANKINGS)
def test_every_way_to_rank_is_found(ranking):
    torch.manual_seed(0)
    model, x = Router(RANKINGS[ranking]).eval(), torch.randn(3, 5, 48)
    net = steelyard.compile(model, "mxfp8")
    with torch.no_grad():
        assert_follows(net(x), make_oracle(model, "mxfp8", {"gate": None})(x), model(x))
    assert reasons(net, "gate") == {"fprop": RANKED}
    assert reasons(net, "value") == {"fprop": ""}


@pytest.mark.parametrize(("overrides", "reason"), [({}, RANKED), ({"g*": "mxfp8"}, "")])
def test_a_router_is_left_alike_in_forward_and_backward(overrides, reason):
    torch.manual_seed(0)
    net = steelyard.compile(Router(RANKINGS["topk"]), "mxfp8", overrides=overrides)
    # What is ranked has no gradient, so the scores get one of their own.
    x = torch.randn(3, 5, 48, requires_grad=True)
    net(x, with_scores=True).sum().backward()
    assert reasons(net, "gate") == dict.fromkeys(("fprop", "dgrad", "wgrad"), reason)
    assert reasons(net, "value") == dict.fromkeys(("fprop", "dgrad", "wgrad"), "")


@pytest.mark.parametrize("tokens", [1, 3, 64])
def test_in_features_are_those_of_the_weight(tokens):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(15, 16), nn.Linear(16, 8))
    net = steelyard.compile(model, "mxfp8")
    net(torch.randn(tokens, 15, requires_grad=True)).sum().backward()
    narrow = "the layer has 15 in-features, fewer than 16"
    assert reasons(net, "0") == dict.fromkeys(("fprop", "dgrad", "wgrad"), narrow)
    assert reasons(net, "1") == dict.fromkeys(("fprop", "dgrad", "wgrad"), "")
