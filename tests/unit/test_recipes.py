import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from steelyard import recipes
from steelyard.errors import RecipeError
from steelyard.formats.schemes import Scheme
from steelyard.recipes import (
    CustomRecipe,
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    Float8RowScaling,
    MXFP4BlockScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
    NVFP4FourOverSixScaling,
    Recipe,
    Role,
)

ALTERED = [
    DelayedScaling(
        margin=2, fp8_format="E4M3", amax_history_len=16, amax_compute_algo="most_recent", reduce_amax=False
    ),
    Float8CurrentScaling(power_of_two=True, epsilon=1e-12, backward="dequantized"),
    Float8BlockScaling(power_of_two=False, epsilon=0.25, weight_tiles=False, fp8_format="HYBRID"),
    MXFP8BlockScaling(fp8_format="HYBRID", scale_rule="even", weight_tiles=True, backward="high_precision"),
    NVFP4BlockScaling(
        weight_tiles=False,
        rht=False,
        stochastic_rounding=False,
        row_scaled=True,
        four_over_six="all",
        four_over_six_error="mse",
    ),
    Float8RowScaling(fp8_format="E4M3", power_of_two=True, epsilon=0.5),
    MXFP4BlockScaling(scale_rule="even", activations="mxfp8"),
    MXFP4BlockScaling(activations=MXFP8BlockScaling(scale_rule="floor")),
    NVFP4BlockScaling(activations=None),
    Float8BlockScaling(weight_tiles=None),
    MXFP8BlockScaling(weight_tiles=None),
]
DEFAULTS = [recipes.get(name) for name in recipes.NAMES]


def fp8(element, block="tensor", scale="f32", **options):
    return Scheme(element, block, scale, **options)


def fp4(block="1x16", **options):
    return Scheme("f4E2M1FN", block, "f8E4M3FN", **{"second_level": "tensor", **options})


def test_names():
    assert [type(recipe) for recipe in DEFAULTS] == [
        DelayedScaling,
        Float8CurrentScaling,
        Float8RowScaling,
        Float8BlockScaling,
        MXFP8BlockScaling,
        MXFP4BlockScaling,
        NVFP4BlockScaling,
        NVFP4FourOverSixScaling,
    ]
    names = "fp8-delayed fp8-current fp8-row fp8-block mxfp8 mxfp4 nvfp4 nvfp4-4over6"
    assert " ".join(recipes.NAMES) == names
    assert recipes.get(ALTERED[0]) is ALTERED[0]


def test_an_unknown_name_lists_the_known_ones_and_the_nearest():
    with pytest.raises(RecipeError, match=r"fp8-delayed, fp8-current, .*got 'nvpf4'; did you mean 'nvfp4'\?"):
        recipes.get("nvpf4")
    with pytest.raises(RecipeError, match=r"got 8$"):
        recipes.get(8)


def test_defaults_of_the_options():
    assert DelayedScaling().to_dict() == {
        "recipe": "fp8-delayed",
        "backward": "normal",
        "activations": "own",
        "margin": 0,
        "fp8_format": "HYBRID",
        "amax_history_len": 1024,
        "amax_compute_algo": "max",
        "reduce_amax": True,
    }


E4M3, E5M2 = "f8E4M3FN", "f8E5M2"
MX = "f8E8M0FNU"
MXFP4 = Scheme("f4E2M1FN", "1x32", MX)


