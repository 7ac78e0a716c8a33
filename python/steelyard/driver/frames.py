"""How torch captures the forward of one net: once for each kind of arguments, and for no longer than the net lives.

torch keeps what it compiled in the code object of a function, which all models of a class share: its limit of
compilations, and what it compiled, would be those of all nets, and outlive each of them. So a net runs a copy of its
forward with a code object of its own. What torch compiles beyond it, the functions that are called after a graph break,
stays in code objects that nets share: there the limit is counted for each net, and a net that is freed leaves nothing
but empty entries, which torch has no way to remove.
"""

import functools
import inspect
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo import eval_frame, pgo, trace_rules
from torch._dynamo.eval_frame import cached_backends, innermost_fn
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._dynamo.guards import CheckFunctionManager, DeletedGuardManagerWrapper
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.types import ConvertFrameReturn, GuardedCode, wrap_guarded_code
from torch._dynamo.utils import CleanupManager

from steelyard.driver import progress
from steelyard.driver.layer_names import innermost_module
from steelyard.forks import make_lock

# torch's own limits count the entries of all nets.
_lift_limits = torch._dynamo.config._make_closure_patcher(
    recompile_limit=sys.maxsize, accumulated_recompile_limit=sys.maxsize
)

_GRAPH = "__compiled_fn"
"""How the names of graphs begin that compiled code calls."""
_RESUMED = "__resume_at"
"""How the names of functions begin in which code goes on after a graph break."""
_DIRECTLY = "_directly"
"""How the names of graphs end that are called without torch's wrappers."""
_MOST_KNOWN = 4
_MOST_MISSES = 16


class Captured:
    """A forward whose graphs are compiled by `compile_graph`, a function of this net alone that does not keep it.

    `name` is that of the module among those of the net; empty for the net itself. `sharers` is how many modules it runs
    for: it may be compiled so many times more often.
    """

    def __init__(self, forward: Callable, compile_graph: Callable, name: str, sharers: int = 1):
        own = _with_own_code(forward)
        optimize: Any = torch._dynamo.optimize(backend=compile_graph)
        self.frames = Frames(optimize.callback._torchdynamo_orig_backend, compile_graph, own.__code__, name, sharers)
        optimize.callback._torchdynamo_orig_backend = self.frames
        self.run: Callable = optimize(own)
        self._own = own
        self._calls: list[CompiledCall] = []
        """What was found to be used, one of each."""
        self._lock = make_lock()

    def latest(self) -> "CompiledCall | None":
        """What a call used last; None if that needs torch around it, to go on compiling.

        That is code with a graph break: without a graph it only calls what it was compiled from.
        """
        own = self._own
        if not isinstance(own, FunctionType):
            return None
        entries = self.frames.entries(own.__code__)
        # torch moves what it uses to the front.
        names = entries[0].code.co_names if entries else ()
        if not _mentions(names, _GRAPH) or _mentions(names, _RESUMED):
            return None
        code, guards = entries[0].code, entries[0].guard_manager
        if code.co_freevars != own.__code__.co_freevars:
            return None
        with self._lock:
            self._calls = [call for call in self._calls if call.guards.cache_entry is not None]
            known = next((call for call in self._calls if call.guards is guards), None)
            if known is None:
                known = CompiledCall(guards, _calling_directly(code, own))
                self._calls.append(known)
            return known

    def has_breaks(self) -> bool:
        """Whether what a call by `run` used last goes on in Python after a graph, or before one."""
        entries = self.frames.entries(self._own.__code__)
        return bool(entries) and _mentions(entries[0].code.co_names, _RESUMED)

    @functools.cached_property
    def locals_of(self) -> Callable[..., dict[str, Any]]:
        """What the guards of torch read, given the arguments of a call: the variables of the forward by name."""
        return _make_locals(self._own)


class CompiledCall(NamedTuple):
    """What torch compiled for some calls."""

    guards: Any
    run: Callable


