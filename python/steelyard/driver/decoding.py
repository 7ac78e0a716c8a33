"""`generate` of transformers with a static cache: a step like the two before it runs without torch's checks.

A cache of fixed size lets each step of `generate` be the same program on the same tensors. The first two steps run as
any call of a net does, so that torch notices whatever changed before. If they did the same, and left nothing in Python,
later ones are the program alone: it still notices whether a parameter was written, and a parameter or a tensor of the
cache replaced.

The steps of a net that is cut into blocks are traced: calls of blocks, and ops of torch's around them. They become a
program in a moment, because the blocks have theirs. Where a step is more than that, the net is captured once more, as a
whole. For a deep model that takes longer than many texts, so its steps run as calls of blocks until they have taken as
long as that is expected to: whatever the length of the texts, a net is never more than about twice as slow as if it had
known.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch._dynamo import eval_frame
from torch.nn.modules import module as modules
from torch.utils import _pytree as pytree

from steelyard.driver.freezing import Inputs, Outputs, describe, outputs_of, owns_the_same, program_of, program_of_trace
from steelyard.driver.recording import Ran, recorded_graphs
from steelyard.driver.traced_steps import KnownStep, TracedSteps
from steelyard.driver.traces import Trace, traced
from steelyard.errors import UnsupportedModelError

_CACHE = "transformers.cache_utils", "StaticCache"
_SCALARS = (bool, int, float, str, type(None))
_CONTAINERS = (list, dict, set)
_GLOBAL_HOOKS = (modules._global_forward_hooks, modules._global_forward_pre_hooks)
_MOST_TRIES = 4
"""How many steps of a call of `generate` are compared, if none is like the one before."""


class _Current(threading.local):
    decoding: "Decoding | None" = None


_current = _Current()


def make_generate(plain: Callable) -> Callable:
    """A method `generate` of a net, around that of its model's class."""

    @wraps(plain)
    def generate(self, *arguments, **keywords):
        with _decoding_of(self):
            return plain(self, *arguments, **keywords)

    return generate


@contextmanager
def _decoding_of(net: Any) -> Iterator[None]:
    outer = _current.decoding
    _current.decoding = Decoding(net)
    try:
        yield
    finally:
        _current.decoding = outer


def current_decoding(net: Any) -> "Decoding | None":
    """The call of `generate` of a net that this thread is in."""
    found = _current.decoding
    return found if found is not None and found.net is net else None


class Decoding:
    """One call of `generate`."""

    def __init__(self, net: Any):
        self.net = net
        self._tries = 0
        """How many steps were compared since two were alike; steps that compiled something do not count."""
        self._recorded: _Step | None = None
        """The last step that was recorded."""
        self._traced: _TracedStep | None = None
        """The last step that was traced."""
        self._same: _SameStep | None = None
        """What runs steps like the last."""

    def run(self, arguments: tuple, keywords: dict[str, Any]) -> Any:
        """A call of the net."""
        cache = _cache_of(arguments, keywords)
        if cache is None or self._tries >= _MOST_TRIES or torch._C._is_any_autocast_enabled():
            return self.net._run_alone(arguments, keywords)
        leaves, structure = pytree.tree_flatten(keywords)
        if self._same is not None and self._same.fits(leaves, structure, cache):
            return self._same.run(leaves)
        self._same = None
        state = self.net._steelyard
        known = state.traced_steps if state.is_around_blocks else None
        if known is None and not _is_worth_a_capture(state):
            return self._run_in_blocks(arguments, keywords)
        before = _python_state(self.net, cache)
        if before is None or _has_twins(leaves):
            return self.net._run_alone(arguments, keywords)
        step = _Call(leaves, structure, keywords, cache, before)
        graphs = state.backend.graphs
        result = self._record(step) if known is None else self._trace(known, step)
        self._tries = 0 if self._same is not None else self._tries + (state.backend.graphs == graphs)
        return result

    def _trace(self, known: TracedSteps, call: "_Call") -> Any:
        """A step as a call of blocks, which is compared with the one before."""
        backend = self.net._steelyard.backend
        graphs = backend.graphs
        with traced() as trace:
            result = self.net._run_alone((), call.keywords)
        last, self._traced = self._traced, None
        if backend.graphs != graphs:
            return result
        if trace.refusal:
            self.net._steelyard.traced_steps = None
            return result
        if _python_state(self.net, call.cache) != call.before:
            return result
        step = self._traced = _TracedStep(trace, call.leaves, call.structure, result)
        if last is not None and last.is_like(step):
            try:
                made = known.find(trace, result, backend)
            except UnsupportedModelError:
                self.net._steelyard.traced_steps = None
                return result
            self._same = _same_traced_step(self.net, made, last, step, call.cache)
        return result

    def _run_in_blocks(self, arguments: tuple, keywords: dict[str, Any]) -> Any:
        """A step as a call of blocks; its time counts, unless something was compiled."""
        state = self.net._steelyard
        graphs, begin = state.backend.graphs, time.perf_counter()
        result = self.net._run_alone(arguments, keywords)
        if state.backend.graphs == graphs:
            state.seconds_in_steps += time.perf_counter() - begin
        return result

    def _record(self, call: "_Call") -> Any:
        """A step as a call of the whole net, which is compared with the one before."""
        whole = self.net._whole_for_decoding()
        with recorded_graphs() as ran:
            result = whole(**call.keywords)
        is_pure = _python_state(self.net, call.cache) == call.before and not ran.has_breaks
        last, self._recorded = self._recorded, None
        if not is_pure or len(ran.runs) != 1:
            return result
        step = self._recorded = _Step(ran.runs[0], call.leaves, call.structure, result)
        if last is not None and last.is_like(step):
            self._same = _same_step(self.net, last, step, call.cache)
        return result