@pytest.mark.parametrize(
    ("recipe", "role", "expected"),
    [
        ("fp8-delayed", "weight", (fp8(E4M3, source="delayed"),) * 2),
        ("fp8-delayed", "grad_output", (fp8(E5M2, source="delayed"),) * 2),
        ("fp8-current", "input", (fp8(E4M3),) * 2),
        ("fp8-current", "grad_output", (fp8(E5M2),) * 2),
        (Float8CurrentScaling(power_of_two=True, epsilon=1), "input", (fp8(E4M3, power_of_two=True, epsilon=1.0),) * 2),
        ("fp8-row", "weight", (fp8(E4M3, "row"),) * 2),
        ("fp8-row", "grad_output", (fp8(E5M2, "row"),) * 2),
        ("mxfp4", "input", (MXFP4,) * 2),
        (MXFP4BlockScaling(scale_rule="ceil"), "weight", (dataclasses.replace(MXFP4, rule="ceil"),) * 2),
        ("mxfp4/fp8-row", "input", (fp8(E4M3, "row"),) * 2),
        ("mxfp4/fp8-row", "grad_output", (fp8(E5M2, "row"),) * 2),
        ("mxfp4/fp8-row", "weight", (MXFP4,) * 2),
        ("mxfp4/none", "input", (None, None)),
        ("mxfp4/none", "grad_output", (None, None)),
        ("mxfp4/none", "weight", (MXFP4,) * 2),
        (Float8RowScaling(activations=NVFP4BlockScaling(rht=False)), "input", (fp4(), fp4())),
        ("fp8-block", "input", (fp8(E4M3, "1x128", power_of_two=True),) * 2),
        ("fp8-block", "weight", (fp8(E4M3, "128x128", power_of_two=True),) * 2),
        ("fp8-block", "grad_output", (fp8(E4M3, "1x128", power_of_two=True),) * 2),
        ("mxfp8", "input", (fp8(E4M3, "1x32", MX), fp8(E4M3, "32x1", MX))),
        ("mxfp8", "grad_output", (fp8(E4M3, "1x32", MX), fp8(E4M3, "32x1", MX))),
        (MXFP8BlockScaling(fp8_format="HYBRID"), "grad_output", (fp8(E5M2, "1x32", MX), fp8(E5M2, "32x1", MX))),
        (
            MXFP8BlockScaling(weight_tiles=True, scale_rule="floor"),
            "weight",
            (fp8(E4M3, "32x32", MX, rule="floor"),) * 2,
        ),
        ("nvfp4", "input", (fp4(), fp4(rht=True))),
        ("nvfp4", "weight", (fp4("16x16"),) * 2),
        ("nvfp4", "grad_output", (fp4(rounding="stochastic"), fp4(rounding="stochastic", rht=True))),
        (NVFP4BlockScaling(rht=False, stochastic_rounding=False), "grad_output", (fp4(), fp4())),
        (NVFP4BlockScaling(four_over_six="weights"), "weight", (fp4("16x16", four_over_six="mae"),) * 2),
        (NVFP4BlockScaling(four_over_six="weights"), "input", (fp4(), fp4(rht=True))),
        (
            ALTERED[4],
            "input",
            (fp4(second_level="row", four_over_six="mse"), fp4(four_over_six="mse")),
        ),
        (ALTERED[4], "grad_output", (fp4(), fp4())),
        ("nvfp4-4over6", "input", (fp4(four_over_six="mse"),) * 2),
        ("nvfp4-4over6", "weight", (fp4("16x16", four_over_six="mse"),) * 2),
        ("nvfp4-4over6", "grad_output", (fp4(rounding="stochastic"),) * 2),
        (Float8BlockScaling(weight_tiles=None), "weight", (fp8(E4M3, "128x128", power_of_two=True),) * 2),
        (MXFP8BlockScaling(weight_tiles=None), "weight", (fp8(E4M3, "32x32", MX),) * 2),
    ],
)
def test_schemes(recipe, role, expected):
    assert recipes.get(recipe).schemes(role) == expected


ROW_SCALED = {"row_scaled": True, "rht": False, "stochastic_rounding": False}


@pytest.mark.parametrize(
    ("recipe", "tiles", "blocks"),
    [
        (NVFP4BlockScaling(), "16x16", "1x16"),
        (NVFP4FourOverSixScaling(), "16x16", "1x16"),
        (NVFP4BlockScaling(weight_tiles=True), "16x16", "16x16"),
        (NVFP4BlockScaling(weight_tiles=False), "1x16", "1x16"),
        (NVFP4BlockScaling(**ROW_SCALED), "1x16", "1x16"),
        (MXFP8BlockScaling(weight_tiles=None), "32x32", "1x32"),
        (MXFP8BlockScaling(), "1x32", "1x32"),
        (Float8BlockScaling(weight_tiles=None), "128x128", "1x128"),
        (Float8BlockScaling(), "128x128", "128x128"),
        (Float8CurrentScaling(), "tensor", "tensor"),
    ],
    ids=repr,
)
def test_a_net_decides_on_tiles_only_where_the_recipe_leaves_it_open(recipe, tiles, blocks):
    assert recipe.is_open == (tiles != blocks)
    for settled, block in ((recipe.settled(trains=True), tiles), (recipe.settled(trains=False), blocks)):
        assert settled.schemes("weight")[0].block == block
        assert not settled.is_open
        # Nothing else changes, and what was decided stays.
        assert settled.schemes("input") == recipe.schemes("input")
        assert settled.schemes("grad_output") == recipe.schemes("grad_output")
        assert settled.settled(trains=True) == settled.settled(trains=False) == settled
        assert Recipe.from_toml(settled.to_toml()) == settled
    assert recipe.schemes("weight")[0].block == tiles


@pytest.mark.parametrize("backward", ["high_precision", "dequantized"])
@pytest.mark.parametrize("recipe", DEFAULTS, ids=recipes.NAMES)
def test_without_a_quantized_backward_only_rowwise_copies_remain(recipe, backward):
    changed = dataclasses.replace(recipe, backward=backward)
    assert changed.schemes("grad_output") == (None, None)
    for role in ("input", "weight"):
        assert changed.schemes(role) == (recipe.schemes(role)[0], None)


