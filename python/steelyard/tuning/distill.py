"""`steelyard.distill`: train a quantized net to answer as the model in high precision does."""

import hashlib
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from steelyard.driver import progress
from steelyard.driver.net import CompiledModule
from steelyard.errors import RecipeError, StateError, UnsupportedModelError, shown
from steelyard.files import failure
from steelyard.tensor.quantized_tensor import QuantizedTensor
from steelyard.tuning.batches import Batch, as_list, for_inference, output_of

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
        optimizer: Any of torch's, made of `student_net.parameters()` or of some of them, the others then stay as they
            are; by default Adam with a learning rate of 1e-5. One that calls a closure, such as LBFGS, does so with the
            same batch.
        steps: How many, by default one for each batch.
        temperature: Logits are divided by it. It has no meaning for outputs that are not logits.
        loss: Takes the outputs of student and teacher; by default the mean KL divergence per row of logits, or the mean
            squared error of other outputs.
        clip: The largest norm of the gradients of all that is trained together; None for any.
        after_step: Called with the number of steps that are done and the loss of the last.
        folder: Where checkpoints are kept: the same call, or one with more steps, goes on from the last one. That of
            another student, teacher or optimizer, or of other batches, is refused.
        save_every: Steps from one checkpoint to the next.
    """
    given = as_list(batches)
    count = len(given) if steps is None else steps
    _check(student_net, teacher, given)
    _check_numbers(count, save_every, temperature, clip, loss)
    trained = [parameter for parameter in student_net.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=1e-5) if optimizer is None else optimizer
    _check_optimizer(optimizer, trained)
    losses: list[float] = []
    checkpoints = None
    if folder is not None:
        settings = (type(optimizer).__qualname__, temperature, clip, getattr(loss, "__qualname__", None))
        checkpoints = _Checkpoints(Path(folder), student_net, optimizer, teacher, given, settings)
        losses = checkpoints.resume(count)
    with for_inference(teacher), progress.doing(lambda: "distilling"):
        for batch in itertools.islice(itertools.cycle(given), len(losses), count):
            progress.step(f"step {len(losses) + 1} of {count}")
            losses.append(_step(student_net, teacher, batch, optimizer, temperature, loss, clip))
            if after_step is not None:
                after_step(len(losses), losses[-1])
            if checkpoints is not None and (len(losses) % save_every == 0 or len(losses) == count):
                checkpoints.save(losses)
    return losses


def _step(
    net: Any,
    teacher: nn.Module,
    batch: Batch,
    optimizer: torch.optim.Optimizer,
    temperature: float,
    loss: Loss | None,
    clip: float | None,
) -> float:
    with torch.no_grad():
        wanted, is_logits = output_of(teacher, batch)
    learned = [each for group in optimizer.param_groups for each in group["params"]]
    known, values = {id(each) for each in learned}, []

    @torch.enable_grad()
    def closure() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        value = _value_of(output_of(net, batch)[0], wanted, is_logits, temperature, loss)
        # An optimizer that calls this again is searching, and may go too far.
        if not values and not torch.isfinite(value):
            raise StateError(f"the loss must be finite, got {float(value)}; use a smaller learning rate")
        value.backward()
        for parameter in net.parameters():
            if id(parameter) not in known:
                # Nobody would zero the gradients of what the optimizer does not train.
                parameter.grad = None
        if clip is not None:
            nn.utils.clip_grad_norm_(learned, clip)
        values.append(float(value.detach()))
        return value

    if "closure" in inspect.signature(optimizer.step).parameters:
        optimizer.step(closure)  # pyright: ignore[reportCallIssue, reportArgumentType]
    else:
        closure()
        optimizer.step()
    return values[0]


def _value_of(
    output: torch.Tensor, wanted: torch.Tensor, is_logits: bool, temperature: float, loss: Loss | None
) -> torch.Tensor:
    """The loss of a batch."""
    if loss is not None:
        value = loss(output, wanted)
        if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.requires_grad:
            raise RecipeError(
                "loss must return a tensor of one number that depends on the student's output, got "
                f"{tuple(value.shape) if isinstance(value, torch.Tensor) else shown(value)}"
            )
        return value
    if output.shape != wanted.shape:
        raise UnsupportedModelError(
            f"student and teacher must have outputs of one shape, got {tuple(output.shape)} and {tuple(wanted.shape)}; "
            "give a loss that takes both"
        )
    if is_logits:
        return _Divergence.apply(output, wanted, temperature)
    return functional.mse_loss(output, wanted.to(output.dtype))


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


def _check(net: Any, teacher: Any, batches: list[Batch]) -> None:
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
    for number, batch in enumerate(batches):
        _check_batch(teacher, batch, number)


def _check_batch(teacher: nn.Module, batch: Batch, number: int) -> None:
    """Refuse what the model cannot be called with, such as pairs of inputs and labels."""
    needed = (
        "each of batches must be what the models are called with: a tensor, a tuple of arguments or a dict of keywords"
    )
    if not isinstance(batch, torch.Tensor | tuple | list | Mapping):
        raise UnsupportedModelError(f"{needed}; number {number} is {shown(batch)}")
    arguments = () if isinstance(batch, Mapping) else (batch,) if isinstance(batch, torch.Tensor) else batch
    keywords = batch if isinstance(batch, Mapping) else {}
    try:
        inspect.signature(teacher.forward).bind(*arguments, **keywords)
    except TypeError as error:
        raise UnsupportedModelError(
            f"{needed}; the teacher's forward does not take number {number}: {error}; leave out labels and the like"
        ) from error


def _check_numbers(steps: Any, save_every: Any, temperature: Any, clip: Any, loss: Any) -> None:
    for name, value in (("steps", steps), ("save_every", save_every)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise RecipeError(f"{name} must be a whole number of at least 1, got {shown(value)}")
    for name, value in (("temperature", temperature), ("clip", 1.0 if clip is None else clip)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise RecipeError(f"{name} must be a positive number, got {shown(value)}")
    if loss is not None and not callable(loss):
        raise RecipeError(f"loss must be a function of the outputs of student and teacher, got {shown(loss)}")


def _check_optimizer(optimizer: Any, trained: Sequence[torch.Tensor]) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        is_class = isinstance(optimizer, type)
        got = f"the class {optimizer.__name__}" if is_class else shown(optimizer)
        kind = optimizer.__name__ if is_class else "Adam"
        raise RecipeError(
            f"optimizer must be an optimizer of torch's, got {got}; make one, as in "
            f"torch.optim.{kind}(student_net.parameters(), lr=1e-4)"
        )
    known = {id(parameter) for parameter in trained}
    if not any(id(each) in known for group in optimizer.param_groups for each in group["params"]):
        raise RecipeError(
            "optimizer must train parameters of student_net that require gradients, and has none of them; make it of "
            "student_net.parameters()"
        )


class _Checkpoints:
    """What is kept of a run in a folder, and of which run it is."""

    def __init__(
        self,
        folder: Path,
        net: Any,
        optimizer: torch.optim.Optimizer,
        teacher: nn.Module,
        batches: Sequence[Batch],
        settings: tuple[Any, ...],
    ):
        self._file, self._net, self._optimizer = folder / _FILE, net, optimizer
        self._own = {
            "another student": _digest(dict(net.named_parameters())),
            "another teacher": _digest(dict(teacher.named_parameters())),
            "other batches": _digest(dict(enumerate(tree_leaves(list(batches))))),
            "another optimizer, temperature, clip or loss": repr(settings),
        }

    def resume(self, steps: int) -> list[float]:
        """The losses of the steps that are done already."""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            exists = self._file.exists()
        except OSError as error:
            raise failure(f"cannot keep checkpoints in '{self._file.parent}'", error) from error
        if not exists:
            return []
        remedy = "choose another folder, or remove the file to begin again"
        try:
            kept = torch.load(self._file, weights_only=True)
            own, losses = dict(kept["own"]), list(kept["losses"])
        except Exception as error:
            # torch raises whatever its readers of archives and pickles do.
            raise StateError(
                f"'{self._file}' must be a checkpoint of steelyard.distill, and cannot be read: "
                f"{str(error).partition('. ')[0]}; {remedy}"
            ) from error
        if self._own["another student"] == kept["trained"]:
            # It was trained so far already.
            self._own["another student"] = own["another student"]
        others = [name for name, value in self._own.items() if own.get(name) != value]
        if others:
            raise StateError(
                f"'{self._file}' must be a checkpoint of the same call, and is one with {others[0]}; {remedy}"
            )
        if len(losses) > steps:
            raise StateError(
                f"steps must be at least {len(losses)}, as many as '{self._file}' has done, got {steps}; {remedy}"
            )
        try:
            self._optimizer.load_state_dict(kept["optimizer"])
        except (ValueError, KeyError) as error:
            raise StateError(f"'{self._file}' must have the state of the optimizer: {error}; {remedy}") from error
        self._net.load_state_dict(kept["net"])
        torch.set_rng_state(kept["random"])
        return losses

    def save(self, losses: list[float]) -> None:
        """Keep a checkpoint in the place of the last one."""
        unfinished = self._file.with_suffix(".unfinished")
        kept = {"net": self._net.state_dict(), "optimizer": self._optimizer.state_dict(), "losses": losses}
        kept |= {"own": self._own, "trained": _digest(dict(self._net.named_parameters()))}
        try:
            torch.save({**kept, "random": torch.get_rng_state()}, unfinished)
            unfinished.replace(self._file)
        except OSError as error:
            raise failure(f"cannot write '{self._file}'", error) from error


def _digest(values: Mapping[Any, Any]) -> str:
    """A name of tensors and other values: the same for the same."""
    digest = hashlib.sha256()
    for name, value in values.items():
        if not isinstance(value, torch.Tensor):
            digest.update(f"{name} {value!r}".encode())
            continue
        plain = value.dequantize() if isinstance(value, QuantizedTensor) else value.detach()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}".encode())
        digest.update(plain.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