class _Call(NamedTuple):
    """A step that is about to run."""

    leaves: list[Any]
    structure: pytree.TreeSpec
    keywords: dict[str, Any]
    cache: Any
    before: list[Any]
    """What was in Python before it."""


def _is_worth_a_capture(state: Any) -> bool:
    """Whether a net is captured as a whole, or has taken so long in steps that this is worth it."""
    backend = state.backend
    if backend.blocks is None or state.decoding is not None:
        return True
    return state.seconds_in_steps >= backend.seconds_to_capture()


def _cache_of(arguments: tuple, keywords: dict[str, Any]) -> Any:
    """The cache of a call that decodes one token for each text without gradients; None for any other call."""
    cache, tokens = keywords.get("past_key_values"), keywords.get("input_ids")
    if arguments or (type(cache).__module__, type(cache).__name__) != _CACHE or not isinstance(tokens, torch.Tensor):
        return None
    is_step = tokens.dim() == 2 and tokens.shape[1] == 1 and not torch.is_grad_enabled()
    return cache if is_step and eval_frame._stance.stance == "default" else None


class _Step(NamedTuple):
    """A call that ran one graph."""

    ran: Ran
    leaves: list[Any]
    structure: pytree.TreeSpec
    result: Any

    def is_like(self, other: "_Step") -> bool:
        return self.ran.graph is other.ran.graph and self.structure == other.structure


class _SameStep:
    """Runs steps like one that was recorded twice."""

    def __init__(
        self,
        net: Any,
        inputs: Inputs,
        structure: pytree.TreeSpec,
        run: Callable,
        cache: Any,
        holds: Callable[[], bool] = lambda: True,
    ):
        self._holds = holds
        self._state = net._steelyard.backend.state
        self._inputs = inputs
        self._structure = structure
        self._run = run
        self._cache = cache
        self._held = _tensors_of(cache)
        self._owned = [
            (held, name, tensor)
            for module in net._steelyard.model.modules()
            for held in (module._parameters, module._buffers)
            for name, tensor in held.items()
        ]
        """Parameters and buffers, and where modules hold them."""
        self._hooks = [*_GLOBAL_HOOKS, *_hooks_within(net)]

    def fits(self, leaves: Sequence[Any], structure: pytree.TreeSpec, cache: Any) -> bool:
        """Whether a call is such a step: on the same cache, which holds the same tensors, in a net that does, too."""
        if cache is not self._cache or structure != self._structure or any(self._hooks) or _has_twins(leaves):
            return False
        held = _tensors_of(cache)
        is_same = len(held) == len(self._held) and all(map(_is, held, self._held))
        is_same = is_same and all(held.get(name) is tensor for held, name, tensor in self._owned)
        return is_same and self._inputs.fit(leaves) and self._holds()

    def run(self, leaves: Sequence[Any]) -> Any:
        """The results of a step."""
        self._state.begin_call()
        return self._run(leaves)