def test_two_names_are_a_recipe_of_weights_and_one_of_activations():
    assert recipes.get("nvfp4/mxfp8") == NVFP4BlockScaling(activations="mxfp8")
    assert recipes.get("nvfp4/none") == NVFP4BlockScaling(activations=None)
    for name in ("nvfp4/mxfp9", "nvfp4/", "nvfp5/mxfp8", "/", "nvfp4/mxfp8/none"):
        with pytest.raises(RecipeError, match="recipe must be a recipe object or one of"):
            recipes.get(name)


def test_the_recipe_of_state_is_that_of_weights_or_activations():
    delayed = DelayedScaling(amax_history_len=4)
    assert delayed.delayed() is delayed
    assert NVFP4BlockScaling(activations=delayed).delayed() is delayed
    assert NVFP4BlockScaling(activations="mxfp8").delayed() is None
    assert NVFP4BlockScaling(activations=None).delayed() is None


def test_an_unknown_role_is_refused():
    with pytest.raises(RecipeError, match="one of input, weight, grad_output, got 'output'"):
        MXFP8BlockScaling().schemes("output")


@pytest.mark.parametrize("recipe", ALTERED + DEFAULTS, ids=repr)
def test_serialization_round_trips_and_equality_is_by_value(recipe):
    for other in (
        Recipe.from_dict(recipe.to_dict()),
        Recipe.from_toml(recipe.to_toml()),
        type(recipe).from_toml(recipe.to_toml()),
    ):
        assert other == recipe
        assert hash(other) == hash(recipe)
        assert type(other) is type(recipe)
    assert len({recipe, *DEFAULTS, *ALTERED}) == len(DEFAULTS) + len(ALTERED)


def test_toml_spells_none_where_a_field_may_be_none():
    assert 'weight_tiles = "none"\n' in NVFP4BlockScaling().to_toml()
    assert Float8BlockScaling.from_toml('weight_tiles = "none"').weight_tiles is None
    assert NVFP4BlockScaling.from_toml('four_over_six = "none"').four_over_six == "none"


def test_toml_may_leave_fields_out():
    assert Recipe.from_toml('recipe = "mxfp8"\nscale_rule = "floor"\n') == MXFP8BlockScaling(scale_rule="floor")
    assert NVFP4BlockScaling.from_toml("rht = false\n") == NVFP4BlockScaling(rht=False)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('recipe = "mxfp9"', "did you mean 'mxfp8'"),
        ('recipe = "nvfp4"\nrth = true', "NVFP4BlockScaling has no field 'rth'; did you mean 'rht'"),
        ('recipe = "mxfp8"\nscale_rule = "up"', "scale_rule must be one of rceil, floor, ceil, even, got 'up'"),
        (
            'recipe = "mxfp4"\nactivations = "mxfp9"',
            "activations must be 'own', None, or another recipe .* got 'mxfp9'",
        ),
        ('recipe = "mxfp4"\nactivations = {recipe = "mxfp9"}', "did you mean 'mxfp8'"),
        ("rht = ", "valid TOML"),
        ("rht = true", "got ''"),
        ('recipe = "custom"', "build CustomRecipe in code"),
    ],
)
def test_bad_toml(text, says):
    with pytest.raises(RecipeError, match=says):
        Recipe.from_toml(text)


@pytest.mark.parametrize(
    ("margin", "epsilon"), [(0, 0), (126, 2.0**-149), (126, (2 - 2.0**-23) * 2.0**127)], ids=["zero", "small", "large"]
)
def test_bounds_are_taken_and_held_by_float32(margin, epsilon):
    assert DelayedScaling(margin=margin).margin == margin
    assert Float8CurrentScaling(epsilon=epsilon).schemes("input")[0].epsilon == epsilon
    assert np.float32(epsilon) == epsilon
    assert np.float32(2.0**-margin) >= np.finfo(np.float32).tiny


def test_what_is_no_text_and_no_dict_is_refused():
    with pytest.raises(RecipeError, match="must be TOML in a str, got bytes"):
        Recipe.from_toml(b'recipe = "mxfp8"')
    with pytest.raises(RecipeError, match="must be a dict of its fields, got list"):
        Recipe.from_dict([1])


def test_a_file_of_another_recipe_is_refused():
    with pytest.raises(RecipeError, match="must be 'mxfp8' for MXFP8BlockScaling, got 'nvfp4'"):
        MXFP8BlockScaling.from_dict({"recipe": "nvfp4"})


