"""`steelyard.tune` on models whose forward is unlike that of a chain of blocks, and what it leaves as it was."""

import pytest
import torch
from torch import nn

import steelyard
from steelyard.errors import RecipeError, SteelyardWarning
from steelyard.tensor.quantized_tensor import QuantizedTensor
from steelyard.tuning import calibration, tune
from steelyard.tuning.gptq import Options
from steelyard.tuning.grids import searched
from steelyard.tuning.layers import find_layers
from steelyard.tuning.products import find_groups
from steelyard.tuning.tune import table

FOUR = ["nvfp4-4over6"]


def rows(count, *shape):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(*shape, generator=generator) for _ in range(count)]


def made(kind, *arguments):
    torch.manual_seed(0)
    return kind(*arguments).eval()


def plain(model):
    """The values of all parameters, as their codes decode."""
    return {name: each.dequantize() for name, each in model.named_parameters()}


class Chain(nn.Module):
    """Blocks that add to their input, in place or not."""

    def __init__(self, is_in_place, count=3):
        super().__init__()
        self.is_in_place = is_in_place
        self.first = nn.Linear(32, 32)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)) for _ in range(count)
        )
        for block in self.blocks:
            block.register_forward_hook(self.add)

    def add(self, _, given, made):
        x = given[0]
        # Autograd does not allow to write to what a layer has read.
        if self.is_in_place and not torch.is_grad_enabled():
            x += made
            return x
        return x + made

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def test_each_module_keeps_its_mode():
    model = made(Chain, False).train()
    model.blocks[1].eval()
    modes = {name: module.training for name, module in model.named_modules()}
    tuned = steelyard.tune(model, rows(4, 16, 32), bits=4.5, formats=FOUR).model
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert {name: module.training for name, module in tuned.named_modules()} == modes


def test_blocks_that_write_to_their_input_have_the_codes_of_those_that_do_not():
    in_place, beside = made(Chain, True), made(Chain, False)
    batches = rows(4, 16, 32)
    assert torch.equal(in_place(batches[0]), beside(batches[0]))
    groups = [find_groups(model, find_layers(model, []), batches[0]) for model in (in_place, beside)]
    assert groups[0] == groups[1]
    ours, theirs = (steelyard.tune(model, batches, bits=4.5, formats=FOUR) for model in (in_place, beside))
    assert ours.recipe.about["tried"] == theirs.recipe.about["tried"]
    expected = plain(theirs.model)
    assert all(torch.equal(values, expected[name]) for name, values in plain(ours.model).items())


def test_a_block_runs_without_those_whose_names_begin_with_its_own(monkeypatch):
    """`blocks.1` is not the beginning of `blocks.10`."""
    watched, quantized_inputs = [], calibration.quantized_inputs

    def note(model, recipes, watch=None):
        watched.append({name.rpartition(".")[0] for name in recipes})
        return quantized_inputs(model, recipes, watch)

    monkeypatch.setattr(calibration, "quantized_inputs", note)
    steelyard.tune(made(Chain, False, 11), rows(1, 4, 32), bits=4.5, formats=FOUR)
    assert {"blocks.1"} in watched
    assert {"blocks.10"} in watched
    assert {"blocks.1", "blocks.10"} not in watched


class Routed(nn.Module):
    """Experts that are linear layers of their own, each called with the rows that a router sends to it."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(32, 8)
        self.experts = nn.ModuleList(nn.Linear(32, 32, bias=False) for _ in range(8))

    def forward(self, x):
        chosen, y = self.router(x).argmax(-1), torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            own = (chosen == number).nonzero()[:, 0]
            if len(own):
                y = y.index_put((own,), expert(x[own]))
        return y + x


class Branches(nn.Module):
    """A layer for each kind of input, and one for all."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({kind: nn.Linear(32, 32) for kind in ("text", "image", "sound", "video")})
        self.last = nn.Linear(32, 32)

    def forward(self, x, kind):
        return self.last(torch.relu(self.layers[kind](x)))


