"""`steelyard.distill`: train a quantized net to answer as the model in high precision does."""

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from steelyard.driver import progress
from steelyard.driver.net import CompiledModule
from steelyard.errors import RecipeError, StateError, UnsupportedModelError, shown
from steelyard.tuning.batches import Batch, as_list, output_of

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_FILE = "distill.pt"
_ROWS = 64
"""How many rows of logits are compared at a time."""


def distill(
    student_net: Any,
    teacher: nn.Module,
    batches: Iterable[Batch],
    *,
    optimizer: torch.optim.Optimizer | None = None,
    steps: int | None = None,
    temperature: float = 1.0,
    loss: Loss | None = None,
    clip: float | None = 1.0,
    after_step: Callable[[int, float], None] | None = None,
    folder: str | Path | None = None,
    save_every: int = 50,
) -> list[float]:
    """Train a net so that its output is that of a teacher; returns the loss of each step.

    The net's forward is the quantized one. Gradients pass through the quantization as if it were not there.

    Args:
        student_net: A net of `steelyard.compile` whose parameters require gradients. Its model is trained in place.
        teacher: The model in high precision, with parameters of its own, or another model of the same task.
        batches: What both are called with. They are taken in their order, and from the start when they end.
        optimizer: Any of torch's, made of `student_net.parameters()`; by default Adam with a learning rate of 1e-5.
        steps: How many, by default one for each batch.
        temperature: Logits are divided by it. It has no meaning for outputs that are not logits.
        loss: Takes the outputs of student and teacher; by default the mean KL divergence per row of logits, or the mean
            squared error of other outputs.
        clip: The largest norm of all gradients together; None for any.
        after_step: Called with the number of steps that are done and the loss of the last.
        folder: Where checkpoints are kept: the same call goes on from the last one.
        save_every: Steps from one checkpoint to the next.
    """
    given = as_list(batches)
    count = len(given) if steps is None else steps
    _check(student_net, teacher, count, temperature, save_every)
    trained = [parameter for parameter in student_net.parameters() if parameter.requires_grad]
    optimizer = optimizer or torch.optim.Adam(trained, lr=1e-5)
    file = None if folder is None else Path(folder) / _FILE
    losses = _resume(file, student_net, optimizer)
    teacher_mode = teacher.training
    teacher.eval()
    try:
        with progress.doing(lambda: "distilling"):
            for batch in itertools.islice(itertools.cycle(given), len(losses), count):
                progress.step(f"step {len(losses) + 1} of {count}")
                losses.append(_step(student_net, teacher, batch, optimizer, trained, temperature, loss, clip))
                if after_step is not None:
                    after_step(len(losses), losses[-1])
                if file is not None and (len(losses) % save_every == 0 or len(losses) == count):
                    _save(file, student_net, optimizer, losses)
    finally:
        teacher.train(teacher_mode)
    return losses


def _step(
    net: Any,
    teacher: nn.Module,
    batch: Batch,
    optimizer: torch.optim.Optimizer,
    trained: list[torch.Tensor],
    temperature: float,
    loss: Loss | None,
    clip: float | None,
) -> float:
    with torch.no_grad():
        wanted, is_logits = output_of(teacher, batch)
    output, _ = output_of(net, batch)
    if loss is not None:
        value = loss(output, wanted)
    elif is_logits:
        value = _Divergence.apply(output, wanted, temperature)
    else:
        value = functional.mse_loss(output, wanted.to(output.dtype))
    if not torch.isfinite(value):
        raise StateError(f"the loss must be finite, got {float(value)}; use a smaller learning rate")
    optimizer.zero_grad(set_to_none=True)
    value.backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(trained, clip)
    optimizer.step()
    return float(value.detach())


class _Divergence(torch.autograd.Function):
    """The mean KL divergence per row of logits, times the squared temperature.

    Its gradient is made beside it, a few rows at a time: rows are as long as a vocabulary, and autograd would keep
    several values for each logit.
    """

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, wanted: torch.Tensor, temperature: float) -> torch.Tensor:
        gradient = output.new_empty(output.shape)
        rows = [each.flatten(0, -2).split(_ROWS) for each in (output, wanted, gradient)]
        count = output.shape[:-1].numel()
        total = output.new_zeros((), dtype=torch.float64)
        for ours, theirs, into in zip(*rows, strict=True):
            log_ours, log_theirs = (functional.log_softmax(each.float() / temperature, -1) for each in (ours, theirs))
            total += functional.kl_div(log_ours, log_theirs, log_target=True, reduction="sum")
            into.copy_(log_ours.exp_().sub_(log_theirs.exp_()).mul_(temperature / count))
        ctx.save_for_backward(gradient)
        return (total * (temperature**2 / count)).float()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * gradients[0], None, None


def _check(net: Any, teacher: Any, steps: Any, temperature: Any, save_every: Any) -> None:
    if not isinstance(net, CompiledModule):
        raise UnsupportedModelError(
            f"student_net must be a net of steelyard.compile, got {type(net).__name__}; compile the student by the "
            "recipe that it will run by"
        )
    if not isinstance(teacher, nn.Module):
        raise UnsupportedModelError(f"teacher must be an nn.Module, got {type(teacher).__name__}")
    trained = {id(parameter) for parameter in net.parameters() if parameter.requires_grad}
    if not trained:
        raise UnsupportedModelError(
            "student_net must have parameters that require gradients, and has none; the weights of a tuned model are "
            "codes: load steelyard.plain_state_dict(tuned.state_dict()) into a copy of the plain model, and compile it"
        )
    if any(id(parameter) in trained for parameter in teacher.parameters()):
        raise UnsupportedModelError(
            "teacher must have parameters of its own, and shares those of the student; make the student of "
            "copy.deepcopy(teacher)"
        )
    for name, value in (("steps", steps), ("save_every", save_every)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise RecipeError(f"{name} must be a whole number of at least 1, got {shown(value)}")
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not temperature > 0:
        raise RecipeError(f"temperature must be a positive number, got {shown(temperature)}")


def _save(file: Path, net: Any, optimizer: torch.optim.Optimizer, losses: list[float]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    kept = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
    torch.save({**kept, "random": torch.get_rng_state()}, unfinished)
    unfinished.replace(file)


def _resume(file: Path | None, net: Any, optimizer: torch.optim.Optimizer) -> list[float]:
    """The losses of the steps that are done already."""
    if file is None or not file.exists():
        return []
    kept = torch.load(file, weights_only=True)
    net.load_state_dict(kept["net"])
    optimizer.load_state_dict(kept["optimizer"])
    torch.set_rng_state(kept["random"])
    return list(kept["losses"])
