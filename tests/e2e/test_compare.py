"""`steelyard.compare`: one model by several recipes."""

import pytest
import torch
from torch import nn

import steelyard
from steelyard.errors import RecipeError, SteelyardError, TargetError
from steelyard.recipes import NVFP4BlockScaling


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).eval()


def test_errors_and_shares_are_those_of_each_recipe(tmp_path):
    model, batches = make_model(), [torch.randn(16, 64) for _ in range(2)]
    comparison = steelyard.compare(model, ["mxfp8", NVFP4BlockScaling()], batches, overrides={"2": None})
    assert [net.name for net in comparison.nets] == ["mxfp8", "nvfp4"]
    for net, recipe in zip(comparison.nets, ("mxfp8", "nvfp4"), strict=True):
        with torch.no_grad():
            wanted = torch.cat([model(x) for x in batches]).double()
            compiled = steelyard.compile(model, recipe, overrides={"2": None})
            found = torch.cat([compiled(x) for x in batches]).double()
        assert net.relative_error == pytest.approx(((found - wanted).norm() / wanted.norm()).item(), rel=1e-6)
        assert net.flops_share == 0.5
        assert net.seconds > 0
        assert [gemm.relative_error is None for gemm in net.gemms] == [False, True]
    # The model is one, and so is its time.
    assert len({net.seconds_high_precision for net in comparison.nets}) == 1
    # MXFP8: a code per value and a scale per 32; the other layer and the biases stay in float32.
    rest = 4 * (128 + 64 * 128 + 64)
    assert comparison.nets[0].weights == 128 * 64 + 128 * 2 + rest
    assert "MB" in str(comparison).splitlines()[-1]
    assert comparison.page(tmp_path / "compare.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("recipes", "batches", "options", "error", "message"),
    [
        ("mxfp8", [torch.randn(4, 64)], {}, RecipeError, "must be a list of recipes"),
        ([], [torch.randn(4, 64)], {}, RecipeError, "must be a list of recipes"),
        (["mxfp8", "fp3"], [torch.randn(4, 64)], {}, RecipeError, "recipe must be"),
        (["mxfp8"], torch.randn(4, 64), {}, RecipeError, "batches must be a list"),
        (["mxfp8"], [], {}, SteelyardError, "at least one batch"),
        (["mxfp8"], [torch.randn(4, 64)], {"weights": "quantized"}, RecipeError, "share their model"),
        (["mxfp8"], [torch.randn(4, 64)], {"target": "cuda:sm_90a"}, TargetError, "compiled for the CPU"),
    ],
)
def test_what_cannot_be_compared_is_refused(recipes, batches, options, error, message):
    with pytest.raises(error, match=message):
        steelyard.compare(make_model(), recipes, batches, **options)
