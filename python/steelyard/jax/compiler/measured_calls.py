"""Which calls of a compiled function are measured: those in a context, or of batches."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import jax
from jax.tree_util import tree_flatten_with_path

from steelyard.driver.explanation import Row
from steelyard.driver.measuring import empty_rows
from steelyard.errors import SteelyardError
from steelyard.insight.collecting import Collector
from steelyard.insight.gradients import GradientTotal
from steelyard.insight.outputs import OutputTotal
from steelyard.insight.results import Measurement
from steelyard.jax.compiler.measuring import first_output, floats
from steelyard.jax.compiler.parameters import parameters_of
from steelyard.jax.compiler.variables import copied
from steelyard.jax.internals import trace_settings

Loss = Callable[[Any, Any], jax.Array]
"""From what a function returns, and the batch that it was given, to the loss."""
_entered = jax.make_user_context(())
"""What measures now. JAX traces a function again for which this has changed."""


class Measuring:
    """Calls of a compiled function that are measured: a context manager, whose `result` is what was found so far.

    It may be entered again, to measure some steps of a training run.
    """

    def __init__(self, function: Any, twin: Any, collector: Collector, outputs: OutputTotal | None, *, logits: bool):
        self._function, self._twin, self._collector = function, twin, collector
        self._outputs, self._logits = outputs, logits
        self._contexts: list[Any] = []

    def __enter__(self) -> "Measuring":
        context = _entered((*_entered.value, self))
        context.__enter__()
        self._contexts.append(context)
        return self

    def __exit__(self, *error: Any) -> None:
        self._contexts.pop().__exit__(*error)

    def measures(self, function: Any) -> bool:
        """Whether calls of a compiled function are to be measured."""
        return self._function is function

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any], state: Any) -> Any:
        """A call of the function, measured."""
        exact_args, exact_kwargs = copied((args, kwargs))
        found = self._twin(*args, state=state, **kwargs)
        if self._outputs is not None:
            wanted = self._function.fn(*exact_args, **exact_kwargs)
            jax.debug.callback(self._compare, first_output(found), first_output(wanted))
        return found

    def _compare(self, found: Any, wanted: Any) -> None:
        assert self._outputs is not None
        self._outputs.add(floats(found), floats(wanted), is_logits=self._logits)

    @property
    def result(self) -> Measurement:
        """What was found so far."""
        output = None if self._outputs is None or not self._collector.steps else self._outputs
        found = measurement(self._twin, self._collector)
        found.output = None if output is None else output.result()
        return found


def measuring_of(function: Any) -> Measuring | None:
    """What measures the calls of a compiled function now."""
    return next((each for each in reversed(_entered.value) if each.measures(function)), None)


def settings() -> tuple[Any, ...]:
    """The settings of JAX that a program is traced for. What measures is none of them."""
    if not _entered.value:
        return trace_settings()
    with _entered(()):
        return trace_settings()


def measurement(twin: Any, collector: Collector) -> Measurement:
    """What the programs of a function that measures found, one row per GEMM."""
    # What is measured arrives while the program runs.
    jax.effects_barrier()
    if not collector.steps:
        raise SteelyardError(
            "nothing is measured yet: call the function in the context, as in `with fast.measure() as measuring:`"
        )
    explained: list[Row] = twin.explain().rows
    rows = [collector.fill(row, [None]) for row in empty_rows(explained, 0)]
    return Measurement(twin.__name__, twin.recipe.name, collector.steps, rows, None)


def measure_batches(
    twin: Any, collector: Collector, batches: Iterable[Any], *, loss: Loss | None, state: Any, logits: bool
) -> Measurement:
    """Call a function that measures, and the one that it was made of, with each batch."""
    outputs, gradients = OutputTotal(), GradientTotal()
    try:
        given = iter(batches)
    except TypeError:
        name = type(batches).__name__
        raise SteelyardError(f"batches must be tuples of the arguments of a call, got {name}") from None
    for batch in given:
        if not isinstance(batch, Sequence):
            raise SteelyardError(f"batches must be tuples of the arguments of a call, got one {type(batch).__name__}")
        found, own = _run_step(partial(twin, state=state), batch, twin.parameters, loss)
        wanted, theirs = _run_step(twin.fn, batch, twin.parameters, loss)
        if loss is not None:
            outputs.add_loss(float(loss(found, batch)), float(loss(wanted, batch)))
            gradients.add(own, theirs)
        outputs.add(*(floats(first_output(each)) for each in (found, wanted)), is_logits=logits)
    result = measurement(twin, collector)
    result.output, result.gradients = outputs.result(), gradients.result()
    return result


def _run_step(
    call: Callable[..., Any], batch: Sequence[Any], numbers: Sequence[int], loss: Loss | None
) -> tuple[Any, dict[str, Any]]:
    """What a function returns for a batch and, if there is a loss, the gradients of the parameters by name."""
    batch = copied(tuple(batch))
    if loss is None:
        return call(*batch), {}

    def run(held: tuple[Any, ...]) -> tuple[jax.Array, Any]:
        given = list(batch)
        for number, value in zip(numbers, held, strict=True):
            given[number] = value
        found = call(*given)
        return loss(found, batch), found

    held = tuple(batch[i] for i in numbers)
    made, found = jax.block_until_ready(jax.grad(run, has_aux=True, allow_int=True)(held))
    named: dict[str, Any] = {}
    for number, values, gradients in zip(numbers, held, made, strict=True):
        pairs, _ = tree_flatten_with_path(values)
        parameters = parameters_of([path for path, _ in pairs], [leaf for _, leaf in pairs], f"argument{number}")
        for parameter, gradient in zip(parameters, jax.tree.leaves(gradients), strict=True):
            if parameter is not None:
                named[parameter.name] = floats(gradient)
    return found, named
