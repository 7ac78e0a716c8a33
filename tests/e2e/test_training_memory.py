"""Bytes that autograd holds for the backward, relative to the eager model in fp32."""

import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional

import steelyard
from steelyard import recipes
from steelyard.runtime import tape
from steelyard.runtime.program import Program


class Block(nn.Module):
    """A block of GPT."""

    def __init__(self, width: int = 128, heads: int = 4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.gelu, self.down = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(self.gelu(self.up(self.norm2(x))))


def held_bytes(call, model: nn.Module) -> int:
    """Bytes of the memory behind all saved tensors, parameters excepted."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    held = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            held[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = call()
    total = sum(size for size, _ in held.values())
    result.sum().backward()
    return total


@pytest.fixture(scope="module")
def block():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block()), torch.randn(2, 64, 128, requires_grad=True)


@pytest.mark.parametrize(
    ("recipe", "save", "most"),
    [("mxfp8", None, 0.75), ("nvfp4", None, 0.70), ("mxfp8", "compact", 0.5), ("nvfp4", "compact", 0.5)],
)
def test_a_gpt_block_keeps_less_than_torch(block, recipe, save, most):
    model, x = block
    eager = held_bytes(lambda: model(x), model)
    net = steelyard.compile(model, recipe, save=save)
    net(x).sum().backward()
    kept = held_bytes(lambda: net(x), model)
    assert kept <= most * eager
    report = net.memory()
    assert report["kept_by_torch"] == eager
    # What is kept is not in the arena, whose offsets are rounded up: it has memory of its own.
    assert report["kept_for_backward"] == pytest.approx(kept, rel=0.01)


@pytest.mark.parametrize("recipe", recipes.NAMES)
def test_the_input_of_a_linear_is_kept_as_codes(recipe):
    torch.manual_seed(0)
    # Layer 2, because the input of layer 0 is the model's. Not relu, whose backward also reads its result, as a mask.
    model = nn.Sequential(nn.Linear(256, 256, bias=False), nn.Hardtanh(), nn.Linear(256, 256, bias=False))
    x = torch.randn(128, 256, requires_grad=True)
    net = steelyard.compile(model, recipe)
    net(x).sum().backward()
    kept = net._steelyard.backend.compilations[-1].kept
    most = 0.15 if recipe == "nvfp4" else 0.27
    assert 0 < kept["2"] <= most * 128 * 256 * 4


def test_compact_gradients_are_close_to_the_others(block):
    model, x = block
    gradients = {}
    for save in (None, "compact"):
        model.zero_grad()
        net = steelyard.compile(model, "mxfp8", save=save)
        net(x).square().mean().backward()
        gradients[save] = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    model.zero_grad()
    model(x).square().mean().backward()
    exact = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    errors = {save: (gradient - exact).norm() / exact.norm() for save, gradient in gradients.items()}
    assert not torch.equal(gradients[None], gradients["compact"])
    notes = net.explain().notes
    assert [note.partition(":")[0] for note in notes] == [f"{i}.{layer}" for i in (0, 1) for layer in ("qkv", "up")]
    assert all(note.endswith("kept for the backward in bf16") for note in notes)
    assert errors["compact"] <= 1.1 * errors[None]


def test_what_was_saved_is_freed_as_the_backward_goes(with_tapes, monkeypatch):
    gradients, deaths = [], []
    """The gradients that were made, and how many of them were when each saved value died."""

    def count(make):
        def counting(*arguments):
            gradients.append(1)
            return make(*arguments)

        return counting

    make_maker, backward = tape.result_maker, Program.backward
    monkeypatch.setattr(tape, "result_maker", lambda *description: count(make_maker(*description)))

    def remember(self, values):
        gradients.clear()
        for value in values:
            if not isinstance(value, nn.Parameter):
                weakref.finalize(value, lambda: deaths.append(len(gradients)))
        return backward(self, values)

    monkeypatch.setattr(Program, "backward", remember)
    layers = [nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64)) for _ in range(4)]
    net = steelyard.compile(nn.Sequential(*layers), "mxfp8", blocks=False)
    net(torch.randn(32, 64, requires_grad=True)).sum().backward()
    assert len(gradients) == 17, "of each layer four, and that of the input"
    # The gradients of a layer are made before what it saved dies, and those of the layers before it are not.
    for layer in range(1, 4):
        assert sum(made <= 4 * layer for made in deaths) >= 3 * layer, deaths


class Summed(nn.Module):
    """A norm to which its own sums are added, by an op that only torch has: the backward is two tapes."""

    def __init__(self):
        super().__init__()
        self.before, self.norm, self.after = nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64)

    def forward(self, x):
        y = self.norm(self.before(x))
        return self.after(y + torch.cumsum(y, -1))


def test_results_of_a_tape_are_freed_as_the_next_one_goes(with_tapes, monkeypatch):
    made, deaths = [], {}
    """What tapes return, and how much of that was made when each died."""

    def follow(make):
        def following(*arguments):
            result, number = make(*arguments), len(made)
            made.append(tuple(result.shape))
            weakref.finalize(result, lambda: deaths.setdefault(number, len(made)))
            return result

        return following

    make_maker, backward = tape.result_maker, Program.backward
    monkeypatch.setattr(tape, "result_maker", lambda *description: follow(make_maker(*description)))

    def begin(self, values):
        made.clear()
        deaths.clear()
        return backward(self, values)

    monkeypatch.setattr(Program, "backward", begin)
    net = steelyard.compile(Summed(), "mxfp8", blocks=False)
    net(torch.randn(32, 64, requires_grad=True)).sum().backward()
    first, second = made[:3], made[3:]
    assert first == [(32, 64), (64, 64), (1, 64)], "gradients of what the last layer reads, its weight and its bias"
    assert len(second) == 5
    # The second tape adds the first of them to that of its sums, which torch makes in between, and then makes its own.
    assert deaths[0] == len(first)
