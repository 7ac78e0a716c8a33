"""Models of transformers with experts: each trains in one graph, its experts quantized."""

import pytest
import torch
from architectures import ARCHITECTURES

import steelyard

MODELS = {
    "mixtral, mixture of experts": (),
    "gpt oss, attention sinks and experts": (),
    "qwen3 mixture of experts": (pytest.mark.slow,),
    "deepseek v3, latent attention and experts": (pytest.mark.slow,),
}


def make(name):
    model, arguments = ARCHITECTURES[name].make()
    return model.train(), arguments


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks, id=name) for name, marks in MODELS.items()])
def test_a_model_trains_in_one_graph(name):
    model, arguments = make(name)
    # Only experts, so that no error of another layer sends a token elsewhere.
    net = steelyard.compile(model, "mxfp8", overrides={"*.experts": "mxfp8", "*": None}, blocks=False)
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
    assert 0 < difference < 0.2 * found[first].norm()


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
