"""What `steelyard.tune` refuses, before any work is done: errors say what must hold, what was found, what to do."""

import copy

import pytest
import torch
from torch import nn

import steelyard
from steelyard.errors import FileError, RecipeError, UnsupportedModelError
from steelyard.tuning import sensitivity
from steelyard.tuning.gptq import Options, Statistics, compensate
from steelyard.tuning.grids import MXFP8Grid

WORDS = 40


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 32)
        self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
        self.lm_head = nn.Linear(32, WORDS)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = torch.relu(block(x))
        return self.lm_head(x)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Small().eval()


@pytest.fixture
def batches():
    return [torch.arange(16).reshape(2, 8) + number for number in range(4)]


@pytest.fixture
def no_work(monkeypatch):
    """Fails where a layer is measured."""

    def work(*_):
        raise AssertionError("work was done before arguments were checked")

    monkeypatch.setattr(sensitivity, "_weights", work)


def tune(model, batches, **arguments):
    return steelyard.tune(model, batches, **{"bits": 6, "formats": ["nvfp4-4over6", "mxfp8"], **arguments})


def with_nan(model):
    model.blocks[1].weight.data[0, 3] = float("nan")
    return model


def with_infinite_embedding(model):
    model.embedding.weight.data[:] = float("inf")
    return model


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda model: steelyard.compile(model, "mxfp8"), r"got a compiled net of Small; give net\.model"),
        (lambda model: "Small", "got str; give it the nn.Module"),
        (lambda model: model.to("meta"), r"must be on the CPU .* embedding.weight is on meta; load its values first"),
        (lambda model: model.double(), r"blocks.0 is in torch.float64; convert the model by model.float\(\)"),
        (with_nan, "that of blocks.1 has an infinity or a NaN; look at"),
        (with_infinite_embedding, r"output .* must be finite .* judged\[0\], Tensor of int64 \[2, 8\], has an inf"),
    ],
    ids=["compiled", "str", "meta", "float64", "nan", "infinite output"],
)
def test_models(model, batches, no_work, change, says):
    with pytest.raises(UnsupportedModelError, match=says):
        tune(change(model), batches)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda batches: [1, 2], r"batches\[0\] must be what the model is called with, .* got 1"),
        (lambda batches: [*batches, None], r"batches\[4\] must be .* got None"),
        (lambda batches: [each.to("meta") for each in batches], r"batches\[0\] must be on the CPU, .* is on meta"),
        (lambda batches: [each[:0] for each in batches], r"batches\[0\] must have rows, .* shape \(0, 8\); leave"),
        (
            lambda batches: [each.float() for each in batches],
            r"with judged\[0\], Tensor of float32 \[2, 8\], it raised RuntimeError: .*indices.*; give batches",
        ),
        (lambda batches: [(batches[0], 3)], r"with judged\[0\], tuple of int64 \[2, 8\], it raised TypeError"),
        (lambda batches: [{"words": batches[0]}], "it raised TypeError: .*unexpected keyword argument 'words'"),
    ],
    ids=["ints", "None", "meta", "no rows", "float tokens", "too many arguments", "wrong keyword"],
)
def test_batches(model, batches, no_work, change, says):
    with pytest.raises(UnsupportedModelError, match=says):
        tune(model, change(batches))


def test_judged_batches_are_checked_as_others_are(model, batches, no_work):
    with pytest.raises(UnsupportedModelError, match=r"judged\[0\] must have rows"):
        tune(model, batches, judged=[batches[0][:0]])


def test_batches_that_only_calibrate_must_run(model, batches, no_work):
    with pytest.raises(UnsupportedModelError, match=r"with one, Tensor of int64 \[2, 8\], it raised IndexError"):
        tune(model, [batches[0], batches[1] + WORDS, batches[2]], judged=batches[:1])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"options": {"fold": True}}, r"options must be steelyard.tuning.gptq.Options, .* got \{'fold': True\}"),
        ({"options": Options(damping=-1.0)}, "options.damping must be a number of at least 0, such as 0.01, got -1.0"),
        ({"options": Options(damping="x")}, "options.damping must be a number .* got 'x'"),
        ({"options": Options(damping=float("nan"))}, "options.damping must be a number .* got nan"),
        ({"options": Options(order=1)}, "options.order must be True or False, got 1"),
        ({"seed": "x"}, "seed must be a whole number of 64 bits, got 'x'"),
        ({"seed": 2**64}, "seed must be a whole number of 64 bits, got 18446744073709551616"),
        ({"ignore": 3}, r"ignore must be a list of patterns of layer names, as in \['lm_head'\], got 3"),
        ({"ignore": [None]}, r"ignore must be a list .* got \[None\]"),
        ({"folder": 3}, "folder must be a path, got 3"),
    ],
)
def test_other_arguments(model, batches, no_work, arguments, says):
    with pytest.raises(RecipeError, match=says):
        tune(model, batches, **arguments)


def test_a_folder_that_is_a_file(model, batches, no_work, tmp_path):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(FileError, match=r"finished work can be kept in; cannot make '.*file'.*; choose another path"):
        tune(model, batches, folder=tmp_path / "file")


def test_modes_of_torch(model, batches, no_work):
    with torch.inference_mode(), pytest.raises(UnsupportedModelError, match=r"outside of torch.inference_mode, .* or"):
        tune(model, batches)
    with torch.inference_mode():
        inner = copy.deepcopy(batches)
    with pytest.raises(UnsupportedModelError, match=r"batches\[0\] must be made outside of torch.inference_mode"):
        tune(model, inner)
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(UnsupportedModelError, match=r"default dtype must be float32 .* got torch.float64; call"):
            tune(model, batches)
    finally:
        torch.set_default_dtype(torch.float32)


def test_one_name_may_be_ignored_without_a_list(model, batches):
    tuned, recipe = tune(model, batches, ignore="lm_head")
    assert recipe.recipe_of("lm_head") is None
    assert torch.equal(tuned.lm_head.weight, model.lm_head.weight)
    assert recipe.recipe_of("blocks.0") is not None


def test_names_that_match_nothing(model, batches, no_work):
    with pytest.raises(RecipeError, match=r"ignore has 'head', which matches no layer; there are blocks.0, blocks.1,"):
        tune(model, batches, ignore=["lm_head", "head"])
    with pytest.raises(RecipeError, match=r"'blocks', which matches no layer; .* such as 'blocks\.\*' matches all"):
        tune(model, batches, ignore="blocks")


def test_names_of_the_default_and_of_other_modules_may_be_ignored(batches):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(WORDS, 32), nn.Linear(32, 32), nn.Linear(32, 32)).eval()
    recipe = tune(model, batches, ignore=["lm_head", "*.lm_head", "0", "2"]).recipe
    assert recipe.recipe_of("1") is not None
    assert recipe.recipe_of("2") is None


def test_statistics_without_an_inverse_need_damping():
    statistics = Statistics(32)
    statistics.add(torch.ones(4, 32))
    with pytest.raises(RecipeError, match=r"options.damping must be so large .* such as 0.01, or more batches"):
        compensate(torch.ones(4, 32), statistics, MXFP8Grid, Options(damping=0.0))
