"""Models of transformers with experts: each trains in one graph, its experts quantized."""

import copy

import pytest
import torch
from architectures import ARCHITECTURES

import steelyard
from steelyard.tensor import QuantizedStack

MODELS = {
    "mixtral, mixture of experts": (),
    "gpt oss, attention sinks and experts": (),
    "qwen3 mixture of experts": (pytest.mark.slow,),
    "deepseek v3, latent attention and experts": (pytest.mark.slow,),
}


def make(name):
    model, arguments = ARCHITECTURES[name].make()
    return model.train(), arguments


# By recipe, how far a gradient of experts may be from that in high precision. Tokens whose expert in the next layer is
# another one, as those of fp8-row are here, change it by more than rounding does.
OTHER_RECIPES = {"fp8-delayed": 0.25, "fp8-current": 0.2, "fp8-row": 0.4, "fp8-block": 0.2, "nvfp4": 0.7, "mxfp4": 0.7}
TRAINED = [
    *(pytest.param(name, "mxfp8", 0.2, marks=marks, id=f"{name}, mxfp8") for name, marks in MODELS.items()),
    *(
        pytest.param(name, recipe, most, marks=pytest.mark.slow, id=f"{name}, {recipe}")
        for name, recipes in (
            ("mixtral, mixture of experts", OTHER_RECIPES),
            ("gpt oss, attention sinks and experts", ("fp8-delayed", "nvfp4")),
        )
        for recipe, most in OTHER_RECIPES.items()
        if recipe in recipes
    ),
]


@pytest.mark.every(2)
@pytest.mark.parametrize(("name", "recipe", "most"), TRAINED)
def test_a_model_trains_in_one_graph(name, recipe, most):
    model, arguments = make(name)
    # Only experts, so that no error of another layer sends a token elsewhere.
    net = steelyard.compile(model, recipe, overrides={"*.experts": recipe, "*": None}, blocks=False)
    loss = net(**arguments, labels=arguments["input_ids"]).loss
    loss.backward()
    found = {key: parameter.grad.clone() for key, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    exact = model(**arguments, labels=arguments["input_ids"]).loss
    exact.backward()

    rows = net.explain().rows
    quantized = {(row.layer, row.kind) for row in rows if row.is_quantized}
    experts = [key for key, parameter in model.named_parameters() if parameter.dim() == 3]
    assert quantized == {(layer, kind) for layer in experts for kind in ("fprop", "dgrad", "wgrad")}
    assert not [row for row in rows if "outside of compiled graphs" in row.reason]
    torch.testing.assert_close(loss, exact, rtol=0.05, atol=0)
    first = experts[0]
    difference = (found[first] - dict(model.named_parameters())[first].grad).norm()
    assert 0 < difference < most * found[first].norm()


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("recipe", ["mxfp8", *OTHER_RECIPES, "nvfp4/mxfp8", "mxfp4/none"])
@pytest.mark.parametrize("name", MODELS)
def test_stored_experts_give_the_bits_of_cached_ones(name, recipe):
    model, arguments = ARCHITECTURES[name].make()
    expected = steelyard.compile(copy.deepcopy(model).eval(), recipe)(**arguments).logits
    net = steelyard.compile(model.eval(), recipe, weights="quantized")
    assert all(torch.equal(net(**arguments).logits, expected) for _ in range(2))
    experts = {key: parameter for key, parameter in model.named_parameters() if parameter.dim() == 3}
    assert experts
    assert all(isinstance(parameter, QuantizedStack) for parameter in experts.values())
    assert net.memory()["quantized_weights"] == 0
    other = steelyard.compile(ARCHITECTURES[name].make()[0].eval(), recipe, weights="quantized")
    other.load_state_dict(net.state_dict())
    assert torch.equal(other(**arguments).logits, expected)
    plain = steelyard.plain_state_dict(net.state_dict())
    assert all(torch.equal(plain[key], parameter.dequantize()) for key, parameter in experts.items())


@pytest.mark.every(2)
@torch.no_grad()
@pytest.mark.parametrize(
    ("implementation", "reason"),
    [("eager", "torch runs a loop over experts"), ("batched_mm", "the weights of experts are copied for each token")],
)
def test_other_implementations_have_rows_that_name_the_remedy(implementation, reason):
    model, arguments = ARCHITECTURES["mixtral, mixture of experts"].make()
    model.set_experts_implementation(implementation)
    net = steelyard.compile(model, "mxfp8")
    net(**arguments)
    rows = [row for row in net.explain().rows if row.layer.endswith("experts")]
    assert len(rows) == 2 * len(model.model.layers)
    assert all(reason in row.reason and '"grouped_mm"' in row.reason for row in rows)
