"""`steelyard.tune` on a small model: what it returns runs as it was judged, keeps its goals, and can be repeated."""

import copy
import json

import pytest
import torch
from torch import nn

import steelyard
from steelyard.errors import FileError, RecipeError, UnsupportedModelError
from steelyard.recipes import MixedRecipe, get
from steelyard.tuning.batches import divergence
from steelyard.tuning.calibration import compensated, stages_of
from steelyard.tuning.emulation import quantized_inputs
from steelyard.tuning.gptq import Options
from steelyard.tuning.layers import find_layers
from steelyard.tuning.products import find_groups
from steelyard.tuning.sensitivity import by_divergence
from steelyard.tuning.tune import table

WIDTH, HIDDEN, WORDS = 32, 64, 40
FORMATS = ("nvfp4-4over6", "nvfp4-4over6/none", "mxfp8", "none")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        normed = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(x)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    made = Small().eval()
    with torch.no_grad():
        # Inputs with large columns, as trained models have them.
        for block in made.blocks:
            block.norm.weight.mul_(torch.logspace(-0.5, 0.5, WIDTH))
    return made


@pytest.fixture(scope="module")
def batches():
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(WORDS, (4, 16), generator=generator) for _ in range(8)]


@pytest.fixture(scope="module")
def tuned(model, batches):
    return steelyard.tune(model, batches, bits=6, formats=FORMATS)


def test_groups_are_what_reads_one_input(model, batches):
    layers = find_layers(model, ["lm_head"])
    groups = find_groups(model, layers, batches[0])
    assert [group.layers for group in groups[:2]] == [("blocks.0.gate", "blocks.0.up"), ("blocks.0.down",)]
    assert groups[0].name == "blocks.0.gate|up"
    assert [stage.name for stage in stages_of(model, groups, batches[0])] == ["blocks.0", "blocks.1", "blocks.2"]
    with_head = find_groups(model, find_layers(model, []), batches[0])
    assert [stage.name for stage in stages_of(model, with_head, batches[0])][-1] == ""


def test_a_tuned_model_keeps_its_goal_and_is_nearer(model, batches, tuned):
    tried = {each["formats"]: each for each in tuned.recipe.about["tried"]}
    assert tried["chosen"]["bits"] <= 6
    assert tried["chosen, compensated"]["error"] < tried["chosen"]["error"] < tried["nvfp4-4over6"]["error"]
    assert len(tried["chosen"]["counts"]) > 1
    assert tuned.recipe.about["left"] == {"numbers": 2 * WORDS * WIDTH + 3 * (WIDTH + WIDTH), "bits": 32}
    lines = table(tuned.recipe).splitlines()
    assert len(lines) == 2 + len(tried)
    assert lines[0].split() == ["formats", "bits", "expected", "error", "error"]


def test_the_compiled_net_computes_what_was_judged(model, batches, tuned):
    net = steelyard.compile(tuned.model, tuned.recipe, blocks=False)
    recipes = {name: tuned.recipe.recipe_of(name) for name, _ in find_layers(model, []).items()}
    with torch.no_grad():
        given = net(batches[0])
        with quantized_inputs(tuned.model, recipes):
            judged = tuned.model(batches[0])
    assert divergence(given, judged, is_logits=False) < 1e-9
    rows = {row.layer: row for row in net.explain().rows}
    assert {name for name, row in rows.items() if row.is_quantized} == {
        name for name, recipe in recipes.items() if recipe is not None
    }
    assert not rows["lm_head"].is_quantized


def test_the_model_stays_as_it_is_and_the_same_call_gives_the_same_bits(model, batches, tuned):
    before = copy.deepcopy(model.state_dict())
    again = steelyard.tune(model, batches, bits=6, formats=FORMATS)
    assert again.recipe == tuned.recipe
    for name, parameter in again.model.named_parameters():
        assert torch.equal(parameter.dequantize(), tuned.model.get_parameter(name).dequantize())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_recipe_is_plain_data(tuned):
    text = json.dumps(tuned.recipe.to_dict())
    assert MixedRecipe.from_dict(json.loads(text)) == tuned.recipe
    with pytest.raises(RecipeError, match=r"what MixedRecipe.to_dict returns"):
        MixedRecipe.from_dict({"recipe": "mxfp8"})