def _calling_directly(code: CodeType, own: FunctionType) -> FunctionType:
    """Code that torch compiled from a function, as one that calls its graphs without torch's wrappers around them.

    The wrappers keep torch from compiling what runs in graphs: there is no need where it compiles nothing.
    """
    names = {name: f"{name}{_DIRECTLY}" for name in code.co_names if name.startswith(_GRAPH)}
    for name, direct in names.items():
        own.__globals__[direct] = innermost_fn(own.__globals__[name])
    code = code.replace(co_names=tuple(names.get(name, name) for name in code.co_names))
    run = FunctionType(code, own.__globals__, own.__name__, own.__defaults__, own.__closure__)
    run.__kwdefaults__ = own.__kwdefaults__
    for direct in names.values():
        weakref.finalize(run, own.__globals__.pop, direct, None).atexit = False
    return run


def _make_locals(function: FunctionType) -> Callable[..., dict[str, Any]]:
    """A function with the same parameters that returns their values by name, and those of its free variables."""
    code = function.__code__
    count, only_named = code.co_argcount, code.co_kwonlyargcount
    taken = list(code.co_varnames[: count + only_named])
    rest = list(code.co_varnames[count + only_named :])
    words = taken[:count]
    if code.co_posonlyargcount:
        words.insert(code.co_posonlyargcount, "/")
    if code.co_flags & inspect.CO_VARARGS:
        taken.append(rest[0])
        words.append(f"*{rest.pop(0)}")
    elif only_named:
        words.append("*")
    words += taken[count : count + only_named]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        taken.append(rest[0])
        words.append(f"**{rest[0]}")
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    # A name that is longer than that of any parameter is that of none.
    cells_name = "cells".ljust(1 + max(map(len, code.co_varnames), default=0), "_")
    held = [f"{name!r}: {name}" for name in taken]
    held += [f"{name!r}: {cells_name}[{name!r}].cell_contents" for name in cells]
    namespace: dict[str, Any] = {cells_name: cells}
    exec(f"def locals_of({', '.join(words)}): return {{{', '.join(held)}}}", namespace)
    locals_of = namespace["locals_of"]
    locals_of.__defaults__, locals_of.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return locals_of


def _mentions(names: Iterable[str], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in names)


