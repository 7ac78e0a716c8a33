"""Which implementation runs: the native XLA handlers on a CPU, plain jnp elsewhere or if they are missing."""

import contextlib
import contextvars
from functools import cache
from importlib import import_module

import jax

from steelyard import knobs
from steelyard.errors import TargetError, shown

PATHS = ("auto", "native", "reference")
_chosen: contextvars.ContextVar[str] = contextvars.ContextVar("steelyard_jax_path", default="auto")


@cache
def is_available() -> bool:
    """Whether the native handlers are installed; the first call registers them with XLA."""
    try:
        _ffi = import_module("steelyard.jax._ffi")
    except ImportError:
        return False
    _ffi.set_isa(knobs.isa() or "")
    for name, handler in _ffi.handlers().items():
        jax.ffi.register_ffi_target(name, handler, platform="cpu")
    return True


@contextlib.contextmanager
def use_path(path: str):
    """Trace with `native` or `reference` on every platform; `auto`, the default, chooses by platform.

    This takes effect when a function is traced: one that jit has already traced keeps its path.
    """
    if not isinstance(path, str) or path not in PATHS:
        raise TargetError(f"path must be one of {', '.join(PATHS)}, got {shown(path)}")
    token = _chosen.set(path)
    try:
        yield
    finally:
        _chosen.reset(token)


def traced_path() -> str:
    """The path of programs traced now."""
    path = _chosen.get()
    if path == "native" and not is_available():
        raise TargetError("path 'native' needs the module steelyard.jax._ffi, which is missing; reinstall steelyard")
    return "reference" if path == "auto" and not is_available() else path
