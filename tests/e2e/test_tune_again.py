"""`steelyard.tune` gives the same bits in another process, and compares layers as it is asked to."""

import hashlib
import subprocess
import sys

import pytest
import torch
from torch import nn

import steelyard
from steelyard import recipes
from steelyard.tuning.batches import divergence
from steelyard.tuning.emulation import rounded_input
from steelyard.tuning.grids import input_scheme, searched

FORMATS = ["nvfp4-4over6", "mxfp8", "none"]
COSTS = {
    "model": 10.0,
    "layers": {
        "16x64x32": {"nvfp4-4over6": 1.0, "mxfp8": 2.0, "none": 4.0},
        "16x32x64": {"nvfp4-4over6": 1.5, "mxfp8": 2.0, "none": 4.0},
    },
}


def small():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)).eval()
    generator = torch.Generator().manual_seed(1)
    return model, [torch.randn(16, 32, generator=generator) for _ in range(4)]


def digest():
    """Of the codes and the recipe for a speed by a table of costs."""
    model, batches = small()
    tuned, recipe = steelyard.tune(model, batches, speed=1.9, formats=FORMATS, costs=COSTS, seed=3)
    found = hashlib.sha256(repr((recipe.to_dict()["overrides"], recipe.about)).encode())
    for name, value in sorted(steelyard.plain_state_dict(tuned.state_dict()).items()):
        found.update(name.encode() + value.numpy().tobytes())
    return found.hexdigest()


def test_another_process_gives_the_same_bits():
    threads = torch.get_num_threads()
    code = f"import torch; torch.set_num_threads({threads}); exec(open({__file__!r}).read()); print(digest())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == digest()


def test_layers_are_compared_by_the_divergence_of_each_alone():
    model, batches = small()
    recipe = steelyard.tune(model, batches, bits=6.5, formats=FORMATS, sensitivity="kl").recipe
    # The first half of those that do not judge.
    some = batches[:2]
    for layer in ("0", "2"):
        for name in FORMATS[:2]:
            own, found = recipes.get(name).settled(trains=False), []
            linear = model.get_submodule(layer)
            weight = searched(linear.weight.data, own)
            for x in some:
                with torch.no_grad():
                    given = x if layer == "0" else torch.relu(model[0](x))
                    made = nn.functional.linear(rounded_input(given, input_scheme(own)), weight, linear.bias)
                    made = made if layer == "2" else model[2](torch.relu(made))
                    found.append(divergence(made, model(x), is_logits=False))
            assert recipe.about["scores"][layer][name] == pytest.approx(sum(found) / 2, rel=1e-4)
        assert recipe.about["scores"][layer]["none"] == 0
    assert recipe.about["tried"][-1]["bits"] <= 6.5