def test_layers_that_the_first_batch_misses_are_tuned_as_others():
    model = made(Branches)
    batches = [(each, ("text", "image")[number % 2]) for number, each in enumerate(rows(8, 16, 32))]
    groups = find_groups(model, find_layers(model, []), *[(x, kind) for x, kind in batches])
    assert [(group.layers, group.first, group.rows) for group in groups] == [
        (("layers.text",), 0, 16),
        (("last",), 0, 16),
        (("layers.image",), 1, 16),
    ]
    with pytest.warns(SteelyardWarning, match=r"no batch reaches layers.sound, layers.video, 2 in all, which stay in"):
        tuned, recipe = steelyard.tune(model, batches, bits=4.5, formats=FOUR)
    assert recipe.about["unreached"] == ["layers.sound", "layers.video"]
    # Weights and biases of two layers, and the biases of the others.
    assert recipe.about["left"] == {"numbers": 2 * 33 * 32 + 3 * 32, "bits": 32}
    assert set(recipe.about["scores"]) == {"layers.text", "last", "layers.image"}
    assert isinstance(tuned.layers["image"].weight.data, QuantizedTensor)
    net = steelyard.compile(tuned, recipe)
    with torch.no_grad():
        net(batches[0][0], "image")
        net(batches[0][0], "sound")
    # Text was not called, and is not missed.
    quantized = {row.layer: row.is_quantized for row in net.explain().rows}
    assert quantized == {"layers.image": True, "layers.sound": False, "last": True}


def test_each_group_is_measured_though_few_batches_reach_it():
    kinds = ("text", "text", "text", "text", "text", "image")
    batches = [(x, kind) for x, kind in zip(rows(6, 16, 32), kinds, strict=True)]
    model = made(Branches)
    with pytest.warns(SteelyardWarning):
        recipe = steelyard.tune(model, batches, bits=6, formats=["mxfp8", *FOUR], judged=batches).recipe
    scores = recipe.about["scores"]["layers.image"]
    assert 0 < scores["mxfp8"] < scores["nvfp4-4over6"]


def test_batches_may_miss_any_layer():
    """With 4 rows for 8 experts, each batch misses some of them, and routing may change as inputs are quantized."""
    model = made(Routed)
    tuned, recipe = steelyard.tune(model, rows(16, 4, 32), bits=4.5, formats=FOUR, ignore="router")
    assert recipe.about["unreached"] == []
    assert all(isinstance(expert.weight.data, QuantizedTensor) for expert in tuned.experts)
    assert recipe.recipe_of("router") is None


def test_groups_are_those_of_each_batch():
    """Two layers that share an input in one batch, and not in another, are calibrated apart."""

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.third = (nn.Linear(32, 32) for _ in range(3))

        def forward(self, x, is_apart):
            return self.first(x) + self.second(2 * x if is_apart else x) + self.third(x)

    model, batches = made(Pair), [(x, number == 1) for number, x in enumerate(rows(3, 4, 32))]
    layers = find_layers(model, [])
    assert [group.layers for group in find_groups(model, layers, batches[0])] == [("first", "second", "third")]
    assert [group.layers for group in find_groups(model, layers, *batches)] == [("first", "third"), ("second",)]


def test_blocks_that_some_batches_skip():
    class Skipping(Chain):
        def forward(self, x, count):
            x = self.first(x)
            for block in self.blocks[:count]:
                x = block(x)
            return x

    model = made(Skipping, False)
    batches = [(x, 3 - number % 2) for number, x in enumerate(rows(4, 16, 32))]
    groups = find_groups(model, find_layers(model, []), *batches)
    assert [stage.name for stage in calibration.stages_of(model, groups, batches[0])][:-1] == [
        f"blocks.{number}" for number in range(3)
    ]
    assert [stage.name for stage in calibration.stages_of(model, groups, *batches)] == [""]
    tried = steelyard.tune(model, batches, bits=8.25, formats=["mxfp8"]).recipe.about["tried"]
    assert tried[-1]["error"] < 2 * tried[0]["error"]


