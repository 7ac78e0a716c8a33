"""Compiled models on a user's GPU, for `steelyard verify-gpu`."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import steelyard
from steelyard import recipes
from steelyard.tools.verify_gpu import Device, Result, guarded, same

_MOST_SHARE = 0.25


def check_models(place: Device) -> Iterator[Result]:
    """A compiled MLP and a transformer block: outputs and gradients compared with those of the CPU target.

    GEMMs sum in another order, and a different last bit may flip a code: the error may be up to a quarter of the error
    of quantization itself. Detail is the largest share.
    """
    for recipe in recipes.NAMES:
        for name, make in (("mlp", _make_mlp), ("block", _make_block)):
            yield guarded(f"{name} {recipe}", lambda r=recipe, m=make: compare_model(place, r, *m()))


def check_graphs(place: Device) -> Iterator[Result]:
    """A compiled forward in a CUDA graph: its replays equal the call."""
    for recipe in recipes.NAMES:
        yield guarded(f"cuda graph {recipe}", lambda r=recipe: _compare_graph(place, r))


def _make_mlp() -> tuple:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(100, 264), nn.GELU(), nn.Linear(264, 72)), torch.randn(50, 100)


def _make_block() -> tuple:
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
    return block, torch.randn(2, 24, 128)


def compare_model(place: Device, recipe: str, model: nn.Module, x: torch.Tensor) -> str:
    """The error of outputs and gradients against the CPU target, as a share of the error of quantization."""
    exact = _step(model, x)
    expected = _step(_compiled(model, recipe, "cpu"), x)
    found = _step(_compiled(model, recipe, "cuda", place.name), x.to(place.name))
    shares = {}
    for name, wanted in expected.items():
        allowed = (wanted - exact[name]).norm().item()
        shares[name] = (found[name] - wanted).norm().item() / allowed if allowed else 0.0
    worst = max(shares, key=lambda name: shares[name])
    if shares[worst] <= _MOST_SHARE:
        return f"error {shares[worst]:.1e} of quantization's"
    return f"{worst} is off by {shares[worst]:.1e} of what quantizing changes"


def _compiled(model: Any, recipe: str, target: str, device: str = "cpu") -> Any:
    return steelyard.compile(copy.deepcopy(model).to(device), recipe, target=target)


def _step(net: Any, x: Any) -> dict:
    """Output and gradients of one step, in float64 on the CPU."""
    x = x.detach().clone().requires_grad_()
    y = net(x)
    y.square().sum().backward()
    found = {"y": y, "dx": x.grad} | {f"gradient of {name}": p.grad for name, p in net.named_parameters()}
    return {name: tensor.detach().cpu().double() for name, tensor in found.items() if tensor is not None}


def _compare_graph(place: Device, recipe: str) -> str:
    model, x = _make_mlp()
    net, x = _compiled(model.eval(), recipe, "cuda", place.name), x.to(place.name)
    with torch.no_grad():
        expected = net(x).clone()
        net(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = net(x)
        found.zero_()
        graph.replay()
        torch.cuda.synchronize()
    return "" if same(found, expected.cpu()) else "a replay differs from the call"