def _same_step(net: Any, last: _Step, step: _Step, cache: Any) -> _SameStep | None:
    """What runs steps like the last two; None where they had less in common."""
    try:
        inputs = Inputs(step.structure, [describe(leaf, kept=[cache]) for leaf in step.leaves])
        program = program_of(last.ran, step.ran, step.leaves, step.ran.graph)
        outputs: Outputs = outputs_of(step.result, step.leaves, step.ran.results[len(step.ran.graph.written) :])
    except UnsupportedModelError:
        return None
    if not inputs.fit(last.leaves):
        return None

    def run(leaves: Sequence[Any]) -> Any:
        return outputs.of(leaves, program.run(leaves))

    return _SameStep(net, inputs, step.structure, run, cache)


class _TracedStep(NamedTuple):
    """A call that ran blocks."""

    trace: Trace
    leaves: list[Any]
    structure: pytree.TreeSpec
    result: Any

    def is_like(self, other: "_TracedStep") -> bool:
        is_like = self.structure == other.structure and self.trace.is_like(other.trace)
        return is_like and self.trace.has_parameters_of(other.trace)


def _same_traced_step(net: Any, made: KnownStep, last: _TracedStep, step: _TracedStep, cache: Any) -> _SameStep | None:
    """What runs steps like the last two; None where they had less in common."""
    try:
        inputs = Inputs(step.structure, [describe(leaf, kept=[cache]) for leaf in step.leaves])
        if not inputs.fit(last.leaves) or not owns_the_same(made.program, last.trace, step.trace, step.leaves):
            return None
        program = program_of_trace(made.program, step.trace, step.leaves)
        computed = [step.trace.tensor(number) for number in made.program.outputs]
        outputs: Outputs = outputs_of(step.result, step.leaves, computed)
    except UnsupportedModelError:
        return None
    parameters, reference = made.parameters(step.trace), weakref.ref(made)

    def run(leaves: Sequence[Any]) -> Any:
        return outputs.of(leaves, program.run(leaves))

    def holds() -> bool:
        known = reference()
        return known is not None and known.stamps.holds(parameters)

    return _SameStep(net, inputs, step.structure, run, cache, holds)


def _tensors_of(cache: Any) -> list[torch.Tensor]:
    """The tensors that a cache holds."""
    return [value for layer in cache.layers for value in vars(layer).values() if isinstance(value, torch.Tensor)]


def _python_state(net: Any, cache: Any) -> list[Any] | None:
    """What a call of a net could leave in Python; None if its modules call others' code, by hooks."""
    if any(_GLOBAL_HOOKS) or any(_hooks_within(net)):
        return None
    holders = (*net._steelyard.model.modules(), cache, *cache.layers)
    return [attribute for holder in holders for attribute in _attributes_of(holder)]


def _attributes_of(holder: Any) -> Iterator[tuple]:
    """What tells that a call changed an attribute: its value, which tensor it is, or how much it holds."""
    for name, value in vars(holder).items():
        if isinstance(value, _SCALARS):
            yield name, value
        elif isinstance(value, torch.Tensor):
            yield name, id(value)
        elif isinstance(value, _CONTAINERS):
            yield name, len(value)


def _hooks_within(net: Any) -> list[dict]:
    """The hooks of each module of a net; those of the net itself are called in any case."""
    within = [module for module in net._steelyard.model.modules() if module is not net._steelyard.model]
    return [hooks for module in within for hooks in (module._forward_hooks, module._forward_pre_hooks)]


def _has_twins(leaves: Sequence[Any]) -> bool:
    """Whether two arguments are one tensor: which is which cannot be told."""
    tensors = [id(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return len(tensors) != len(set(tensors))


def _is(first: Any, second: Any) -> bool:
    return first is second
