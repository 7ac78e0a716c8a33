"""A training step of a GPT by every recipe, beside eager fp32 and torchao's emulated FP8 and MXFP8; bytes kept."""

import copy
from collections.abc import Callable
from functools import partial

import torch
from contest import Contender, compete, contest_table
from machine import thread_counts
from models import GPT
from report import Table
from torch import nn
from torch.nn import functional

import steelyard
from steelyard import recipes

# Speeds against eager fp32.
AIMS = {"steelyard mxfp8": 1.0, "steelyard nvfp4": 1.25}
Batch = tuple[torch.Tensor, torch.Tensor]


def measure(quick: bool = False) -> Table:
    """One row per way to train: forward, backward and optimizer, and the bytes kept in between."""
    held = "what autograd keeps from the forward to the backward, without parameters"
    table = contest_table("A training step: forward, backward, AdamW", "eager fp32", held)
    layers, width, tokens = (2, 128, 128) if quick else (4, 512, 512)
    for threads in (1,) if quick else thread_counts():
        torch.manual_seed(0)
        torch._dynamo.reset()
        model = GPT(layers=layers, width=width, heads=width // 64, vocabulary=1024)
        batch = torch.randint(0, 1024, (4, tokens // 4)), torch.randint(0, 1024, (4, tokens // 4))
        makers = {name: partial(_contender, make, model, batch) for name, make in _ways(quick).items()}
        work = f"GPT {layers} x {width}, {tokens} tokens"
        compete(table, work, threads, makers, calls=15, seconds=0.5 if quick else 8.0, aims=AIMS, gradients=True)
    table.notes.append("The error is that of the loss of the first step.")
    if quick:
        table.notes.append("Quick: without inductor.")
    return table


def _ways(quick: bool) -> dict[str, Callable[[nn.Module], nn.Module]]:
    ways: dict[str, Callable[[nn.Module], nn.Module]] = {"eager fp32": lambda model: model}
    for recipe in recipes.NAMES:
        ways[f"steelyard {recipe}"] = partial(_compiled, recipe=recipe)
    ways["steelyard mxfp8, compact"] = partial(_compiled, recipe="mxfp8", save="compact")
    if not quick:
        ways["inductor fp32"] = torch.compile
    return ways | {"torchao float8, emulated": _torchao_float8, "torchao MXFP8, emulated": _torchao_mxfp8}


def _compiled(model: nn.Module, recipe: str, save: str | None = None) -> nn.Module:
    return steelyard.compile(model, recipe, save=save)


def _torchao_float8(model: nn.Module) -> nn.Module:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    return convert_to_float8_training(model, config=Float8LinearConfig(emulate=True))


def _torchao_mxfp8(model: nn.Module) -> nn.Module:
    from torchao.prototype.moe_training.config import MXFP8TrainingOpConfig
    from torchao.quantization import quantize_
    from torchao.quantization.quantize_.common import KernelPreference

    config = MXFP8TrainingOpConfig(kernel_preference=KernelPreference.EMULATED, out_dtype=torch.float32)
    quantize_(model, config, filter_fn=lambda module, _: isinstance(module, nn.Linear))
    return model


def _contender(make: Callable[[nn.Module], nn.Module], model: nn.Module, batch: Batch) -> Contender:
    """A copy of the model; each call trains it for one step."""
    net = make(copy.deepcopy(model))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = _loss(net, batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Contender(step, _kept_bytes(net, batch))


def _loss(net: nn.Module, batch: Batch) -> torch.Tensor:
    tokens, targets = batch
    return functional.cross_entropy(net(tokens).flatten(0, 1), targets.flatten())


def _kept_bytes(net: nn.Module, batch: Batch) -> int:
    """Bytes of the storages that autograd saves in a forward, without parameters."""
    storages: dict[int, int] = {}
    own = {parameter.untyped_storage()._cdata for parameter in net.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            storages[storage._cdata] = storage.nbytes()
        return tensor

    # The first call compiles, and may keep more than a step does.
    _loss(net, batch).backward()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = _loss(net, batch)
    loss.backward()
    return sum(storages.values())
