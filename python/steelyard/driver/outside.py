"""Products that run outside of compiled programs: torch runs what a graph break leaves, op by op.

A dispatch mode sees them. It costs time at every op, so it is on only in the first call of a module, and in the call
after one that compiled something. Calls of a net that has settled pay nothing.
"""

import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from steelyard.driver.explanation import Row
from steelyard.driver.torch_rows import rows_of_call
from steelyard.frontend.flops import work_of

AROUND_BLOCKS = "it stands in the code around the blocks, which torch runs op by op; compile with blocks=False"
REASON = "torch runs it outside of compiled graphs (torch.compile with fullgraph=True says why)"
LOOP = (
    "torch runs a loop over experts outside of compiled graphs; load the model with experts_implementation="
    '"grouped_mm", or call model.set_experts_implementation("grouped_mm")'
)
# Every run of a compiled graph, by a program or by torch, has a frame of one of these modules.
_RUN_GRAPHS = ("steelyard.driver.backend", "steelyard.driver.inference")

_Key = tuple[str, ...]


class BypassedError(BaseException):
    """The code around blocks has called a module of the model itself, not the compiled part that stands for it.

    No `Exception`: a model that catches those must not catch this.
    """


class Outside:
    """The products of a net that ran outside of its programs, one row per layer, op and kind."""

    def __init__(self) -> None:
        self._found: dict[_Key, Row] = {}

    @property
    def rows(self) -> list[Row]:
        """The rows; those of a loop, such as one over experts or time steps, are one with the sum of their sizes."""
        return list(self._found.values())

    def record(
        self,
        names: Callable[[], Mapping[int, str]],
        around: Collection[str] = (),
        may_begin_anew: Callable[[], bool] = lambda: False,
    ) -> AbstractContextManager:
        """Record what runs in this context; `names` gives the layer of each module by id.

        `around` are the layers that hold blocks. A product of another layer, between graphs, ends the call by
        `BypassedError` if the call may begin anew.
        """
        # A part of a net that is called within a call of the net is in its record already.
        return nullcontext() if _recording.outside is self else _Recorder(self, names, around, may_begin_anew)

    def add(self, seen: Mapping[_Key, Row]) -> None:
        """Take in what one call ran; a product that is known gets the sizes of this call."""
        self._found.update(seen)


class _Recording(threading.local):
    outside: Outside | None = None


_recording = _Recording()


class _Recorder(TorchDispatchMode):
    """Sees the products that torch runs between compiled graphs."""

    supports_higher_order_operators = True

    def __init__(
        self,
        outside: Outside,
        names: Callable[[], Mapping[int, str]],
        around: Collection[str],
        may_begin_anew: Callable[[], bool],
    ):
        super().__init__()
        self._around = around
        self._may_begin_anew = may_begin_anew
        self._outside = outside
        self._make_names = names
        self._with_gradients = torch.is_grad_enabled()
        self._names: Mapping[int, str] = {}
        self._seen: dict[_Key, Row] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch compile under this mode as it does without."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        result = func(*args, **keywords)
        work = work_of(func, args, keywords, result)
        if work is not None and FakeTensor not in types:
            modules = list(_callers(sys._getframe()))
            if None not in modules:
                # Within an op of a library, gradients are off while its forward runs.
                recorded = torch.is_grad_enabled() or (self._with_gradients and func.namespace != "aten")
                layer = self._layer(modules)
                if self._around and layer not in self._around and self._may_begin_anew():
                    raise BypassedError
                reason = AROUND_BLOCKS if layer in self._around else LOOP if _loops_over_experts(modules) else REASON
                for row in rows_of_call(layer, func, work, args, reason, with_gradients=recorded):
                    self._add(row)
        return result

    def _layer(self, modules: Sequence[Any]) -> str:
        # Parts of a net are made when they are first reached.
        if modules and id(modules[0]) not in self._names:
            self._names = self._make_names()
        return next((self._names[id(module)] for module in modules if id(module) in self._names), "")

    def _add(self, row: Row) -> None:
        summed = "K" if row.kind == "wgrad" else "M"
        key = (row.layer, row.kernel, row.kind, row.N, row.M if summed == "K" else row.K, row.lhs)
        known = self._seen.get(key)
        if known is not None:
            total = {} if not row.M else {summed: str(int(getattr(known, summed)) + int(getattr(row, summed)))}
            row = replace(row, flops=known.flops + row.flops, **total)
        self._seen[key] = row

    def __enter__(self) -> "_Recorder":
        self._previous, _recording.outside = _recording.outside, self._outside
        return super().__enter__()

    def __exit__(self, *error) -> None:
        super().__exit__(*error)
        _recording.outside = self._previous
        self._outside.add(self._seen)


def _loops_over_experts(modules: Sequence[Any]) -> bool:
    """Whether the innermost module is one of transformers' experts, which run as it was told to."""
    config = getattr(modules[0], "config", None) if modules else None
    return getattr(config, "_experts_implementation", None) == "eager" and any(
        parameter.dim() == 3 for parameter in modules[0].parameters(recurse=False)
    )


def _callers(frame: Any) -> Iterator[Any]:
    """The modules whose methods are running, the innermost first; None for a run of a compiled graph."""
    while frame is not None:
        if frame.f_globals.get("__name__") in _RUN_GRAPHS:
            yield None
        itself = frame.f_locals.get("self")
        if isinstance(itself, torch.nn.Module):
            yield itself
        frame = frame.f_back
