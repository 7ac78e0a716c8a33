"""`steelyard.tune` on models whose forward is unlike that of a chain of blocks, and what it leaves as it was."""

import torch
from torch import nn

import steelyard
from steelyard.tuning import calibration
from steelyard.tuning.layers import find_layers
from steelyard.tuning.products import find_groups

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
