"""Static scales of inputs: given by the recipe, state of the net, never updated, with a count of what saturates."""

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

import steelyard
from steelyard import reference
from steelyard.errors import RecipeError
from steelyard.recipes import Float8CurrentScaling, MXFP4BlockScaling, NVFP4BlockScaling, Recipe, Role

STATE = "_steelyard."
X = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 48, bias=False), nn.Linear(48, 32, bias=False)).eval()


@torch.no_grad()
def output_of(net, x=X) -> torch.Tensor:
    return net(x)


def fp8(values: torch.Tensor, multiplier: float) -> torch.Tensor:
    """Values as E4M3 with a given scale, by ml_dtypes, in float64."""
    m = np.float32(multiplier)
    scaled = np.clip(values.detach().numpy() * (np.float32(1) / m), -448, 448)
    return torch.from_numpy(scaled.astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * m)


def decoded(values: torch.Tensor, recipe: Recipe, role: str, scale: float | None = None) -> torch.Tensor:
    scheme, _ = recipe.schemes(role)
    return reference.dequantize(reference.quantize(values.detach(), scheme, None, scale=scale)[0]).double()


def test_fp8_uses_the_given_scale_and_counts_what_saturates():
    recipe = Float8CurrentScaling(input_scales={"0": 0.004})
    model = make_model()
    net = steelyard.compile(model, recipe)
    first = output_of(net)
    hidden = (fp8(X, 0.004) @ decoded(model[0].weight, recipe, "weight").T).float()
    expected = decoded(hidden, recipe, "input") @ decoded(model[1].weight, recipe, "weight").T
    # The last bits of the first product may flip codes of the second.
    assert (first - expected).norm() <= 0.02 * expected.norm()
    saturated = int((X.abs() * np.float32(1 / np.float32(0.004)) > 448).sum())
    assert saturated > 10
    state = net.state_dict()
    assert state[f"{STATE}0.input.scale"] == torch.tensor(0.004)
    assert state[f"{STATE}0.input.saturated"] == saturated
    assert f"{STATE}1.input.scale" not in state
    assert torch.equal(output_of(net), first)
    assert net.state_dict()[f"{STATE}0.input.saturated"] == 2 * saturated
    explained = net.explain()
    assert [row.lhs for row in explained.rows] == ["e4m3 tensor static", "e4m3 tensor"]
    assert explained.notes == [
        f"static scales: 1; values saturated so far: {2 * saturated}",
        f"0.input: {2 * saturated}",
    ]


def test_a_single_product_is_that_of_the_codes_that_the_checkpoint_means():
    model = make_model()[0]
    recipe = Float8CurrentScaling(input_scales={"*": 0.01})
    result = output_of(steelyard.compile(model, recipe)).double()
    x, w = fp8(X, 0.01), decoded(model.weight, recipe, "weight")
    assert ((result - x @ w.T).abs() <= (64 + 8) * 2.0**-24 * (x.abs() @ w.abs().T)).all()


@pytest.mark.parametrize(
    ("recipe", "scale"),
    [
        (NVFP4BlockScaling(input_scales={"*": 0.002}), 0.002),
        (NVFP4BlockScaling(activations=Float8CurrentScaling(input_scales={"*": 0.0101})), 0.0101),
        (MXFP4BlockScaling(activations=NVFP4BlockScaling(input_scales={"*": 0.002})), 0.002),
    ],
    ids=["nvfp4", "nvfp4 with fp8 inputs", "mxfp4 with nvfp4 inputs"],
)
def test_fp4_and_mixed_operands(recipe, scale):
    model = make_model()[0]
    net = steelyard.compile(model, recipe)
    result = output_of(net).double()
    x = decoded(X, recipe, Role("input", "any"), scale)
    w = decoded(model.weight, recipe.settled(trains=False), "weight")
    assert ((result - x @ w.T).abs() <= (64 + 8) * 2.0**-24 * (x.abs() @ w.abs().T)).all()
    assert all(row.lhs.endswith(" static") for row in net.explain().rows)
    assert net.explain().notes[-1] == "static scales: 1; values saturated so far: 0"


@pytest.mark.parametrize("recipe", [Float8CurrentScaling, NVFP4BlockScaling])
def test_training_never_updates_the_scale(recipe):
    chosen = recipe(input_scales={"0": 0.004, "1": 0.001})
    model = make_model().train()
    net = steelyard.compile(model, chosen)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    losses = []
    for _ in range(8):
        loss = (net(X) - 1).square().mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    state = net.state_dict()
    assert state[f"{STATE}0.input.scale"] == torch.tensor(0.004)
    largest = 448 if recipe is Float8CurrentScaling else 6 * 448
    per_call = int((X.abs() * np.float32(1 / np.float32(0.004)) > largest).sum())
    assert (per_call > 0) == (recipe is Float8CurrentScaling)
    assert state[f"{STATE}0.input.saturated"] == 8 * per_call


def test_state_is_saved_loaded_and_copied():
    recipe = Float8CurrentScaling(input_scales={"0": 0.004})
    net = steelyard.compile(make_model(), recipe)
    before = output_of(net)
    state = net.state_dict()
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(output_of(other), before)
        assert other.state_dict()[f"{STATE}0.input.saturated"] == 2 * state[f"{STATE}0.input.saturated"]
    # The scale of a file is the one that is used.
    other = steelyard.compile(make_model(), Float8CurrentScaling(input_scales={"0": 0.02}))
    other.load_state_dict(state)
    assert torch.equal(output_of(other), before)


class Stack(nn.Module):
    """Blocks that are alike, as a transformer has."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(5))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def test_blocks_that_share_code_have_scales_of_their_own():
    torch.manual_seed(0)
    model = Stack().eval()
    scales = {f"blocks.{i}.0": 0.01 * (i + 1) for i in range(4)}
    whole, cut = (
        steelyard.compile(model, Float8CurrentScaling(input_scales=scales), blocks=blocks) for blocks in (False, "auto")
    )
    assert torch.equal(output_of(whole), output_of(cut))
    for net in (whole, cut):
        state = net.state_dict()
        assert [state[f"{STATE}blocks.{i}.0.input.scale"] for i in range(4)] == [
            torch.tensor(scale) for scale in scales.values()
        ]
        assert [row.lhs for row in net.explain().rows] == ["e4m3 tensor static"] * 4 + ["e4m3 tensor"]


def test_a_recipe_with_scales_is_plain_data():
    scales = {"model.layers.0.*": 0.004, "head": 1.0}
    recipe = NVFP4BlockScaling(input_scales=scales)
    for other in (Recipe.from_dict(recipe.to_dict()), Recipe.from_toml(recipe.to_toml())):
        assert other == recipe
        assert hash(other) == hash(recipe)
    assert recipe.to_dict()["input_scales"] == scales
    assert (recipe.input_scale("model.layers.0.up"), recipe.input_scale("lm")) == (0.004, None)


def test_what_is_wrong_is_said():
    for scales in ({"0": 0.0}, {"0": float("nan")}, {"0": float("inf")}, {"0": -1.0}, {0: 1.0}, {"0": "1"}, 3):
        with pytest.raises(RecipeError, match="input_scales must be numbers by patterns of layer names, each a finite"):
            Float8CurrentScaling(input_scales=scales)
    net = steelyard.compile(make_model(), Float8CurrentScaling(input_scales={"2": 1.0}))
    with pytest.raises(RecipeError, match="input_scales has '2', which matches no layer; the layers with GEMMs: 0, 1"):
        output_of(net)
