"""Two processes train a net that is cut into blocks as they train it as a whole."""

import sys

import pytest
import torch
import torch.distributed as dist
from block_stacks import Stack, assert_same, gradients_of, is_cut, make_input, state_of
from ranks import save_results, start_ranks
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import steelyard

# One worker runs the ranks once, for all tests.
pytestmark = [pytest.mark.xdist_group("blocks-distributed"), pytest.mark.slow]
CASES = [
    ("ddp", "fp8-delayed"),
    ("ddp", "nvfp4"),
    ("shard, then compile", "fp8-delayed"),
    ("shard, then compile", "nvfp4"),
    ("compile, then shard the model", "mxfp8"),
    ("shard blocks only", "mxfp8"),
]


def make_distributed(mode: str, recipe: str, blocks: str | bool) -> tuple[nn.Module, nn.Module]:
    """The net, and what is called."""
    torch.manual_seed(0)
    model = Stack()
    compiled_first = (
        steelyard.compile(model, recipe, blocks=blocks) if mode == "compile, then shard the model" else None
    )
    if mode == "ddp":
        net = steelyard.compile(model, recipe, blocks=blocks)
        return net, DistributedDataParallel(net)
    for block in model.blocks:
        fully_shard(block)
    if mode != "shard blocks only":
        fully_shard(model)
    net = compiled_first or steelyard.compile(model, recipe, blocks=blocks)
    return net, net


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # pyright: ignore[reportAttributeAccessIssue]


def train_rank(mode: str, recipe: str, blocks: str | bool) -> dict:
    net, called = make_distributed(mode, recipe, blocks)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    for step in range(2):
        optimizer.zero_grad()
        called(make_input(10 * step + dist.get_rank())).square().mean().backward()
        gradients = {name: whole(gradient) for name, gradient in gradients_of(net).items()}
        optimizer.step()
    parameters = {name: whole(parameter).detach() for name, parameter in net.named_parameters()}
    sharded = all(hasattr(parameter, "full_tensor") for parameter in net.parameters())
    return {
        "tensors": gradients | parameters | state_of(net),
        "is cut": net._steelyard.backend.blocks is not None and is_cut(net),
        "is sharded": sharded,
        "kept": net._steelyard.backend.weights.nbytes(),
    }


def train_all() -> dict[str, dict]:
    return {
        f"{mode} {recipe} {blocks}": train_rank(mode, recipe, blocks)
        for mode, recipe in CASES
        for blocks in (False, "auto")
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict]:
    return start_ranks(__file__, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize(("mode", "recipe"), CASES)
def test_gradients_parameters_and_state_are_those_of_the_whole(ranks, mode, recipe):
    for rank in ranks:
        expected, got = (rank[f"{mode} {recipe} {blocks}"] for blocks in (False, "auto"))
        assert got["is cut"]
        assert not expected["is cut"]
        assert_same(got["tensors"], expected["tensors"])
        # Weights are gathered block by block, and quantized at every call: their codes are not kept.
        assert got["is sharded"] == (got["kept"] == 0) == (mode != "ddp")


if __name__ == "__main__":
    save_results(train_all, sys.argv[1])
