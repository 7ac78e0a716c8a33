"""What `weight_tiles=None` becomes in a net: decided once, when it is compiled."""

import copy
import pickle

import pytest
import torch
from oracle import assert_follows, make_oracle
from torch import nn

import steelyard
from steelyard.driver import program_cache
from steelyard.driver.settings import make_settings, settle
from steelyard.recipes import MXFP8BlockScaling, NVFP4BlockScaling

X = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
IN_BLOCKS = "weights: nvfp4 in 1x16, for inference: "
IN_TILES = "weights: nvfp4 in 16x16, for training: the model was in training mode at steelyard.compile"


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 48), nn.Linear(48, 64))


def formats(net, kind="fprop") -> list[str]:
    """The format of the weight of each layer."""
    return [row.rhs for row in net.explain().rows if row.kind == kind]


@torch.no_grad()
def output_of(net) -> torch.Tensor:
    return net(X)


@pytest.mark.parametrize("is_frozen", [False, True], ids=["eval mode", "frozen"])
def test_a_net_for_inference_has_weights_in_blocks(is_frozen):
    model = make_model().requires_grad_(False) if is_frozen else make_model().eval()
    net = steelyard.compile(model, "nvfp4")
    result = output_of(net)
    assert formats(net) == ["e2m1 1x16", "e2m1 1x16"]
    why = "no parameter required a gradient" if is_frozen else "the model was in eval mode"
    assert net.explain().notes == [f"{IN_BLOCKS}{why} at steelyard.compile"]
    assert torch.equal(result, output_of(steelyard.compile(make_model(), NVFP4BlockScaling(weight_tiles=False))))
    assert_follows(result, make_oracle(make_model().eval(), "nvfp4")(X), make_model()(X))


def test_a_net_that_trains_has_weights_in_tiles_and_keeps_them_in_evaluation():
    net = steelyard.compile(make_model(), "nvfp4")
    before = net(X)
    before.sum().backward()
    assert torch.equal(before, output_of(net.eval().requires_grad_(False)))
    assert set(formats(net) + formats(net, "dgrad")) == {"e2m1 16x16"}
    assert net.explain().notes == [IN_TILES]
    assert torch.equal(before, output_of(steelyard.compile(make_model(), NVFP4BlockScaling(weight_tiles=True))))


def test_a_net_for_inference_keeps_blocks_when_it_is_trained_or_copied_after_all():
    net = steelyard.compile(make_model().eval(), "nvfp4-4over6").train()
    for each in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        each(X).sum().backward()
        assert formats(each) == ["e2m1 1x16", "e2m1 1x16"]
        assert formats(each, "dgrad") == ["e2m1 1x16"]
        assert each.explain().notes[0].startswith("weights: nvfp4-4over6 in 1x16, for inference")


def test_overrides_are_decided_on_too_and_what_a_user_chose_stays():
    overrides = {"0": NVFP4BlockScaling(weight_tiles=True), "1": MXFP8BlockScaling(weight_tiles=None)}
    for model, block in ((make_model().eval(), "1x32"), (make_model(), "32x32")):
        net = steelyard.compile(model, "mxfp8", overrides=overrides)
        output_of(net)
        assert formats(net) == ["e2m1 16x16", f"e4m3 {block}"]
        assert net.explain().notes[0].startswith(f"weights: mxfp8 in {block}, for ")
    assert steelyard.compile(make_model(), "mxfp8")._steelyard.backend.settings.settled == ""


def test_the_backend_of_torch_compile_has_no_net_and_uses_tiles():
    compiled = torch.compile(make_model().eval(), backend="steelyard", options={"recipe": "nvfp4"})
    assert torch.equal(output_of(compiled), output_of(steelyard.compile(make_model(), "nvfp4")))


def test_programs_on_disk_are_those_of_the_form_and_not_of_its_reason():
    settings = make_settings("nvfp4")
    models = make_model(), make_model().eval(), make_model().requires_grad_(False)
    train, inference, frozen = (program_cache._key(b"", settle(settings, model)) for model in models)
    assert inference == frozen != train


@pytest.mark.parametrize("recipe", ["nvfp4", "nvfp4-4over6"])
def test_weights_that_were_saved_in_tiles_are_read_as_they_are(recipe):
    saved = steelyard.compile(make_model(), recipe, weights="quantized")
    expected = output_of(saved)
    state = saved.state_dict()
    net = steelyard.compile(make_model().eval(), recipe, weights="quantized")
    net.load_state_dict(state)
    assert torch.equal(output_of(net), expected)
    assert torch.equal(output_of(net), expected)
    # As they are stored, whatever a net for inference would choose.
    assert formats(net) == ["e2m1 16x16", "e2m1 16x16"]
    now = net.state_dict()
    assert all(torch.equal(now[name], state[name]) for name in state if not name.endswith(".format"))
