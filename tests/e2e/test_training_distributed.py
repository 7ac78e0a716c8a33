"""Two processes train a compiled model as one process does that runs each rank's batch separately and averages."""

import json
import sys
from functools import partial

import pytest
import torch
import torch.distributed as dist
from ranks import WORLD_SIZE, save_results, start_ranks
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import steelyard
import steelyard.frontend.grouped_mm  # It defines the op.
from steelyard.recipes import DelayedScaling, get

STEPS = 3
# One worker runs the ranks once, for all tests.
pytestmark = pytest.mark.xdist_group("distributed")
RECIPES = {
    "fp8-current": get("fp8-current"),
    "fp8-delayed": DelayedScaling(amax_history_len=4, reduce_amax=False),
    "fp8-block": get("fp8-block"),
    "mxfp8": get("mxfp8"),
    "nvfp4": get("nvfp4"),
}
CASES = [("ddp", name) for name in RECIPES]
# Compiled as a whole, each block is a separate graph, whose backward advances the random state.
CASES += [("blocks", "nvfp4"), ("checkpointed", "nvfp4"), ("whole", "mxfp8"), ("blocks", "fp8-delayed")]


class Block(nn.Module):
    """A feed-forward block whose sizes are not multiples of a tile."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(40)
        self.up = nn.Linear(40, 72)
        self.down = nn.Linear(72, 40)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """Two blocks, optionally computed again in the backward."""

    def __init__(self, checkpointed: bool):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.checkpointed = checkpointed

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return x


def make_model(mode: str) -> Model:
    torch.manual_seed(0)
    return Model(mode == "checkpointed")


def batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(16, 40, generator=torch.Generator().manual_seed(10 * step + rank))


def make_distributed(mode: str, recipe) -> tuple[nn.Module, nn.Module]:
    """The model, and what is called."""
    model = make_model(mode)
    if mode == "ddp":
        return model, DistributedDataParallel(steelyard.compile(model, recipe))
    if mode in ("blocks", "checkpointed"):
        for number, block in enumerate(model.blocks):
            model.blocks[number] = steelyard.compile(block, recipe)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model, steelyard.compile(model, recipe) if mode == "whole" else model


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def train_rank(mode: str, recipe) -> dict:
    model, called = make_distributed(mode, recipe)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step in range(STEPS):
        called(batch(dist.get_rank(), step)).square().mean().backward()
        gradients = {name: whole(parameter.grad) for name, parameter in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
    return {"gradients": gradients, "parameters": {name: whole(p) for name, p in model.named_parameters()}}


def train_alone(mode: str, recipe) -> dict:
    """Run each rank's batch separately, with its own state; both are updated by the mean of the gradients."""
    models = [make_model(mode) for _ in range(WORLD_SIZE)]
    nets = [steelyard.compile(model, recipe) for model in models]
    for step in range(STEPS):
        for rank, net in enumerate(nets):
            net(batch(rank, step)).square().mean().backward()
        pairs = list(zip(*(dict(model.named_parameters()).items() for model in models), strict=True))
        gradients = {first[0]: (first[1].grad + second[1].grad) / 2 for first, second in pairs}
        with torch.no_grad():
            for named in pairs:
                for name, parameter in named:
                    parameter -= 0.02 * gradients[name]
                    parameter.grad = None
    return {"gradients": gradients, "parameters": {name: p.detach() for name, p in models[0].named_parameters()}}


def reduced_state() -> dict:
    """The delayed state of a rank whose amaxes are reduced over all ranks."""
    model = make_model("ddp")
    recipe = DelayedScaling(amax_history_len=4)
    net = steelyard.compile(model, recipe)
    net(batch(dist.get_rank(), 0)).square().mean().backward()
    state = net.state_dict()
    return {name: tensor.clone() for name, tensor in state.items() if name.startswith("_steelyard.")}


ENDS = ([3, 3, 8], [0, 6, 8])
"""Where each rank's groups end: each of two experts has rows on one rank only."""


class Experts(nn.Module):
    """A product of experts."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 24, 40, generator=torch.Generator().manual_seed(0)))

    def forward(self, x, ends):
        return torch.ops.steelyard.grouped_mm(x, self.weight.transpose(-2, -1), ends)


def rows_of_experts(rank: int) -> torch.Tensor:
    return torch.randn(8, 40, generator=torch.Generator().manual_seed(rank)) * (rank + 1)


def reduced_experts() -> dict:
    """The delayed state of experts, reduced over all ranks."""
    net = steelyard.compile(Experts(), DelayedScaling(amax_history_len=4))
    rank = dist.get_rank()
    net(rows_of_experts(rank).requires_grad_(), torch.tensor(ENDS[rank], dtype=torch.int32)).sum().backward()
    return {name: tensor.clone() for name, tensor in net.state_dict().items() if name.startswith("_steelyard.")}


def train_all(cases: list[tuple[str, str]]) -> dict[str, dict]:
    trained = {f"{mode} {name}": train_rank(mode, RECIPES[name]) for mode, name in cases}
    return trained | {"reduced": reduced_state(), "experts": reduced_experts()}


@pytest.fixture(scope="module")
def ranks(request, tmp_path_factory) -> list[dict]:
    """The results of each rank, which trains only the cases that were selected."""
    own = [
        item.callspec.params
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    cases = [(chosen["mode"], chosen["name"]) for chosen in own]
    return start_ranks(__file__, tmp_path_factory.mktemp("ranks"), json.dumps(cases))


@pytest.mark.every(4)
@pytest.mark.parametrize(("mode", "name"), CASES, ids=lambda word: word)
def test_equals_each_batch_by_itself(ranks, mode, name):
    expected = train_alone(mode, RECIPES[name])
    for rank in ranks:
        got = rank[f"{mode} {name}"]
        for kind in ("gradients", "parameters"):
            for key, tensor in expected[kind].items():
                # The mean of two ranks may be summed and rounded in another order.
                found = got[kind][key]
                assert (found - tensor).abs().max() <= 2e-6 * tensor.abs().max(), (kind, key)


def test_delayed_history_holds_the_largest_amax_of_all_ranks(ranks):
    first, second = (rank["reduced"] for rank in ranks)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    amaxes = []
    for rank in range(WORLD_SIZE):
        norm = make_model("ddp").blocks[0].norm
        amaxes.append(norm(batch(rank, 0)).abs().max().item())
    assert first["_steelyard.blocks.0.up.input.amax_history"].max().item() == pytest.approx(max(amaxes), rel=1e-6)
    assert amaxes[0] != amaxes[1]


def test_delayed_history_of_experts_holds_the_largest_amax_of_each(ranks):
    first, second = (rank["experts"] for rank in ranks)
    assert all(torch.equal(first[name], second[name]) for name in first)
    amaxes = torch.zeros(WORLD_SIZE, 3)
    for rank, ends in enumerate(ENDS):
        for expert, rows in enumerate(rows_of_experts(rank).tensor_split(ends[:-1])):
            amaxes[rank, expert] = rows.abs().max() if len(rows) else 0.0
    assert torch.equal(first["_steelyard.weight.input.amax_history"][-1], amaxes.amax(0))
    assert torch.equal(first["_steelyard.weight.input.scale"], torch.tensor(448.0) / amaxes.amax(0))


if __name__ == "__main__":
    save_results(partial(train_all, json.loads(sys.argv[2])), sys.argv[1])
