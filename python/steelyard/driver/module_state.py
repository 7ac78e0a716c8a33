"""What a compiled module has beyond the model: its parts, and what torch captured of it."""

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from steelyard.driver.backend import Backend
from steelyard.driver.block_calls import OwnCache, call_block
from steelyard.driver.blocks import is_compiled
from steelyard.driver.forward import runs_as_python
from steelyard.driver.frames import Captured, ShortWay
from steelyard.driver.traced_steps import TracedSteps
from steelyard.targets import CPU

_MOST_SLICES = 64
MakePart = Callable[[torch.nn.Module, str, Backend], Any]
"""Makes a compiled module for a submodule, given its name."""


class ModuleState:
    """What a compiled module has beyond the model."""

    def __init__(self, model: torch.nn.Module, backend: Backend, make_part: MakePart, name: str | None = None):
        self.model = model
        self._make_part = make_part
        self.backend = backend
        self.name = name
        """The name of a part; None for the net itself."""
        self.checked = -1
        """How many graphs were compiled when a call was last recorded and checked; -1 to do so again."""
        self._parts: dict[str, tuple[torch.nn.Module, torch.nn.Module]] = {}
        """Submodules, and what stands for each."""
        self.observing: Any = None
        """Of a net: what runs its calls while it is measured; made on first use."""
        self.decoding: Any = None
        """Of a net: the same, captured as a whole, which runs the steps of `generate` with a static cache."""
        self.traced_steps: TracedSteps | None = TracedSteps()
        """Of a net that is cut into blocks: what runs such steps; None if they are no calls of blocks alone."""
        self.seconds_in_steps = 0.0
        """Of a net that is cut into blocks: what steps of `generate` with a static cache took."""
        self.generates = hasattr(type(model), "generate")
        """Whether `generate` may run the calls of the net."""
        self.replaced_forward: Callable | None = None
        """What was assigned to the net's `forward`."""
        self.own_method: tuple[Callable, Callable] | None = None
        """A forward that the model's instance has of its own, and the net's method with its signature."""
        self._compiled: tuple[Callable | None, Captured, Callable] | None = None
        """A forward that the model's instance has of its own, None for that of its class; what it compiled to; and how
        that is called."""
        self.short_way: ShortWay | None = None
        """How the module may be called past torch's wrappers and the checks of a first call."""
        self._shared: tuple[Captured, ShortWay] | None = None
        """Of a block: what is captured for all that are like it, and its own way there."""
        self._slices: dict[tuple, tuple[list[torch.nn.Module], torch.nn.Module]] = {}
        """Of a sequence: the modules of each slice, and what stands for it."""

    def __reduce__(self):
        # A model that is a net itself has this among its attributes. Copies of the model, or files, have None instead.
        return type(None), ()

    @property
    def is_around_blocks(self) -> bool:
        """Whether the module holds blocks, so that its forward runs as Python."""
        blocks = self.backend.blocks
        return blocks is not None and (self.name or "") in blocks.around and not blocks.are_checkpointed()

    @runs_as_python
    def part(self, key: str) -> torch.nn.Module | None:
        """The submodule with a name, compiled if `is_compiled` says so; the same object until it is replaced."""
        module = self.model._modules[key]
        if module is None:
            return None
        known = self._parts.get(key)
        if known is None or known[0] is not module:
            name = f"{self.name}.{key}" if self.name else key
            made = self._make_part(module, name, self.backend) if is_compiled(module) else module
            known = self._parts[key] = module, made
        return known[1]

    @functools.cached_property
    def own_cache(self) -> OwnCache:
        """Finds the layer of a cache that is this block's."""
        return OwnCache(self.model)

    def slice(self, key: slice) -> torch.nn.Module:
        """Some modules of a sequence, as a sequence of the same parts."""
        container: Any = self.model
        names = list(container._modules)[key]
        modules = [container._modules[name] for name in names]
        known = self._slices.get((key.start, key.stop, key.step))
        if known is None or known[0] != modules:
            if len(self._slices) >= _MOST_SLICES:
                self._slices.clear()
            made = self._make_part(container[key], self.name or "", self.backend)
            parts = [self.part(name) for name in names]
            made._steelyard._parts = {str(i): pair for i, pair in enumerate(zip(modules, parts, strict=True))}
            known = self._slices[key.start, key.stop, key.step] = modules, made
        return known[1]

    def shared(self) -> tuple[Captured, ShortWay]:
        """What is captured for all blocks like this one, and how this one calls it."""
        found = self._shared
        return self._share() if found is None else found  # pyright: ignore[reportAttributeAccessIssue]

    def captured(self) -> tuple[Captured, Callable]:
        """The compiled forward of the instance if it has its own, otherwise that of the class; and what calls it."""
        own = self.model.__dict__.get("forward")
        known = self._compiled
        if known is None or known[0] is not own:
            known = self._compile(own)  # pyright: ignore[reportAttributeAccessIssue]
        return known[1:]

    def allow_short_way(self, *, is_settled: bool) -> None:
        """From now on calls like the last may go past the checks of a first call, if those have nothing to look at."""
        if not is_settled or self.short_way is not None:
            return
        backend, settings, known = self.backend, self.backend.settings, self._compiled
        is_plain = settings.target == CPU and settings.kv_cache is None and not settings.attention
        is_whole = backend.blocks is None or (self.name or "") not in backend.blocks.around
        has_own_call = type(self.model).__call__ is not torch.nn.Module.__call__
        if known is not None and isinstance(known[2], ShortWay) and is_plain and is_whole and not has_own_call:
            self.short_way = None if backend.has_fast_path else known[2]

    def plain_forward(self, net: torch.nn.Module) -> Callable:
        """The same forward, not compiled."""
        own = self.model.__dict__.get("forward")
        return functools.partial(type(self.model).forward, net) if own is None else own

    @torch.compiler.disable
    def _share(self) -> tuple[Captured, ShortWay]:
        blocks, name = self.backend.blocks, self.name
        assert blocks is not None
        assert name is not None
        with self.backend.lock:
            known = self.backend.block_captures
            group = blocks.groups[name]
            if group not in known:
                known[group] = Captured(call_block, self._graph_compiler(), name, sharers=blocks.sharers[group])
            self._shared = known[group], ShortWay(known[group])
            return self._shared

    # Not captured: parts are compiled while the Python code around them runs after a graph break.
    @torch.compiler.disable
    def _compile(self, own: Callable | None) -> tuple[Callable | None, Captured, Callable]:
        with self.backend.lock:
            # Threads that come together share what the first one made.
            if self._compiled is None or self._compiled[0] is not own:
                forward = type(self.model).forward if own is None else own
                captured = Captured(forward, self._graph_compiler(), self.name or "")
                self._compiled = own, captured, ShortWay(captured) if own is None else captured.run
            return self._compiled

    def _graph_compiler(self) -> Callable:
        """What torch calls with each graph of this module; it does not keep the net."""
        backend, name = weakref.proxy(self.backend), self.name or ""

        def compile_graph(graph_module: torch.fx.GraphModule, example_inputs: Sequence) -> Callable:
            return backend(graph_module, example_inputs, caller=name)

        return compile_graph