class ShortWay:
    """Calls of one module by what torch compiled for it: checks the guards itself, as torch does on a longer way."""

    __slots__ = ("_captured", "_known", "_locals_of", "_misses")

    def __init__(self, captured: Captured):
        self._captured = captured
        self._locals_of = captured.locals_of
        self._known: tuple[CompiledCall, ...] = ()
        """The last one first."""
        self._misses = 0
        """Calls in a row for which nothing was known."""

    def find(self, arguments: tuple, keywords: dict[str, Any]) -> Callable | None:
        """What was compiled for arguments like these, if it is known here, and torch is to use it."""
        known = self._known
        if not known or eval_frame._stance.stance != "default":
            return None
        try:
            variables = self._locals_of(*arguments, **keywords)
        except (TypeError, ValueError):
            return None  # arguments that the forward does not take, or a variable of it that has no value yet
        for call in known:
            # torch takes the entry away from guards that are no longer valid.
            if call.guards.cache_entry is not None and call.guards.check(variables):
                if call is not known[0]:
                    self._known = (call, *(other for other in known if other is not call))
                if self._misses:
                    self._misses = 0
                return call.run
        return None

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run what was compiled for arguments like these, or have them compiled."""
        run = self.find(arguments, keywords)
        if run is not None:
            return run(*arguments, **keywords)
        result = self._captured.run(*arguments, **keywords)
        self._misses = 0 if self._captured.frames.recent else self._misses + 1
        # To look costs more than it saves where each call is another.
        if self._misses < _MOST_MISSES:
            self._learn()
        return result

    def _learn(self) -> None:
        latest = self._captured.latest()
        if latest is None:
            return
        valid = [call for call in self._known if call.guards.cache_entry is not None]
        others = [call for call in valid if call.guards is not latest.guards]
        self._known = (latest, *others[: _MOST_KNOWN - 1])


def _with_own_code(forward: Callable) -> Any:
    forward = innermost_fn(forward)
    if isinstance(forward, MethodType):
        return MethodType(_with_own_code(forward.__func__), forward.__self__)
    # torch captures no function of its own files, such as nn.Linear.forward, unless another function calls it.
    if not isinstance(forward, FunctionType) or trace_rules.check(forward):
        forward = _called_by_python(forward)
    copy = FunctionType(
        forward.__code__.replace(), forward.__globals__, forward.__name__, forward.__defaults__, forward.__closure__
    )
    copy.__kwdefaults__ = forward.__kwdefaults__
    copy.__qualname__, copy.__module__, copy.__doc__ = forward.__qualname__, forward.__module__, forward.__doc__
    copy.__dict__.update(forward.__dict__)
    return copy


def _called_by_python(forward: Callable) -> FunctionType:
    def forward_of_torch(*arguments, **keywords):
        return forward(*arguments, **keywords)

    return forward_of_torch  # pyright: ignore[reportReturnType]


@dataclass
class _KeptByTorch:
    """What torch keeps for a net."""

    compile_graph: Callable
    codes: dict[int, weakref.ref[CodeType]] = field(default_factory=dict)
    """The functions that it compiled, by id: code objects that are alike are equal."""
    compiled: list[weakref.ref[CodeType]] = field(default_factory=list)
    """What it compiled them to."""
    finalizers: list[weakref.finalize] = field(default_factory=list)


class Frames:
    """Stands before torch's own conversion of frames. torch holds its lock of compilations in each call."""

    def __init__(self, convert: Any, compile_graph: Callable, own_code: CodeType, name: str, sharers: int):
        self._convert = convert
        self._name = name
        self.sharers = sharers
        self._own_code = own_code
        self._seconds: list[float] = []
        """What each conversion took."""
        self._varying: defaultdict = defaultdict(pgo.CodeState)
        """Which sizes and numbers torch saw vary, by function."""
        self.recent: dict[int, list[tuple[CodeType, Any]]] = {}
        """What the present call of each thread had compiled, and from which functions."""
        # By this name torch finds the function that compiles graphs, which tells the entries of nets apart.
        self._torchdynamo_orig_backend = convert._torchdynamo_orig_backend
        self._kept = _KeptByTorch(compile_graph)
        weakref.finalize(self, _free, self._kept).atexit = False

    def __call__(self, frame: Any, *arguments: Any, **keywords: Any) -> ConvertFrameReturn:
        return self._find_or_convert(self._convert, frame, *arguments, **keywords)

    def _clone_with_backend(self, compile_graph: Callable) -> Callable:
        """The same for the graphs of DistributedDataParallel, which it splits before they are compiled."""
        return functools.partial(self._find_or_convert, self._convert._clone_with_backend(compile_graph))

    def _find_or_convert(self, convert: Callable, frame: Any, *arguments: Any, **keywords: Any) -> ConvertFrameReturn:
        code = frame.f_code
        entries = self.entries(code)
        # torch enters what a thread has compiled when that has left the lock, which may be later than now.
        entering = [made for call in list(self.recent.values()) for known, made in call if known is code]
        for entry in (*entries, *entering):
            # Another thread has compiled the frame while this one waited for the lock.
            if entry.guard_manager.check(frame.f_locals):
                return wrap_guarded_code(GuardedCode(entry.code, _no_guards("compiled already"), entry.compile_id))
        limit = torch._dynamo.config.recompile_limit * self.sharers
        if len(entries) >= limit:
            raise FailOnRecompileLimitHit(f"{code.co_qualname} was compiled {limit} times")
        self._kept.codes[id(code)] = weakref.ref(code)
        restore, begin = _lift_limits(), time.perf_counter()
        try:
            describe = functools.partial(self._describe, code, threading.get_ident())
            with progress.doing(describe), _seen_to_vary(self._varying):
                result = convert(frame, *arguments, **keywords)
        finally:
            restore()
            self._seconds.append(time.perf_counter() - begin)
        made = result.guarded_code
        if made is not None:
            self.recent.setdefault(threading.get_ident(), []).append((code, made))
            self._kept.compiled.append(weakref.ref(made.code))
            self._kept.finalizers += _finalizers_of(made.guard_manager)
        elif code is self._own_code:
            # Otherwise torch would leave the forward uncompiled from now on, whatever its arguments.
            result.apply_to_code = False
        return result

    def seconds_each(self) -> float:
        """How long torch took to compile a function, on average."""
        return sum(self._seconds) / max(len(self._seconds), 1)

    def entries(self, code: CodeType) -> list[Any]:
        """What torch compiled of a function for this net."""
        return _entries(code, self._kept.compile_graph)

    def _describe(self, code: CodeType, thread: int) -> str:
        """What torch traces, by the module that it has come to."""
        if code is not self._own_code:
            return f"tracing {code.co_qualname}"
        names = [name for name in (self._name, _traced_module(thread)) if name]
        return f"tracing {'.'.join(names) or 'the model'}"

    def forget_call(self, *, failed: bool) -> None:
        """End a call of this thread.

        Of one that failed before its first op, torch may keep code that takes any arguments, and compiles none of them.
        """
        for _, made in self.recent.pop(threading.get_ident(), ()):
            guards = made.guard_manager
            if failed and not _mentions(made.code.co_names, _GRAPH) and guards.extra_state is not None:
                guards.extra_state.invalidate(guards.cache_entry, _no_guards("the call failed"))


