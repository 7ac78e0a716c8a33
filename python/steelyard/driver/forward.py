"""The `forward` of a compiled module: a method with the model's signature.

A net and its model share one `__dict__`, in which libraries replace the forward of a module. So a net's own forward is
looked up before that `__dict__`, and what is assigned to `net.forward` is kept apart from the model.
"""

import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import CodeType, MethodType
from typing import Any, TypeVar

import torch
from torch._C import _get_tracing_state
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch._C._functorch import peek_interpreter_stack
from torch._dynamo.eval_frame import skip_code
from torch.fx import _symbolic_trace
from torch.fx._symbolic_trace import is_fx_symbolic_tracing
from torch.jit._trace import is_tracing
from torch.nn.modules.module import (
    _global_backward_hooks,
    _global_backward_pre_hooks,
    _global_forward_hooks,
    _global_forward_pre_hooks,
)

from steelyard.driver.decoding import current_decoding
from steelyard.errors import UnsupportedModelError

Function = TypeVar("Function", bound=Callable)

_OUTSIDE = (
    "a net of steelyard.compile runs its own programs, which cannot be a part of another graph: leave out "
    "fullgraph=True, or give torch.export the model that was compiled"
)


def runs_as_python(function: Function) -> Function:
    """A function of a net that torch leaves alone between two graphs, where it compiles whatever Python runs.

    Compiling it takes longer than all its calls, and could find a transform or a capture where there is none. In what
    torch captures, it is traced like any other.
    """
    waiting = [function.__code__]  # pyright: ignore[reportFunctionMemberAccess]
    while waiting:
        code = waiting.pop()
        skip_code(code)
        waiting += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return function


class Forward:
    """The method `forward` of a class of compiled modules."""

    def __init__(self, model_class: type[torch.nn.Module]):
        self._function = _make_function(model_class.forward)

    @runs_as_python
    def __get__(self, net: Any, owner: type | None = None) -> Callable:
        if net is None:
            return self._function
        state = net._steelyard
        if state.replaced_forward is not None:
            return state.replaced_forward
        own = net.__dict__.get("forward")
        # torch captures no creation of a method.
        bind = functools.partial if torch.compiler.is_dynamo_compiling() else MethodType
        if own is None:
            return bind(self._function, net)
        if state.own_method is None or state.own_method[0] is not own:
            state.own_method = own, _make_function(own, is_bound=True)
        return bind(state.own_method[1], net)

    def __set__(self, net: Any, function: Callable) -> None:
        net._steelyard.replaced_forward = function

    def __delete__(self, net: Any) -> None:
        if net._steelyard.replaced_forward is None:
            raise AttributeError("forward")
        net._steelyard.replaced_forward = None


def _make_function(like: Callable, *, is_bound: bool = False) -> Callable:
    """A method that runs a net, with the signature of a model's forward."""

    def forward(self, *arguments, **keywords):
        if not torch.compiler.is_dynamo_compiling():
            _refuse_tracers()
            return self._run(*arguments, **keywords)
        if is_own_capture():
            return self._steelyard.plain_forward(self)(*arguments, **keywords)
        return _run_outside(self, arguments, keywords)

    # Not `functools.wraps`: libraries follow `__wrapped__` to its end, which would be the forward of the plain model.
    forward.__doc__ = like.__doc__
    # Some callables that are not written in Python have no signature to take over.
    with suppress(ValueError):
        signature = inspect.signature(like)
        if is_bound:
            itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
            signature = signature.replace(parameters=[itself, *signature.parameters.values()])
        forward.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    return forward


@torch.compiler.disable(reason=_OUTSIDE)
def _run_outside(net: Any, arguments: tuple, keywords: dict) -> Any:
    return net._run(*arguments, **keywords)


class _Captures(threading.local):
    running = 0
    net: Any = None
    around_blocks: Any = None
    with_gradients = False


_captures = _Captures()


# Beyond its limit, torch would log a line and run the model uncompiled. By default it also overlooks hooks that are
# registered after the first call. What it adds to compiled code for its profiler costs more than checking the guards of
# a block. The change is local to a thread, and half as expensive as `config.patch`.
_change_settings = torch._dynamo.config._make_closure_patcher(
    fail_on_recompile_limit_hit=True, skip_nnmodule_hook_guards=False, record_runtime_overhead=False
)


