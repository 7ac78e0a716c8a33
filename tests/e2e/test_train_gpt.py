"""The example that trains a GPT: every recipe learns, and a stopped run resumes bit for bit."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import train_gpt

from steelyard import recipes

SMALL = train_gpt.Settings(
    steps=60, width=64, layers=2, heads=2, length=64, batch=4, rate=2e-3, validation_batches=8, evaluate_every=30
)


@pytest.mark.slow
def test_every_recipe_learns(tmp_path):
    runs = {}
    for recipe in train_gpt.RECIPES:
        torch._dynamo.reset()
        runs[recipe] = train_gpt.Run(recipe, SMALL, tmp_path)
        runs[recipe].go_on()
    exact = runs["fp32"].validation[-1][1]
    # A byte costs log(256) = 5.5 nats before anything is learned, and 3.4 if only byte frequencies are learned.
    assert exact < 3.2
    for recipe in recipes.NAMES:
        assert runs[recipe].train[0] == pytest.approx(runs["fp32"].train[0], rel=0.02)
        assert runs[recipe].validation[-1][1] == pytest.approx(exact, rel=0.02)
    table = train_gpt.make_table(list(runs.values()))
    assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == [f"| {name}" for name in train_gpt.RECIPES]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", recipes.NAMES)
def test_a_stopped_run_goes_on_bit_for_bit(recipe, tmp_path):
    for folder, stops in (("whole", (20,)), ("stopped", (10, 20))):
        (tmp_path / folder).mkdir()
        for until in stops:
            torch._dynamo.reset()
            torch.manual_seed(123)
            run = train_gpt.Run(recipe, SMALL, tmp_path / folder)
            run.go_on(until)
    whole, stopped = (torch.load(tmp_path / folder / f"{recipe}.pt") for folder in ("whole", "stopped"))
    assert whole["train"] == stopped["train"]
    assert whole["net"].keys() == stopped["net"].keys()
    assert all(torch.equal(whole["net"][name], stopped["net"][name]) for name in whole["net"])


def test_other_settings_do_not_go_on(tmp_path):
    tiny = train_gpt.Settings(steps=1, width=16, layers=1, heads=1, length=8, batch=1, validation_batches=1)
    train_gpt.Run("fp32", tiny, tmp_path).go_on()
    with pytest.raises(SystemExit, match="other settings"):
        train_gpt.Run("fp32", train_gpt.Settings(**{**vars(tiny), "steps": 2}), tmp_path)


def test_batches_are_the_same_for_every_run():
    text, unseen = train_gpt.read_sources()
    assert len(text) > 5 * len(unseen) > 100_000
    first, again, other = (train_gpt.draw(text, SMALL, number) for number in (3, 3, 4))
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])
    # The target of each byte is the next one.
    assert torch.equal(first[0][:, 1:], first[1][:, :-1])