@contextmanager
def _seen_to_vary(varying: defaultdict) -> Iterator[None]:
    """A context in which torch knows only what is in `varying`, and adds to it.

    torch tells functions by file, line and name, which nets share: what differs between two nets would vary in both.
    The caller holds torch's lock of compilations.
    """
    outer = pgo._CODE_STATE, pgo._INIT_CODE_STATE
    # What torch began with is what it has: it writes none of it to its own cache on disk.
    pgo._CODE_STATE = pgo._INIT_CODE_STATE = varying
    try:
        yield
    finally:
        pgo._CODE_STATE, pgo._INIT_CODE_STATE = outer


def _entries(code: CodeType, compile_graph: Callable) -> list[Any]:
    """What torch compiled of a function for one net."""
    return [
        entry
        for entry in _debug_get_cache_entry_list(code)
        if entry.backend is compile_graph and not isinstance(entry.guard_manager, DeletedGuardManagerWrapper)
    ]


def _traced_module(thread: int) -> str | None:
    """The name of the submodule that torch traces in another thread; None if it is in none."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not InstructionTranslatorBase.step.__code__:
        frame = frame.f_back
    stack = None if frame is None else frame.f_locals["self"].nn_module_stack
    return innermost_module(stack, {})


def _finalizers_of(guard_manager: Any) -> list[weakref.finalize]:
    """What keeps guards alive for as long as the functions and classes live that they compare with: often for ever."""
    found = []
    # A copy: unlike a list of items, making one starts no garbage collection, which would remove some meanwhile.
    for finalizer, info in weakref.finalize._registry.copy().items():  # pyright: ignore[reportAttributeAccessIssue]
        owner = getattr(getattr(info.func, "func", None), "__self__", None)
        if isinstance(owner, CheckFunctionManager) and owner.guard_manager is guard_manager:
            found.append(finalizer)
    return found


def _free(kept: _KeptByTorch) -> None:
    """Free what torch keeps for a net that is no more."""
    cached_backends.pop(id(kept.compile_graph), None)
    for code in _alive(kept.codes.values()):
        for entry in _entries(code, kept.compile_graph):
            entry.guard_manager.extra_state.invalidate(entry, _no_guards("the net was freed"))
    for finalizer in kept.finalizers:
        finalizer.detach()
    for code in _alive(kept.compiled):
        # torch loses count of the references to code with a graph break, and would never free the graphs it calls.
        if code in CleanupManager.instance:
            CleanupManager.instance._remove_id(id(code))


def _alive(references: Iterable[weakref.ref[CodeType]]) -> list[CodeType]:
    return [code for code in (reference() for reference in references) if code is not None]


def _no_guards(reason: str) -> Any:
    """Guards that no call passes. Those of torch for entries that are no longer valid are empty: any call would."""
    guards = DeletedGuardManagerWrapper(reason)
    guards.root.add_lambda_guard(lambda _: False, [reason], None)
    return guards