@pytest.mark.parametrize("fold", [False, True])
def test_a_walk_goes_on_where_it_was_interrupted(model, batches, tmp_path, fold):
    groups = find_groups(model, find_layers(model, ["lm_head"]), batches[0])
    recipes = {layer: get("nvfp4-4over6") for group in groups for layer in group.layers}
    whole = compensated(model, batches, groups, recipes, Options(fold=fold), tmp_path)
    (tmp_path / "blocks.1.pt").unlink()
    (tmp_path / "blocks.2.pt").unlink()
    rest = compensated(model, batches, groups, recipes, Options(fold=fold), tmp_path)
    for name, parameter in rest.named_parameters():
        assert torch.equal(parameter.dequantize(), whole.get_parameter(name).dequantize())
    # Norms are the only plain weights that factors change.
    plain = [name for name, _ in model.named_parameters() if name.removesuffix(".weight") not in recipes]
    changed = {name for name in plain if not torch.equal(model.get_parameter(name), whole.get_parameter(name))}
    assert changed == ({f"blocks.{number}.norm.weight" for number in range(3)} if fold else set())


def test_folded_factors_make_up_for_large_columns(model, batches):
    groups = find_groups(model, find_layers(model, ["lm_head"]), batches[0])
    recipes = {layer: get("nvfp4-4over6").settled(trains=False) for group in groups for layer in group.layers}
    with torch.no_grad():
        exact, errors = model(batches[0]), []
        for fold in (False, True):
            tuned = compensated(model, batches, groups, recipes, Options(fold=fold))
            with quantized_inputs(tuned, recipes):
                errors.append(divergence(tuned(batches[0]), exact, is_logits=True))
    assert errors[1] < errors[0]


def test_gradients_expect_what_each_format_alone_loses(model, batches, tuned):
    groups = find_groups(model, find_layers(model, ["lm_head"]), batches[0])
    formats = {name: None if name == "none" else get(name).settled(trains=False) for name in FORMATS}
    for group, own in by_divergence(model, groups, batches[:3], formats).items():
        expected = tuned.recipe.about["scores"][group]
        assert own.pop("none") == expected["none"] == 0
        for name, lost in own.items():
            assert expected[name] == pytest.approx(lost, rel=0.6)


def test_parameters_keep_their_gradients_and_their_mode(model, batches, tuned):
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert not tuned.model.training


def test_a_speed_is_kept_by_a_table_of_costs(model, batches):
    seconds = {"nvfp4-4over6": 1.0, "nvfp4-4over6/none": 3.0, "mxfp8": 2.0, "none": 4.0}
    shapes = [(64, HIDDEN, WIDTH), (64, WIDTH, HIDDEN)]
    costs = {"model": 40.0, "layers": {"x".join(map(str, shape)): seconds for shape in shapes}}
    recipe = steelyard.tune(model, batches, speed=1.5, formats=FORMATS, costs=costs).recipe
    # In high precision, nine layers take 36 of 40 seconds.
    names = {get(name).settled(trains=False): name for name in FORMATS[:-1]} | {None: "none"}
    spent = [seconds[names[recipe.recipe_of(name)]] for name in find_layers(model, ["lm_head"])]
    assert 40 / (4 + sum(spent)) >= 1.5
    assert recipe.about["tried"][-1]["speed"] == pytest.approx(40 / (4 + sum(spent)))
    with pytest.raises(RecipeError, match=r"speed must be at most 3.077 .* got 4"):
        steelyard.tune(model, batches, speed=4, formats=FORMATS, costs=costs)
    with pytest.raises(RecipeError, match="costs must have seconds of mxfp4"):
        steelyard.tune(model, batches, speed=2, formats=["mxfp4"], costs=costs)


def test_an_error_alone_finds_few_bits(model, batches):
    formats = ("nvfp4-4over6/none", "mxfp8", "none")
    tried = steelyard.tune(model, batches, error=2e-4, formats=formats).recipe.about["tried"]
    assert tried[-1]["error"] <= 2e-4
    assert tried[-1]["bits"] < 32
    with pytest.raises(RecipeError, match=r"error must be at least \S+, which is the best .* got 1e-09"):
        steelyard.tune(model, batches, error=1e-9, formats=["nvfp4-4over6/none"])


def test_wrong_calls_say_what_to_do(model, batches):
    with pytest.raises(RecipeError, match="a goal must be given"):
        steelyard.tune(model, batches)
    with pytest.raises(UnsupportedModelError, match=r"batches must be a list .* got none"):
        steelyard.tune(model, [], bits=5)
    with pytest.raises(UnsupportedModelError, match="got one Tensor"):
        steelyard.tune(model, batches[0], bits=5)
    with pytest.raises(RecipeError, match=r"bits must be at least 4.500, .* got 4"):
        steelyard.tune(model, batches, bits=4, formats=["nvfp4-4over6", None])
    with pytest.raises(RecipeError, match="bits must be a positive number, got -1"):
        steelyard.tune(model, batches, bits=-1)
    with pytest.raises(UnsupportedModelError, match="has none beside"):
        steelyard.tune(model, batches, bits=5, ignore=["*"])
    idle = nn.Module()
    idle.layer = nn.Linear(4, 4)
    idle.forward = lambda x: 2 * x
    with pytest.raises(UnsupportedModelError, match="reached none of layer and others, 1 in all"):
        steelyard.tune(idle, [torch.ones(2, 4)], bits=5)


