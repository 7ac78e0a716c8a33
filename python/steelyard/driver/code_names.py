"""The names that the code of a module uses: what it may do, told without running it."""

import dis
import functools
import inspect
from collections.abc import Mapping
from types import CodeType, FunctionType
from typing import Any

import torch

from steelyard.driver.forward import runs_as_python


@runs_as_python
def names_in(module: torch.nn.Module, *, deep: bool = True) -> frozenset[str]:
    """The names that a module's forward uses; if `deep`, with those of its own methods and of functions beside it.

    The operator `@` counts as `matmul`.
    """
    own = module.__dict__.get("forward")
    return _names_in_class(type(module), deep) if own is None else _names_in_code(_code_of(own), {}, {})


@functools.lru_cache(maxsize=1024)
@runs_as_python
def _names_in_class(model_class: type[torch.nn.Module], deep: bool) -> frozenset[str]:
    forward = inspect.unwrap(model_class.forward)
    if not deep:
        return _names_in_code(_code_of(forward), {}, {})
    methods: dict[str, Any] = {}
    for ancestor in reversed(model_class.__mro__):
        if not ancestor.__module__.startswith("torch."):
            methods.update(vars(ancestor))
    return _names_in_code(_code_of(forward), methods, getattr(forward, "__globals__", {}))


@runs_as_python
def _code_of(function: Any) -> CodeType | None:
    function = inspect.unwrap(function) if callable(function) else function
    return getattr(getattr(function, "__func__", function), "__code__", None)


@runs_as_python
def _names_in_code(code: CodeType | None, methods: Mapping[str, Any], beside: Mapping[str, Any]) -> frozenset[str]:
    names: set[str] = set()
    seen: set[CodeType] = set()
    waiting = [(code, beside)]
    while waiting:
        code, beside = waiting.pop()
        if code is None or code in seen:
            continue
        seen.add(code)
        names.update(code.co_names)
        names.update("matmul" for step in dis.get_instructions(code) if step.argrepr in ("@", "@="))
        waiting += [(constant, beside) for constant in code.co_consts if isinstance(constant, CodeType)]
        # Methods of a subclass may be in another package.
        called = [methods.get(name) for name in code.co_names]
        called += [beside[name] for name in code.co_names if _is_near(beside.get(name), beside)]
        waiting += [(_code_of(found), _globals_of(found)) for found in called if isinstance(found, FunctionType)]
    return frozenset(names)


@runs_as_python
def _globals_of(function: FunctionType) -> Mapping[str, Any]:
    return getattr(inspect.unwrap(function), "__globals__", {})


@runs_as_python
def _is_near(function: Any, beside: Mapping[str, Any]) -> bool:
    """Whether something is a function that is written in the same package: others are not read."""
    package = str(beside.get("__name__", "")).partition(".")[0]
    return isinstance(function, FunctionType) and bool(package) and function.__module__.partition(".")[0] == package