class Observed(nn.Module):
    """A layer that is read by the next alone, and in later calls by the output, too."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)
        with torch.no_grad():
            # Large columns, which ask for large factors.
            self.first.weight.mul_(torch.logspace(-1, 1, 32)[:, None])

    def forward(self, x, is_read):
        made = torch.relu(self.first(x))
        return self.second(made) + (made if is_read else 0)


def test_factors_that_other_batches_do_not_bear_are_taken_back():
    model, batches = made(Observed), [(x, number > 0) for number, x in enumerate(rows(8, 64, 32))]
    with pytest.warns(SteelyardWarning, match=r"chosen, compensated, with an error of \S+, are worse .* without fact"):
        tuned, recipe = steelyard.tune(model, batches, bits=4.5, formats=FOUR)
    errors = {row["formats"]: row["error"] for row in recipe.about["tried"]}
    assert list(errors) == [*FOUR, "chosen", "chosen, compensated", "chosen, compensated without factors"]
    assert errors["chosen, compensated"] > 3 * errors["chosen"]
    assert errors["chosen, compensated without factors"] < 1.5 * errors["chosen"]
    plainly = steelyard.tune(model, batches, bits=4.5, formats=FOUR, options=Options(fold=False))
    expected = plain(plainly.model)
    assert all(torch.equal(values, expected[name]) for name, values in plain(tuned).items())


def worse(*arguments):
    tuned = calibration.compensated(*arguments)
    tuned.first.bias.data += 1
    return tuned


def test_weights_that_compensate_for_the_worse_are_rounded_instead(monkeypatch):
    monkeypatch.setattr(tune, "compensated", worse)
    model, batches = made(Chain, False), rows(8, 16, 32)
    with pytest.warns(SteelyardWarning, match=r"without factors, with an error of .* 'chosen, rounded' is returned"):
        tuned, recipe = steelyard.tune(model, batches, bits=4.5, formats=FOUR)
    errors = {row["formats"]: row["error"] for row in recipe.about["tried"]}
    assert list(errors)[1:] == [
        "chosen",
        "chosen, compensated",
        "chosen, compensated without factors",
        "chosen, rounded",
    ]
    assert errors["chosen, rounded"] == pytest.approx(errors["chosen"], rel=1e-5)
    weight = tuned.blocks[1][0].weight
    assert isinstance(weight.data, QuantizedTensor)
    assert torch.equal(weight.dequantize(), searched(model.blocks[1][0].weight.data, recipe.default))
    net, exact = steelyard.compile(tuned, recipe), model(batches[-1])
    with torch.no_grad():
        assert (net(batches[-1]) - exact).square().sum() < 2 * errors["chosen"] * exact.square().sum()


def test_an_error_is_kept_by_the_model_that_is_returned(monkeypatch):
    """Weights that compensate for the worse are no reason to miss a goal that rounded ones keep."""
    model, batches = made(Chain, False), rows(8, 16, 32)
    recipe = steelyard.tune(model, batches, error=1e-3, formats=[*FOUR, "mxfp8", "none"]).recipe
    names = [row["formats"] for row in recipe.about["tried"]]
    assert names[-2:] == ["chosen", "chosen, compensated"]
    chosen, last = recipe.about["tried"][-2:]
    assert max(chosen["error"], last["error"]) <= 1e-3
    assert table(recipe).splitlines()[-1] == (
        f"chosen, compensated: an error of {last['error']:.4g}, and at most 0.001 was asked for"
    )

    monkeypatch.setattr(tune, "compensated", worse)
    with pytest.warns(SteelyardWarning, match="'chosen, rounded' is returned"):
        tried = steelyard.tune(model, batches, error=1e-3, formats=[*FOUR, "mxfp8", "none"]).recipe.about["tried"]
    assert tried[-2]["error"] > 1e-3 >= tried[-1]["error"]
    monkeypatch.setattr(tune, "rounded", lambda model, *given: worse(model, batches, *given, Options()))
    with pytest.raises(RecipeError, match=r"error must be at least \S+ for the model as it is quantized in the end"):
        steelyard.tune(model, batches, error=1e-3, formats=[*FOUR, "mxfp8", "none"])
