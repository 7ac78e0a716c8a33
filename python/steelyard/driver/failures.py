"""Errors of torch's capture as Steelyard's own: which layer, which line, and what to do."""

import re
from collections.abc import Iterable
from types import FunctionType

import torch
from torch._dynamo.exc import BackendCompilerFailed, FailOnRecompileLimitHit, TorchDynamoException, TorchRuntimeError

from steelyard.errors import SteelyardError, UnsupportedModelError
from steelyard.frontend.nodes import source_line

CAPTURE_ERRORS = (TorchDynamoException, FailOnRecompileLimitHit)
"""What torch raises when it cannot capture a call; errors of the model's own code stay as they are."""

_MOST_NAMES = 3


def translate(error: Exception, root: torch.nn.Module) -> SteelyardError:
    """The error to raise instead of one of `CAPTURE_ERRORS`."""
    if isinstance(error, BackendCompilerFailed) and isinstance(error.inner_exception, SteelyardError):
        return error.inner_exception
    if isinstance(error, FailOnRecompileLimitHit):
        return _limit_error()
    lines = _source_lines(error)
    place = _describe(lines, root)
    if isinstance(error, TorchRuntimeError):
        return UnsupportedModelError(
            f"{place}torch cannot run this line on such arguments: {_cause(error)}. The model itself, called without "
            "steelyard.compile, shows whether the arguments are wrong; put an op that torch cannot capture into a "
            "function with @torch.compiler.disable"
        )
    return UnsupportedModelError(
        f"{place}torch cannot capture this line: {type(error).__name__}: {_cause(error)}. Put it into a function with "
        "@torch.compiler.disable, which then runs uncompiled, or compile the submodules around it"
    )


def _source_lines(error: Exception) -> list[tuple[str, int]]:
    """The lines of the model's code that torch was at, outermost first."""
    stack = getattr(error, "real_stack", None)
    if stack:
        return [(frame.filename, frame.lineno or 0) for frame in stack]
    _, _, user = str(error).partition("from user code:")
    return [(file, int(line)) for file, line in re.findall(r'File "([^"]+)", line (\d+)', user)]


def _describe(lines: list[tuple[str, int]], root: torch.nn.Module) -> str:
    for file, line in reversed(lines):
        names = list(_modules_at(file, line, root))
        if names:
            shown = ", ".join(f"'{name}'" for name in names[:_MOST_NAMES])
            more = f" and {len(names) - _MOST_NAMES} more like it" if len(names) > _MOST_NAMES else ""
            place = f"layer {shown}{more}" if names != [""] else "the model"
            return f"{place} at {source_line(lines)}: "
    return f"{source_line(lines)}: " if lines else ""


def _modules_at(file: str, line: int, root: torch.nn.Module) -> Iterable[str]:
    """The modules whose forward has a line."""
    for name, module in root.named_modules():
        function = module.__dict__.get("forward") or type(module).forward
        function = getattr(function, "__wrapped__", function)
        code = function.__code__ if isinstance(function, FunctionType) else None
        if code is not None and code.co_filename == file:
            last = max((number for _, _, number in code.co_lines() if number), default=code.co_firstlineno)
            if code.co_firstlineno <= line <= last:
                yield name


def _cause(error: Exception) -> str:
    """What went wrong, and torch's hints, without the part of the message that is for developers of torch."""
    text = str(error)
    # torch quotes the error of the op: ... got RuntimeError('a and b must match')
    quoted = re.search(r"got \w+\((['\"])(.*?)\1\)", text, re.DOTALL)
    if quoted:
        return quoted.group(2).rstrip(".")
    heading = next(iter(text.strip().splitlines()), "no reason given").rstrip(".")
    hints = [hint.rstrip(".") for hint in re.findall(r"^\s*Hint: (.+)$", text, re.MULTILINE)]
    return ". ".join([heading, *hints])


def _limit_error() -> UnsupportedModelError:
    limit = torch._dynamo.config.recompile_limit
    return UnsupportedModelError(
        f"torch compiles a forward at most {limit} times (torch._dynamo.config.recompile_limit), and these arguments "
        "need one more: another rank, dtype, flag or Python number among them compiles again. Raise that limit, pass "
        "numbers that vary as tensors, or compile a net for each use; nothing was run in high precision instead"
    )
