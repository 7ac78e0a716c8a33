"""What `steelyard.tune` knows of times: measured here, or shipped for a target."""

import pytest
import torch
from torch import nn

import steelyard
from steelyard.tuning import costs as cost_tables
from steelyard.tuning.tune import table

FORMATS = ("nvfp4-4over6", "mxfp8", "none")


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)).eval()


@pytest.fixture
def batches():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(16, 32, generator=generator) for _ in range(4)]


def test_costs_are_measured_if_speed_is_a_goal(model, batches):
    random = torch.get_rng_state()
    recipe = steelyard.tune(model, batches, speed=0.001, formats=FORMATS).recipe
    assert torch.equal(torch.get_rng_state(), random)
    costs = recipe.about["costs"]
    assert costs["threads"] == torch.get_num_threads()
    assert set(costs["layers"]) == {"16x64x32", "16x32x64"}
    assert all(set(own) == set(FORMATS) and min(own.values()) > 0 for own in costs["layers"].values())
    last = recipe.about["tried"][-1]
    # Both layers and what is left of the model, with the formats that were chosen.
    names = {row["formats"]: row["speed"] for row in recipe.about["tried"]}
    for name in ("nvfp4-4over6", "mxfp8"):
        layers = costs["layers"].values()
        rest = max(0.0, costs["model"] - sum(own["none"] for own in layers))
        assert names[name] == pytest.approx(costs["model"] / (rest + sum(own[name] for own in layers)))
    assert last["speed"] >= 0.001
    assert "speed" in table(recipe).splitlines()[0]


@pytest.mark.parametrize("target", ["cpu-avx2", "cpu-avx512"])
def test_shipped_costs_of_a_cpu(model, batches, target):
    recipe = steelyard.tune(model, batches, bits=8.25, formats=FORMATS, costs=target).recipe
    costs = recipe.about["costs"]
    assert costs["target"] == target
    # Seconds per call, per number of the input, per multiplication and per number of the weight.
    per = cost_tables.shipped()[target]["seconds"]["nvfp4/nvfp4"]
    expected = per[0] + per[1] * 16 * 32 + per[2] * 16 * 64 * 32 + per[3] * 64 * 32
    assert costs["layers"]["16x64x32"]["nvfp4-4over6"] == pytest.approx(expected)
    # The model is its layers, as nothing is known of the rest.
    assert costs["model"] == pytest.approx(sum(own["none"] for own in costs["layers"].values()))
    # One row is bound by the bytes of the weight.
    step = cost_tables.for_target(target, [(1, 2048, 2048)], {"mxfp8": steelyard.recipes.get("mxfp8")})["layers"]
    assert all(seconds["mxfp8"] < seconds["none"] for seconds in step.values())