@pytest.mark.parametrize(
    ("make", "field", "says"),
    [
        (
            DelayedScaling,
            {"margin": -1},
            "DelayedScaling.margin must be an integer of at least 0 and at most 126",
        ),
        (DelayedScaling, {"margin": True}, "margin must be an integer"),
        (DelayedScaling, {"margin": 5000}, "margin must be an integer of at least 0 and at most 126, got 5000"),
        (Float8CurrentScaling, {"epsilon": 1e300}, r"epsilon must be 0 or .* to 3.4e\+38, got 1e\+300"),
        (Float8CurrentScaling, {"epsilon": 10**400}, "epsilon must be 0 or"),
        (Float8BlockScaling, {"epsilon": 1e-60}, "epsilon must be 0 or .* from 1.4e-45 .*, got 1e-60"),
        (DelayedScaling, {"amax_history_len": 0}, "amax_history_len must be an integer of at least 1, got 0"),
        (DelayedScaling, {"amax_compute_algo": "mean"}, "one of max, most_recent or a callable, got 'mean'"),
        (DelayedScaling, {"reduce_amax": 1}, "reduce_amax must be True or False, got 1"),
        (Float8CurrentScaling, {"fp8_format": "E5M2"}, "fp8_format must be one of HYBRID, E4M3, got 'E5M2'"),
        (Float8CurrentScaling, {"epsilon": -1.0}, "epsilon must be 0 or a finite, positive number .*, got -1.0"),
        (Float8BlockScaling, {"epsilon": float("nan")}, "epsilon must be 0 or a finite"),
        (Float8BlockScaling, {"backward": None}, "one of normal, high_precision, dequantized, got None"),
        (NVFP4BlockScaling, {"four_over_six": "mae"}, "one of none, weights, activations, all, got 'mae'"),
        (NVFP4BlockScaling, {"four_over_six_error": "max"}, "one of mae, mse, got 'max'"),
        (NVFP4BlockScaling, {"four_over_six": "all"}, "rht must be False with four_over_six='all', got True"),
        (
            MXFP4BlockScaling,
            {"activations": 8},
            "activations must be 'own', None, or another recipe or its name, got 8",
        ),
        (MXFP4BlockScaling, {"activations": MXFP8BlockScaling(activations=None)}, "activations must be"),
        (DelayedScaling, {"activations": "fp8-delayed"}, "activations must not have delayed scales of their own"),
        (
            NVFP4BlockScaling,
            {**ROW_SCALED, "weight_tiles": True},
            "weight_tiles must be False with row_scaled=True, got True; pass weight_tiles=False",
        ),
        (NVFP4FourOverSixScaling, {"rht": True}, "NVFP4FourOverSixScaling.rht must be False with four_over_six='all'"),
        (NVFP4BlockScaling, {"weight_tiles": "auto"}, "weight_tiles must be True, False or None, got 'auto'"),
        (CustomRecipe, {"factory": "input"}, "factory must be a callable"),
    ],
)
def test_validation(make, field, says):
    with pytest.raises(RecipeError, match=says):
        make(**field)


def test_recipes_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DelayedScaling().margin = 3


def test_a_custom_recipe_asks_its_factory_for_each_layer():
    asked = []

    class Quantizer:
        def schemes(self):
            return fp4(), None

    def factory(role):
        asked.append((str(role), role.layer, role.kind))
        return {"input": Quantizer(), "weight": (None, fp8(E4M3)), "grad_output": None}[role]

    recipe = CustomRecipe(factory)
    assert recipe.schemes(Role("input", layer="head")) == (fp4(), None)
    assert recipe.schemes(Role("weight", layer="head")) == (None, fp8(E4M3))
    assert recipe.schemes(Role("grad_output")) == (None, None)
    assert asked == [("input", "head", "linear"), ("weight", "head", "linear"), ("grad_output", "", "linear")]
    assert recipe == CustomRecipe(factory)


def test_a_custom_recipe_refuses_a_wrong_answer_and_serialization():
    recipe = CustomRecipe(lambda role: "e4m3")
    with pytest.raises(RecipeError, match="a pair of schemes or None, got 'e4m3' for 'input'"):
        recipe.schemes("input")
    for serialize in (recipe.to_dict, recipe.to_toml):
        with pytest.raises(RecipeError, match="keep the recipe in code"):
            serialize()


def test_a_callable_algorithm_is_not_serialized():
    recipe = DelayedScaling(amax_compute_algo=max)
    assert recipe == DelayedScaling(amax_compute_algo=max)
    with pytest.raises(RecipeError, match="amax_compute_algo must be plain data"):
        recipe.to_toml()


def test_recipes_import_no_torch():
    code = "import sys, steelyard.recipes; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
