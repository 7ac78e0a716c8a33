"""Checkpoints in and around repeated blocks: results, gradients and state are those of the net as a whole."""

import pytest
import torch
from block_stacks import LAYERS, Stack, assert_same, compilations, gradients_of, is_cut, make_input, state_of
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.checkpoint import checkpoint as compute_again
from transformers import LlamaConfig, LlamaForCausalLM

import steelyard
from steelyard.driver.blocks import find_blocks
from steelyard.errors import UnsupportedModelError
from steelyard.recipes import Overrides

# A second run of a program would move the scales of the one, and draw other random bits in the other.
RECIPES = ["fp8-delayed", "nvfp4"]


class Checkpointed(Stack):
    def __init__(self, use_reentrant: bool = False):
        super().__init__()
        self.use_reentrant = use_reentrant

    def call(self, block, x):
        return checkpoint(block, x, use_reentrant=self.use_reentrant)


class Segments(Stack):
    def forward(self, x):
        return checkpoint_sequential(list(self.blocks), 2, x, use_reentrant=False)


class Switched(Stack):
    def __init__(self):
        super().__init__()
        self.gradient_checkpointing = False

    def call(self, block, x):
        if torch.is_grad_enabled() and self.gradient_checkpointing:
            return checkpoint(block, x, use_reentrant=False)
        return block(x)


class Renamed(Stack):
    """Makes checkpoints by another name."""

    def __init__(self, use_reentrant: bool = False):
        super().__init__()
        self.use_reentrant = use_reentrant

    def call(self, block, x):
        return compute_again(block, x, use_reentrant=self.use_reentrant)


TOOLS = {"again": compute_again}


class HiddenHead(Stack):
    """Nothing in its code tells that it makes a checkpoint."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(40, 40)

    def forward(self, x):
        return TOOLS["again"](self.head, super().forward(x), use_reentrant=False)


class Wrapped(Stack):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(map(checkpoint_wrapper, self.blocks))


def train(net, call) -> dict[str, torch.Tensor]:
    """The last result and its gradients, and the state that is left."""
    for step in range(3):
        net.zero_grad()
        x = make_input(step).requires_grad_()
        result = call(net, x)
        result.square().mean().backward()
    assert x.grad is not None
    return gradients_of(net) | state_of(net) | {"result": result.detach(), "gradient of x": x.grad}


def train_both(make, recipe: str, call=torch.nn.Module.__call__):
    """Train a net as a whole and another that may be cut, compare them, and return the other."""
    nets, found = [], []
    for blocks in (False, "auto"):
        torch.manual_seed(0)
        nets.append(steelyard.compile(make(), recipe, blocks=blocks))
        found.append(train(nets[-1], call))
    assert_same(found[1], found[0])
    return nets[1]


@pytest.mark.every(2)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("use_reentrant", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_model_that_makes_checkpoints_around_blocks_is_captured_as_a_whole(use_reentrant, recipe):
    net = train_both(lambda: Checkpointed(use_reentrant), recipe)
    assert len(compilations(net)) == 1


def test_a_model_that_makes_checkpoints_of_segments_is_captured_as_a_whole():
    assert find_blocks(Segments(), "auto", Overrides()) is None
    assert find_blocks(Renamed(), "auto", Overrides()) is None
    assert find_blocks(Stack(), "auto", Overrides()) is not None


@pytest.mark.every(2)
@pytest.mark.parametrize("recipe", RECIPES)
def test_checkpoints_that_blocks_make_themselves(recipe):
    assert is_cut(train_both(Wrapped, recipe))


@pytest.mark.every(2)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_checkpoint_around_the_net(recipe):
    net = train_both(Stack, recipe, call=lambda net, x: checkpoint(net, x, use_reentrant=False))
    assert is_cut(net)


class Bare(Stack):
    """The backward of its blocks takes no parameter as it is: only the codes of weights."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(40, 40, bias=False), nn.Tanh()) for _ in range(LAYERS))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("make", [pytest.param(Stack, marks=pytest.mark.slow), Bare])
def test_saved_tensors_that_are_copies(make, recipe):
    """Neither their addresses nor their objects tell of which block they are."""

    def call(net, x):
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
            return net(x)

    assert is_cut(train_both(make, recipe, call))


def test_a_model_whose_checkpoints_are_switched_on_later():
    results = []
    for blocks in (False, "auto"):
        torch.manual_seed(0)
        model = Switched()
        net = steelyard.compile(model, "fp8-delayed", blocks=blocks)
        results.append([])
        for step, is_on in enumerate([False, True, True, False]):
            model.gradient_checkpointing = is_on
            net.zero_grad()
            net(make_input(step)).square().mean().backward()
            results[-1].append(gradients_of(net) | state_of(net))
            if blocks == "auto" and step == 0:
                assert is_cut(net)
    for expected, got in zip(*results, strict=True):
        assert_same(got, expected)


UNSEEN = [
    (HiddenHead, "auto", "head"),
    (Checkpointed, ["blocks"], "blocks.0"),
]


@pytest.mark.parametrize(("make", "blocks", "name"), UNSEEN)
def test_a_checkpoint_that_was_not_foreseen(make, blocks, name):
    model = make()
    net = steelyard.compile(model, "mxfp8", blocks=blocks)
    with pytest.raises(UnsupportedModelError, match=rf"{name} is called in torch.utils.checkpoint .* blocks=False"):
        net(make_input(0))
    # Without gradients, nothing runs twice.
    with torch.no_grad():
        got = net(make_input(0))
        assert torch.equal(got, steelyard.compile(model, "mxfp8", blocks=False)(make_input(0)))


@pytest.mark.parametrize(
    ("recipe", "use_reentrant"), [("fp8-delayed", False), pytest.param("nvfp4", True, marks=pytest.mark.slow)]
)
def test_gradient_checkpointing_of_transformers(recipe, use_reentrant):
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        use_cache=False,
    )
    ids = torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(0))
    results = []
    for blocks in (False, "auto"):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).train()
        model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        net = steelyard.compile(model, recipe, blocks=blocks)
        for _ in range(2):
            net.zero_grad()
            loss = net(input_ids=ids, labels=ids).loss
            loss.backward()
        results.append(gradients_of(net) | state_of(net) | {"loss": loss.detach()})
    assert_same(results[1], results[0])
    # One for each layer, and one for the head.
    assert len(compilations(net)) == LAYERS + 1