def test_a_format_gets_its_share(model, batches):
    formats = ("nvfp4-4over6", "mxfp8", "none")
    recipe = steelyard.tune(model, batches, bits=8, share={"nvfp4-4over6": 0.5}, formats=formats).recipe
    four = get("nvfp4-4over6").settled(trains=False)
    sizes = {name: layer.parameter.numel() for name, layer in find_layers(model, ["lm_head"]).items()}
    # Every layer is given as many rows.
    share = sum(size for name, size in sizes.items() if recipe.recipe_of(name) == four) / sum(sizes.values())
    assert 0.5 <= share < 0.7
    assert recipe.about["goal"] == {"bits": 8, "share": {"nvfp4-4over6": 0.5}}
    with pytest.raises(RecipeError, match=r"a choice of formats must exist with bits=4.6 and share="):
        steelyard.tune(model, batches, bits=4.6, share={"mxfp8": 0.5}, formats=formats)
    with pytest.raises(RecipeError, match="share must name some of formats, mxfp8, got nvfp4"):
        steelyard.tune(model, batches, share={"nvfp4": 0.5}, formats=["mxfp8"])
    with pytest.raises(RecipeError, match=r"share must have parts .* got \{'mxfp8': 2\}"):
        steelyard.tune(model, batches, share={"mxfp8": 2}, formats=["mxfp8"])


def test_goals_hold_together(model, batches):
    goal = {"formats": ("nvfp4-4over6", "nvfp4-4over6/none", "mxfp8", "none"), "speed": 1.05, "costs": "sm_100a"}
    tried = steelyard.tune(model, batches, bits=8, error=0.01, **goal).recipe.about["tried"]
    assert tried[-1]["bits"] <= 8
    assert tried[-1]["speed"] >= 1.05
    assert tried[-2]["error"] <= 0.01
    with pytest.raises(RecipeError, match=r"error must be at least \S+ with bits=5 and speed=1.05, .* got 1e-07"):
        steelyard.tune(model, batches, bits=5, error=1e-7, **goal)


def test_costs_come_from_targets_and_files(model, batches, tmp_path):
    formats = ("nvfp4-4over6", "mxfp8", "none")
    recipe = steelyard.tune(model, batches, speed=1.05, formats=formats, costs="sm_100a").recipe
    costs = recipe.about["costs"]
    assert costs["target"] == "sm_100a"
    assert "nothing was measured" in costs["about"]
    # Two multiplications and additions per FLOP of the data sheet, and the bytes of operands by its bandwidth.
    bandwidth, rows = 0.9 * 8e12, 64
    plain = 2 * rows * HIDDEN * WIDTH / 2250e12 + 2 * (rows * WIDTH + HIDDEN * WIDTH) / bandwidth
    assert costs["layers"][f"{rows}x{HIDDEN}x{WIDTH}"]["none"] == pytest.approx(plain, rel=0.01)
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps(recipe.to_dict()))
    again = steelyard.tune(model, batches, speed=1.05, formats=formats, costs=file).recipe
    assert again == recipe
    with pytest.raises(FileError, match=r"one of cpu, .*sm_90a.*; cannot read 'sm_1'"):
        steelyard.tune(model, batches, speed=1.05, formats=formats, costs="sm_1")


def test_a_report_is_against_the_model_before(model, batches, tuned):
    before = steelyard.compile(model, "nvfp4-4over6", overrides={"lm_head": None})
    after = steelyard.compile(tuned.model, tuned.recipe)
    found = [net.measure(batches[-2:], logits=True, exact=model).output for net in (before, after)]
    with torch.no_grad():
        for net, output in zip((before, after), found, strict=True):
            made, exact = (torch.cat([each(batch) for batch in batches[-2:]]) for each in (net, model))
            assert output.kl_divergence == pytest.approx(divergence(made, exact, is_logits=True), rel=1e-3)
    assert found[1].kl_divergence < found[0].kl_divergence
    # The tuned model itself has rounded weights.
    assert after.measure(batches[-2:], logits=True).output.kl_divergence < found[1].kl_divergence