class OwnCapture:
    """A context of calls in which torch captures for a net, with the settings that nets need.

    `key` is what the parts of the net know it by. `around_blocks` says that the call is cut into blocks.
    """

    __slots__ = ("_around_blocks", "_key", "_previous", "_restore")

    def __init__(self, key: Any, *, around_blocks: bool):
        self._key = key
        self._around_blocks = key if around_blocks else None

    def __enter__(self) -> None:
        self._restore = _change_settings()
        _captures.running += 1
        self._previous = _captures.net, _captures.around_blocks, _captures.with_gradients
        _captures.net, _captures.around_blocks = self._key, self._around_blocks
        _captures.with_gradients = torch.is_grad_enabled()

    def __exit__(self, *_) -> None:
        _captures.net, _captures.around_blocks, _captures.with_gradients = self._previous
        _captures.running -= 1
        self._restore()


def is_within(key: Any) -> bool:
    """Whether this thread is in a call of a net already."""
    return _captures.net is key


def is_around_blocks(key: Any) -> bool:
    """Whether this thread runs the Python code around the blocks of a net."""
    return _captures.around_blocks is key


def had_gradients() -> bool:
    """Whether gradients were enabled when the call of a net began that this thread is in."""
    return _captures.with_gradients


@torch.compiler.assume_constant_result
def is_own_capture() -> bool:
    """Whether torch captures a call for a net, and not for a `torch.compile` around it."""
    return _captures.running > 0


@runs_as_python
def is_plain_call(net: Any, state: Any) -> bool:
    """Whether a call of a net has only its program to run: no hook, no tracer, nobody who measures, no other forward.

    Where it is not, the call goes on to `torch.nn.Module.__call__`, which looks at the same dicts of hooks, and calls
    what is in them around the forward. `state` is the net's own.
    """
    own = net.__dict__
    return not (
        own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
        or "forward" in own
        or state.replaced_forward is not None
        or state.backend.observing is not None
        or _captures.running
        or (state.generates and current_decoding(net) is not None)
        or _global_forward_hooks
        or _global_forward_pre_hooks
        or _global_backward_hooks
        or _global_backward_pre_hooks
        or get_eval_frame_callback() is not None
        # As `_refuse_tracers` asks, without the Python around it.
        or _get_tracing_state() is not None
        or peek_interpreter_stack() is not None
        or torch.compiler._is_exporting_flag
        or _symbolic_trace._is_fx_tracing_flag
    )


@runs_as_python
def _refuse_tracers() -> None:
    """Refuse tracers that would record the plain model, or nothing, instead of the net's programs."""
    if is_tracing():
        tracer = "torch.jit.trace"
    elif torch.compiler.is_exporting():
        tracer = "torch.export"
    elif is_fx_symbolic_tracing():
        tracer = "torch.fx"
    elif peek_interpreter_stack() is not None:
        raise UnsupportedModelError(
            "torch compiles nothing that is called under torch.func.grad, vmap, jacrev or another transform, so "
            "nothing of a net would be quantized there; for gradients, call backward() or torch.autograd.grad; for a "
            "batch, call the net with it; to transform in high precision, give torch.func the model that was compiled"
        )
    else:
        return
    raise refusal(tracer)


def refuse_nested(arguments: Iterable[Any]) -> None:
    """Refuse tensors that torch cannot capture, and would fail on in its own words."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor) and argument.is_nested:
            raise UnsupportedModelError(
                f"the arguments of a net must be plain tensors, got a {type(argument).__name__} that is nested; pad it"
            )


def is_sparse(argument: Any) -> bool:
    """Whether torch may capture nothing of a call because of this argument."""
    return isinstance(argument, torch.Tensor) and argument.layout is not torch.strided


def refuse_disabled_compiler() -> None:
    """Refuse to run where torch compiles nothing: all of a net would run in high precision."""
    if torch._dynamo.config.disable or os.environ.get("TORCHDYNAMO_DISABLE") == "1":
        raise UnsupportedModelError(
            "torch.compile must be enabled, and TORCH_COMPILE_DISABLE, TORCHDYNAMO_DISABLE or "
            "torch._dynamo.config.disable turns it off; unset it, or call the model that was compiled"
        )


def refusal(tracer: str) -> UnsupportedModelError:
    """The error for a tool that takes a plain model."""
    return UnsupportedModelError(
        f"{tracer} takes a module whose forward is made of torch's ops, and a net runs quantized programs instead; "
        f"give {tracer} the model that was compiled, or call the net without it"
    )
