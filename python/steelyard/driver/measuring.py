"""`net.measure`: which calls of a net are measured, by which program, and what was found.

A net that is measured has a second net beside it, of the same model, with the same state and weights, whose programs
measure. Calls that are to be measured run there. Nothing changes for the others, nor for a net that is not measured.
"""

import copy
import inspect
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch.utils import _pytree as pytree

from steelyard.driver.backend import Backend
from steelyard.driver.compilation import Compilation
from steelyard.driver.explanation import Row
from steelyard.errors import RecipeError, TargetError, UnsupportedModelError, shown
from steelyard.insight.collecting import Collector
from steelyard.insight.gradients import GradientTotal
from steelyard.insight.outputs import OutputTotal, find_loss, find_output
from steelyard.insight.results import GemmMeasurement, Measurement
from steelyard.targets import CPU

Loss = Callable[[Any, Any], torch.Tensor]
"""From what a model returns, and the batch that it was given, to the loss."""
OnStep = Callable[[int, Measurement], None]
OnOutput = Callable[[Any, Any, Any], None]


class Observer:
    """Somebody who wants some calls of a net measured."""

    def __init__(self, every: int, on_step: OnStep | None = None, on_output: OnOutput | None = None):
        self.every = every
        self.on_step = on_step
        self.on_output = on_output
        """Is told what the net returned, what the model returns for the same call in high precision, and the call."""
        self.total = Collector()
        self.calls = 0
        """How many calls were observed."""
        self.step: tuple[int, Collector] | None = None
        """The number of the newest call, and what was measured in it, until it is told."""

    def begin(self) -> list[Collector]:
        """Count a call; returns what takes its numbers, nothing if it is not to be measured."""
        number = self.calls
        self.calls += 1
        if number % self.every:
            return []
        self.total.steps += 1
        if self.on_step is None:
            return [self.total]
        self.step = number, Collector()
        return [self.total, self.step[1]]


class Observing:
    """Runs the calls of a net while somebody observes it."""

    def __init__(self, net: Any, measured: Any):
        # The net holds this: it must not hold the net.
        self._net = weakref.ref(net)
        self._measured = measured
        self._observers: list[Observer] = []
        self._current: list[Collector] = []
        """What takes the numbers of the newest measured call, and of its backward."""

    @property
    def backend(self) -> Backend:
        """That of the programs that measure."""
        return self._measured._steelyard.backend

    def add(self, observer: Observer) -> None:
        """Begin to observe."""
        self._observers.append(observer)
        self._switch(self)

    def remove(self, observer: Observer) -> None:
        """End to observe."""
        if observer not in self._observers:
            return
        self._tell()
        self._observers.remove(observer)
        if not self._observers:
            self._switch(None)

    def _switch(self, observing: "Observing | None") -> None:
        net: Any = self._net()
        if net is not None:
            backend: Backend = net._steelyard.backend
            backend.observing = observing
            backend.state.take_measures = None if observing is None else self._take

    def run(self, module: Any, arguments: tuple, keywords: dict[str, Any]) -> Any:
        """A call of the net, or of a part of it."""
        self._tell()
        begun = [(observer, observer.begin()) for observer in self._observers]
        collectors = [collector for _, found in begun for collector in found]
        if not collectors:
            return module._run_plain(arguments, keywords)
        self._current = collectors
        tell = [observer.on_output for observer, found in begun if found and observer.on_output is not None]
        is_compared = bool(tell) and module._steelyard.name is None
        exact = _run_model(module, arguments, keywords) if is_compared else None
        result = self._counterpart(module)._run_alone(arguments, keywords)
        for each in tell if is_compared else ():
            each(result, exact, make_batch(module._steelyard.model, arguments, keywords))
        if not torch.is_grad_enabled():
            self._tell()
        return result

    def _counterpart(self, module: Any) -> Any:
        """The module that measures in the place of the net, or of a part."""
        name = module._steelyard.name
        return self._measured if name is None else reduce(getattr, name.split("."), self._measured)

    def _take(self, function: object, measures: Mapping[str, torch.Tensor]) -> None:
        for collector in self._current:
            collector.add(function, measures)

    def _tell(self) -> None:
        """Tell observers what the newest call found: it is over, its backward included."""
        for observer in self._observers:
            if observer.step is not None and observer.on_step is not None:
                number, collector = observer.step
                observer.step = None
                collector.steps = 1
                observer.on_step(number, measurement(self.backend, collector))


