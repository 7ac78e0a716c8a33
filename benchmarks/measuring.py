"""What measuring costs: steps and forwards of a GPT whose every GEMM is measured, beside eager fp32."""

import copy
from functools import partial

import torch
from contest import Contender, compete, contest_table
from models import GPT
from report import Table
from torch.nn import functional

import steelyard

RECIPES = ("mxfp8", "nvfp4", "fp8-delayed")
# A measured step takes at most four eager ones.
AIM = 1 / 4


def measure(quick: bool = False) -> Table:
    """One row per recipe, measured and not, of a training step and of a forward with its float32 model beside it."""
    table = contest_table("What measuring costs", "eager fp32", "nothing that is counted here")
    layers, width, tokens = (2, 128, 128) if quick else (4, 512, 512)
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = GPT(layers=layers, width=width, heads=width // 64, vocabulary=1024)
    batch = torch.randint(0, 1024, (4, tokens // 4)), torch.randint(0, 1024, (4, tokens // 4))
    for work, contender, gradients in (("training step", _step, True), ("forward", _forward, False)):
        makers = {"eager fp32": partial(contender, model, batch, None, False)}
        for recipe in RECIPES:
            for is_measured in (False, True):
                name = f"steelyard {recipe}{', measured' * is_measured}"
                makers[name] = partial(contender, model, batch, recipe, is_measured)
        aims = {name: AIM for name in makers if "measured" in name}
        seconds = 0.5 if quick else 6.0
        compete(
            table,
            f"GPT {layers} x {width}, {work}",
            1,
            makers,
            calls=9,
            seconds=seconds,
            aims=aims,
            gradients=gradients,
        )
    table.notes.append("A measured forward has the forward of the float32 model in it, for the error of the output.")
    return table


def _net(model: GPT, recipe: str | None, is_measured: bool) -> GPT:
    own = copy.deepcopy(model)
    net = own if recipe is None else steelyard.compile(own, recipe)
    if is_measured:
        net.measure().open()
    return net


def _step(model: GPT, batch: tuple, recipe: str | None, is_measured: bool) -> Contender:
    net = _net(model, recipe, is_measured)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        tokens, targets = batch
        loss = functional.cross_entropy(net(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Contender(step)


def _forward(model: GPT, batch: tuple, recipe: str | None, is_measured: bool) -> Contender:
    net = _net(model, recipe, is_measured=False)
    tokens, _ = batch

    if not is_measured:
        return Contender(lambda: net(tokens))
    exact = net._steelyard.model(tokens)

    def measured() -> torch.Tensor:
        error = net.measure([tokens]).output.relative_error
        # With this error, which the table shows.
        return exact * (1 + error)

    return Contender(measured)
