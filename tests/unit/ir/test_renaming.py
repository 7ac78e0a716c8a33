"""Names of one layer become those of another with the same code."""

import pytest

from steelyard.ir.renaming import Renaming

BLOCK = ["blocks.0.norm.weight", None, "blocks.0.mlp.up.weight", "blocks.0.mlp.up.bias", "scale"]
OTHER = ["blocks.7.norm.weight", None, "blocks.7.mlp.up.weight", "blocks.7.mlp.up.bias", "scale"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("blocks.0.mlp.up", "blocks.7.mlp.up"),
        ("blocks.0.mlp", "blocks.7.mlp"),
        ("blocks.0", "blocks.7"),
        # Around and beside the parameters.
        ("blocks.0.attention.softmax", "blocks.7.attention.softmax"),
        ("blocks.10.mlp", "blocks.10.mlp"),
        ("blocks", "blocks"),
        ("", ""),
    ],
)
def test_layers(old, new):
    assert Renaming(BLOCK, OTHER).layer(old) == new


def test_parameters():
    renaming = Renaming(BLOCK, OTHER)
    assert [name and renaming.parameter(name) for name in BLOCK] == OTHER
    assert renaming.parameter("blocks.1.norm.weight") == "blocks.1.norm.weight"


def test_states():
    renaming = Renaming(BLOCK, OTHER)
    assert renaming.state("blocks.0.mlp.up.input.scale") == "blocks.7.mlp.up.input.scale"
    assert renaming.state("blocks.0.mlp.up.weight.amax_history") == "blocks.7.mlp.up.weight.amax_history"
    assert renaming.state("head.input.scale") == "head.input.scale"
    assert renaming.state("input.scale") == "input.scale"
    assert renaming.state("rng") == "rng"


def test_the_root_and_a_submodule_of_its_class():
    renaming = Renaming(["weight", "up.weight"], ["inner.weight", "inner.up.weight"])
    assert [renaming.layer(layer) for layer in ("", "up", "act")] == ["inner", "inner.up", "inner.act"]
    assert renaming.state("input.scale") == "inner.input.scale"
    back = Renaming(["inner.weight", "inner.up.weight"], ["weight", "up.weight"])
    assert [back.layer(layer) for layer in ("inner", "inner.up", "inner.act")] == ["", "up", "act"]
    assert back.state("inner.input.scale") == "input.scale"


@pytest.mark.parametrize("is_first", [True, False])
def test_a_shared_parameter_says_nothing_about_the_modules_around_it(is_first):
    """A tied weight has one name: that of the last layer, whose own bias tells it from the others."""
    shared, bias, other = "blocks.2.up.weight", "blocks.2.up.bias", "blocks.1.up.bias"
    old, new = ([shared, bias], [shared, other]) if is_first else ([bias, shared], [other, shared])
    renaming = Renaming(old, new)
    assert renaming.layer("blocks.2.up") == "blocks.1.up"
    assert renaming.layer("blocks.2") == "blocks.1"
    assert renaming.parameter(shared) == shared
    assert renaming.state("blocks.2.up.weight.scale") == "blocks.1.up.weight.scale"
    assert renaming.is_one_to_one


def test_a_weight_that_is_tied_to_one_elsewhere_does_not_move_its_layer():
    renaming = Renaming(["blocks.0.up.weight", "blocks.0.up.bias"], ["embedding.weight", "blocks.1.up.bias"])
    assert renaming.layer("blocks.0.up") == "blocks.1.up"
    assert renaming.parameter("blocks.0.up.weight") == "embedding.weight"


def test_parameters_that_become_one_or_several_are_not_one_to_one():
    assert Renaming(BLOCK, OTHER).is_one_to_one
    assert not Renaming(["a.weight", "b.weight"], ["c.weight", "c.weight"]).is_one_to_one
    assert not Renaming(["c.weight", "c.weight"], ["a.weight", "b.weight"]).is_one_to_one
