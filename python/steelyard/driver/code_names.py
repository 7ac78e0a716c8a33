"""The names that the code of a module uses: what it may do, told without running it."""

import dis
import functools
import inspect
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from steelyard.driver.forward import runs_as_python


@runs_as_python
def names_in(module: torch.nn.Module, *, deep: bool = True) -> frozenset[str]:
    """The names that a module's forward uses; if `deep`, with those of its own methods and of functions beside it.

    A name that is not an attribute of `self` is there with a dot, too: `.linear` for `functional.linear`. The operator
    `@` counts as `.matmul`. A global, or an attribute of the module, counts as the function that it holds.
    """
    own = module.__dict__.get("forward")
    model_class = type(module)
    names = _names_in_class(model_class, deep) if own is None else _names_in(own, model_class, deep=deep)
    held = [value for name, value in vars(module).items() if name in names and callable(value)]
    return names.union(*map(_names_of, held))


@runs_as_python
def _names_of(value: Any) -> tuple[str, str]:
    while isinstance(value, functools.partial):
        value = value.func
    name = getattr(value, "__name__", "")
    return name, f".{name}"


@functools.lru_cache(maxsize=1024)
@runs_as_python
def _names_in_class(model_class: type[torch.nn.Module], deep: bool) -> frozenset[str]:
    return _names_in(model_class.forward, model_class, deep=deep)


@runs_as_python
def _function_of(value: Any) -> FunctionType | None:
    """The Python function in a method, a property or a wrapper of one; None if there is none."""
    if isinstance(value, property):
        value = value.fget
    value = inspect.unwrap(value) if callable(value) else value
    value = getattr(value, "__func__", value)
    return value if isinstance(value, FunctionType) else None


@runs_as_python
def _names_in(forward: Any, model_class: type, *, deep: bool) -> frozenset[str]:
    names: set[str] = set()
    seen: set[FunctionType] = set()
    waiting = [_function_of(forward)]
    while waiting:
        function = waiting.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        used = set(_names_used(function.__code__))
        beside = function.__globals__
        names.update(used, *(_names_of(beside[name]) for name in used & beside.keys() if callable(beside[name])))
        if deep:
            waiting += _called(function, used, model_class)
    return frozenset(names)


@runs_as_python
def _names_used(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    before = ""
    for step in dis.get_instructions(code):
        if step.argrepr in ("@", "@="):
            yield ".matmul"
        elif step.argval in code.co_names and before != "self":
            yield f".{step.argval}"
        before = step.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_used(constant)


@runs_as_python
def _called(function: FunctionType, names: set[str], model_class: type) -> list[FunctionType | None]:
    """What a function may call: methods, functions that it is wrapped around, and others that are not torch's own."""
    # Methods of each class, because `super()` calls those that another overrides.
    own = [vars(ancestor) for ancestor in model_class.__mro__ if not ancestor.__module__.startswith("torch.")]
    found = [_function_of(scope[name]) for scope in own for name in names & scope.keys()]
    beside = [function.__globals__]
    beside += [vars(value) for name in names if isinstance(value := function.__globals__.get(name), ModuleType)]
    others = [scope[name] for scope in beside for name in names & scope.keys()] + _enclosed(function)
    functions = [_function_of(value) for value in others if isinstance(value, FunctionType | MethodType)]
    return found + [function for function in functions if _package(function) != "torch"]


@runs_as_python
def _enclosed(function: FunctionType) -> list[Any]:
    """The values of the functions around a function that it uses."""
    found = []
    for cell in function.__closure__ or ():
        # A cell is empty until its variable is assigned.
        with suppress(ValueError):
            found.append(cell.cell_contents)
    return found


@runs_as_python
def _package(function: FunctionType | None) -> str:
    return str(getattr(function, "__module__", "")).partition(".")[0]
