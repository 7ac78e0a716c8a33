"""A training step of a GPT by every recipe, beside eager fp32 and torchao's emulated FP8 and MXFP8; what is kept."""

import copy
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from report import Table, median_seconds, progress
from torch import nn

import steelyard
from steelyard import recipes

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from train_gpt import GPT, Settings, draw, loss_of, read_sources


def measure(quick: bool = False) -> Table:
    """A row a way to train: milliseconds of forward, backward and optimizer, and megabytes kept for the backward."""
    settings = Settings(width=128, layers=2, heads=4) if quick else Settings(width=384, layers=6, batch=4)
    tokens = settings.batch * settings.length
    columns = ["training", "step ms", "speed against fp32", "forward ms", "backward ms", "kept MB", "kept against fp32"]
    title = f"A training step of a GPT, width {settings.width}, {settings.layers} blocks, {tokens} tokens"
    title = f"{title}, {torch.get_num_threads()} threads"
    table = Table(title, columns, labels=["training"], ratio="speed against fp32")
    torch.manual_seed(0)
    model = GPT(settings)
    batch = draw(read_sources()[0], settings, 0)
    exact: list[float] = []
    for name, make in _ways().items():
        progress(f"training: {name}")
        torch._dynamo.reset()
        figures = _measure_one(make(copy.deepcopy(model)), batch, repeats=3 if quick else 7)
        exact = exact or figures
        step, forward, backward, kept = figures
        table.rows.append([name, step, exact[0] / step, forward, backward, kept, kept / exact[3]])
    progress("")
    table.notes.append("kept: what autograd holds after the forward, parameters apart.")
    if importlib.util.find_spec("torchao") is None:
        table.notes.append("torchao is not installed: its rows are missing.")
    return table


def _ways() -> dict[str, Callable[[nn.Module], nn.Module]]:
    ways: dict[str, Callable[[nn.Module], nn.Module]] = {"eager fp32": lambda model: model}
    for recipe in recipes.NAMES:
        ways[recipe] = lambda model, recipe=recipe: steelyard.compile(model, recipe)
    ways["mxfp8, compact"] = lambda model: steelyard.compile(model, "mxfp8", save="compact")
    if importlib.util.find_spec("torchao") is not None:
        ways |= {"torchao float8, emulated": _torchao_float8, "torchao mxfp8, emulated": _torchao_mxfp8}
    return ways


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


def _measure_one(net: nn.Module, batch: tuple, repeats: int) -> list[float]:
    """Milliseconds of a step, of its forward and its backward, and megabytes kept in between."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    kept = _kept_bytes(net, batch)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(net, batch).backward()
        optimizer.step()

    step()
    whole = median_seconds(step, repeats)
    forward = median_seconds(lambda: loss_of(net, batch), repeats)
    losses = [loss_of(net, batch) for _ in range(repeats)]
    backward = median_seconds(lambda: losses.pop().backward(), repeats)
    return [whole * 1e3, forward * 1e3, backward * 1e3, kept / 1e6]


def _kept_bytes(net: nn.Module, batch: tuple) -> int:
    """Bytes of the storages that autograd saves in a forward, without parameters."""
    storages: dict[int, int] = {}
    own = {parameter.untyped_storage()._cdata for parameter in net.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            storages[storage._cdata] = storage.nbytes()
        return tensor

    loss_of(net, batch).backward()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = loss_of(net, batch)
    loss.backward()
    return sum(storages.values())
