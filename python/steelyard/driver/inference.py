"""Graphs without gradients: what torch calls instead of AOTAutograd's wrapper, where that has nothing to do."""

from collections.abc import Callable
from typing import Any

import torch
from torch import is_grad_enabled
from torch._functorch._aot_autograd.runtime_wrappers import mark_dynamo_propagated_dynamic_indices as mark_dynamic
from torch._functorch._aot_autograd.schemas import PlainTensorMeta, ViewAndMutationMeta
from torch._guards import TracingContext

Run = Callable[[tuple], tuple]


def without_wrapper(run: Run, inputs: int) -> Callable | None:
    """A function of a graph's inputs that runs it, called while AOTAutograd compiles the graph.

    None if AOTAutograd's wrapper is needed, because it writes inputs, makes aliases, or turns autocast off.
    """
    context = TracingContext.try_get()
    known: ViewAndMutationMeta | None = None if context is None else context.fw_metadata
    if known is None or len(known.input_info) != inputs or torch._C._is_any_autocast_enabled() or not _is_plain(known):
        return None
    dynamic = [(i, output.dynamic_dims) for i, output in enumerate(known.output_info) if output.dynamic_dims]
    if not dynamic:
        return lambda *values: without_gradients(run, values) if is_grad_enabled() else run(values)

    def run_and_mark(*values: Any) -> tuple:
        results = without_gradients(run, values)
        # So torch knows which sizes differ from call to call when another graph takes the results.
        for i, dims in dynamic:
            mark_dynamic(results[i], dims)
        return results

    return run_and_mark


def written_inputs(inputs: int) -> tuple[int, ...] | None:
    """Which inputs of the graph that AOTAutograd compiles it writes: their new values are the graph's first results.

    None if AOTAutograd's wrapper does more around the graph, such as to make one of inputs that share memory.
    """
    context = TracingContext.try_get()
    known: ViewAndMutationMeta | None = None if context is None else context.fw_metadata
    if known is None or len(known.input_info) != inputs:
        return None
    if _makes_aliases(known) or any(info.mutates_metadata for info in known.input_info):
        return None
    return tuple(known.mutated_inp_runtime_indices)


def without_gradients(run: Run, values: tuple) -> tuple:
    """Run a graph that has no gradients: its own code may have turned them off, and what is around it records them."""
    if not torch.is_grad_enabled():
        return run(values)
    with torch.no_grad():
        return run(values)


def without_autocast(run: Run) -> Run:
    """The same function where a context casts for ops: a captured graph has its casts already."""

    def run_as_captured(values: tuple) -> tuple:
        if not torch._C._is_any_autocast_enabled():
            return run(values)
        with torch._C._DisableAutocast():
            return run(values)

    return run_as_captured


def _is_plain(known: ViewAndMutationMeta) -> bool:
    """Whether a graph only reads its inputs and makes new tensors."""
    return not (known.num_mutated_inp_runtime_indices or _makes_aliases(known))


def _makes_aliases(known: ViewAndMutationMeta) -> bool:
    """Whether AOTAutograd does anything around a graph, beside writing inputs."""
    aliases = known.num_outputs_aliased or known.num_intermediate_bases
    others = known.tokens or known.is_rng_op_functionalized or known.num_graphsafe_rng_states
    apart = not all(isinstance(meta, PlainTensorMeta) for meta in known.subclass_inp_meta)
    return bool(aliases or others or apart or known.grad_enabled_mutation is not None)