def _run_model(net: Any, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """What a net's model returns for a call of the net, which is yet to come and must find its arguments unchanged."""
    with net._unchanged(), torch.no_grad():
        copied, copied_keywords = pytree.tree_map(_copy, (arguments, keywords))
        return net._steelyard.model(*copied, **copied_keywords)


def _copy(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else copy.deepcopy(leaf)


def observe(net: Any, observer: Observer) -> Observing:
    """Let somebody observe the calls of a net; makes the programs that measure on first use."""
    observing = net._observing()
    observing.add(observer)
    return observing


def check_measurable(net: Any) -> None:
    """Refuse what cannot be measured."""
    state = net._steelyard
    if state.name is not None:
        raise UnsupportedModelError(f"{state.name} is a part of a net; measure the net, whose rows name its layers")
    check_measured_target(state.backend.settings.target)


def check_measured_target(target: str) -> None:
    """Refuse a target whose programs cannot measure."""
    if target != CPU:
        raise TargetError(
            f"a net that is measured must be compiled for the CPU, got target {target}; compile the model for the CPU, "
            "whose quantized values are the same"
        )


class Compared:
    """What a net returns beside what its model returns in high precision, over all calls."""

    def __init__(self, loss: Loss | None, logits: bool | None):
        self._loss = loss
        self._logits = logits
        self.outputs = OutputTotal()

    def add(self, found: Any, wanted: Any, batch: Any) -> None:
        """Count one call."""
        with torch.no_grad():
            self._add(found, wanted, batch)

    def _add(self, found: Any, wanted: Any, batch: Any) -> None:
        output, is_logits = find_output(found, self._logits)
        self.outputs.add(output, find_output(wanted, self._logits)[0], is_logits=is_logits)
        losses = [loss_of(each, batch, self._loss) for each in (found, wanted)]
        if losses[0] is not None and losses[1] is not None:
            self.outputs.add_loss(losses[0].item(), losses[1].item())


class Measuring:
    """Calls of a net that are measured: a context manager, whose `result` is what was found so far."""

    def __init__(self, net: Any, every: int = 1, on_step: OnStep | None = None, compared: "Compared | None" = None):
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise RecipeError(f"every must be a number of calls, at least 1, got {shown(every)}")
        check_measurable(net)
        self._net = net
        self._compared = compared
        self._observer = Observer(every, on_step, None if compared is None else compared.add)
        self._observing: Observing | None = None

    def __enter__(self) -> "Measuring":
        return self.open()

    def __exit__(self, *_) -> None:
        self.close()

    def open(self) -> "Measuring":
        """Measure from now on."""
        if self._observing is None:
            self._observing = observe(self._net, self._observer)
        return self

    def close(self) -> None:
        """Measure no longer; the result stays."""
        if self._observing is not None:
            self._observing.remove(self._observer)

    @property
    def result(self) -> Measurement:
        """What was found so far."""
        if self._observing is None:
            raise RecipeError("nothing is measured yet: enter the context, as in `with net.measure() as m:`")
        found = measurement(self._observing.backend, self._observer.total)
        if self._compared is not None:
            found.output = self._compared.outputs.result()
        return found

    @property
    def collector(self) -> Collector:
        """The numbers."""
        return self._observer.total


def measurement(backend: Backend, collector: Collector) -> Measurement:
    """What programs measured, one row per GEMM."""
    rows: list[GemmMeasurement] = []
    for graph, compilation in enumerate(backend.compilations):
        functions = _functions(compilation)
        if collector.has(functions):
            rows += [collector.fill(row, functions) for row in empty_rows(compilation.rows, graph)]
    if collector.steps:
        rows += empty_rows([*backend.of_torch.rows, *backend.outside.rows], -1)
    root: Any = backend.root
    model = type(root._steelyard.model).__name__
    return Measurement(model, backend.settings.recipe.name, collector.steps, rows, None)


def _functions(compilation: Compilation) -> list:
    return [] if compilation.program is None else list(compilation.program.functions.values())


def empty_rows(explained: list[Row], graph: int) -> list[GemmMeasurement]:
    """Rows without numbers."""
    numbers = Counter[tuple[str, str]]()
    rows = []
    for row in explained:
        # Products in high precision are not measured, and count for themselves.
        key = row.layer, row.kind if row.is_quantized else ""
        rows.append(
            GemmMeasurement(
                layer=row.layer,
                kind=row.kind,
                source_line=row.source,
                graph=graph,
                calls=0,
                shape=[int(size) if size.isdigit() else -1 for size in (row.M, row.N, row.K)],
                flops=row.flops,
                kernel=row.kernel,
                formats=f"{row.lhs} * {row.rhs}" if row.lhs or row.rhs else "",
                reason="" if row.is_quantized else row.reason,
                operands=[],
                relative_error=None,
                snr_db=None,
                max_error=None,
                gradient=None,
                number=numbers[key],
            )
        )
        numbers[key] += 1
    return rows


def read_batch(batch: Any) -> tuple[tuple, dict[str, Any]]:
    """The arguments and keywords of a call: a dict is keywords, a tuple or a list arguments, anything else one."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if isinstance(batch, tuple | list):
        return tuple(batch), {}
    return (batch,), {}


def make_batch(model: Any, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """A call of a model as a batch, the opposite of `read_batch`; beside keywords, arguments get their names."""
    if keywords:
        return dict(zip(inspect.signature(model.forward).parameters, arguments, strict=False)) | keywords
    return arguments[0] if len(arguments) == 1 else arguments


def check_batches(batches: Any) -> None:
    """Refuse a single tensor or a text, whose rows or letters would be taken for batches."""
    if isinstance(batches, torch.Tensor | str | Mapping) or not isinstance(batches, Iterable):
        raise RecipeError(f"batches must be a list of what the net is called with, as in [x], got {shown(batches)}")


def measure_batches(
    net: Any,
    batches: Iterable[Any],
    *,
    loss: Loss | None,
    backward: bool,
    logits: bool | None,
    exact: torch.nn.Module | None,
) -> Measurement:
    """Call a net and its model with each batch, and measure both; leaves gradients, buffers and state as they were."""
    model = net._steelyard.model if exact is None else exact
    check_batches(batches)
    measuring = Measuring(net)
    compared, gradients = Compared(loss, logits), GradientTotal()
    with measuring:
        for batch in batches:
            found, own = _run_step(net, net, batch, loss, backward=backward)
            # Gradients of another model are not those of these parameters.
            wanted, theirs = _run_step(net, model, batch, loss, backward=backward and exact is None)
            compared.add(found, wanted, batch)
            if exact is None:
                gradients.add(own, theirs)
    result = measuring.result
    result.output, result.gradients = compared.outputs.result(), gradients.result()
    return result


def _run_step(
    net: Any, module: Any, batch: Any, loss: Loss | None, *, backward: bool
) -> tuple[Any, dict[str, torch.Tensor]]:
    """What a net, or its model, returns for a batch, and the gradients of the parameters."""
    arguments, keywords = read_batch(batch)
    with net._unchanged(), unchanged_gradients(net), torch.set_grad_enabled(backward):
        returned = module(*arguments, **keywords)
        if not backward:
            return returned, {}
        _run_backward(loss_of(returned, batch, loss))
        parameters = net.named_parameters()
        return returned, {name: parameter.grad for name, parameter in parameters if parameter.grad is not None}


def loss_of(returned: Any, batch: Any, loss: Loss | None) -> torch.Tensor | None:
    """The loss of what a model returned for a batch, if it has one."""
    if loss is None:
        return find_loss(returned)
    found = loss(returned, batch)
    if not isinstance(found, torch.Tensor) or found.numel() != 1:
        raise RecipeError(f"loss must return a tensor of one number, got {shown(found)}")
    return found.reshape(())


def _run_backward(loss: torch.Tensor | None) -> None:
    if loss is None:
        raise RecipeError("backward=True needs a loss: pass loss=, or call a model that returns one")
    if not loss.requires_grad:
        raise RecipeError("backward=True needs parameters that require gradients, got none; call requires_grad_()")
    loss.backward()


@contextmanager
def unchanged_gradients(net: torch.nn.Module):
    """A context that leaves gradients as they were."""
    before = [(parameter, parameter.grad) for parameter in net.parameters()]
    for parameter, _ in before:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient


__all__ = ["Measuring", "Observer", "Observing", "empty_rows", "measure_batches", "measurement", "observe"]
