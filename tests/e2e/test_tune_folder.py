"""What `steelyard.tune` keeps in a folder is used again by the same call, and by no other."""

import copy
import json

import pytest
import torch
from torch import nn

import steelyard
from steelyard import recipes
from steelyard.tuning import costs, tune
from steelyard.tuning.gptq import Options

FORMATS = ["nvfp4-4over6", "mxfp8"]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32)).eval()


@pytest.fixture
def batches():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(16, 32, generator=generator) for _ in range(4)]


@pytest.fixture
def measured(monkeypatch):
    """Counts how often scores are measured, and by which batches."""
    found, by_gradient = [], tune.by_gradient

    def count(*arguments):
        found.append(arguments)
        return by_gradient(*arguments)

    monkeypatch.setattr(tune, "by_gradient", count)
    return found


def tuned(model, batches, folder, **arguments):
    return steelyard.tune(model, batches, **{"bits": 6, "formats": FORMATS, "folder": folder, **arguments})


def are_equal(ours, theirs):
    one, other = (steelyard.plain_state_dict(each.model.state_dict()) for each in (ours, theirs))
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_the_same_call_uses_what_is_kept(model, batches, tmp_path, measured):
    first = tuned(model, batches, tmp_path)
    again = tuned(copy.deepcopy(model), [batch.clone() for batch in batches], tmp_path)
    assert len(measured) == 1
    assert again.recipe == first.recipe
    assert are_equal(again, first)


def with_statistics(model):
    model[1].running_mean += 3 * torch.randn(64)
    return model


def with_rows_exchanged(model):
    """The sums of all parameters stay as they are."""
    model[0].weight.data = model[0].weight.data.flip(0)
    return model


def with_another_activation(model):
    model[2] = nn.GELU()
    return model


@pytest.mark.parametrize("change", [with_statistics, with_rows_exchanged, with_another_activation])
def test_other_models_are_measured_anew(model, batches, tmp_path, measured, change):
    tuned(model, batches, tmp_path)
    other = change(copy.deepcopy(model))
    ours = tuned(other, batches, tmp_path)
    assert len(measured) == 2
    assert are_equal(ours, tuned(other, batches, None))


@pytest.mark.parametrize(
    "arguments",
    [
        {"ignore": ["0"]},
        {"seed": 1},
        {"formats": ["nvfp4-4over6", recipes.MXFP8BlockScaling()]},
        {"formats": ["nvfp4-4over6", recipes.MXFP8BlockScaling(activations="none")]},
    ],
    ids=["ignore", "seed", "a recipe", "another recipe of the same name"],
)
def test_other_calls_are_measured_anew(model, batches, tmp_path, measured, arguments):
    first = {"bits": 9, "formats": ["nvfp4-4over6", recipes.MXFP8BlockScaling(scale_rule="floor")]}
    tuned(model, batches, tmp_path, **first)
    ours = tuned(model, batches, tmp_path, **{**first, **arguments})
    assert len(measured) == 2
    assert are_equal(ours, tuned(model, batches, None, **{**first, **arguments}))


def test_batches_of_another_shape_are_others(tmp_path, measured):
    torch.manual_seed(0)
    model, batches = nn.Sequential(nn.Linear(32, 32)).eval(), [torch.randn(4, 4, 32) for _ in range(4)]
    tuned(model, batches, tmp_path)
    tuned(model, [batch.reshape(2, 8, 32) for batch in batches], tmp_path)
    tuned(model, [(batch,) for batch in batches], tmp_path)
    assert len(measured) == 3


def test_costs_are_those_of_as_many_threads(model, batches, tmp_path, monkeypatch):
    made = []

    def measure(model, batch, shapes, formats, dtype):
        made.append(torch.get_num_threads())
        layers = {costs.key(shape): {**dict.fromkeys(formats, 1.0), "none": 2.0} for shape in shapes}
        return {"layers": layers, "model": 5.0}

    monkeypatch.setattr(costs, "measure", measure)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 1):
            torch.set_num_threads(count)
            tuned(model, batches, tmp_path, bits=None, speed=1.1)
    finally:
        torch.set_num_threads(threads)
    assert made == [1, 2]


@pytest.mark.parametrize("name", ["scores.json", "rest.pt"])
def test_files_that_were_cut_off_are_made_again(model, batches, tmp_path, name):
    first = tuned(model, batches, tmp_path)
    (file,) = tmp_path.rglob(name)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert are_equal(tuned(model, batches, tmp_path), first)
    if name == "scores.json":
        assert json.loads(file.read_text()) == json.loads(whole)
    assert not list(tmp_path.rglob("*.unfinished"))


def test_options_have_their_own_codes(model, batches, tmp_path):
    first = tuned(model, batches, tmp_path)
    other = tuned(model, batches, tmp_path, options=Options(damping=0.5))
    assert not are_equal(other, first)
    assert are_equal(other, tuned(model, batches, None, options=Options(damping=0.5)))
