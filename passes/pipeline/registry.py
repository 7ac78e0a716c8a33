"""The passes by name. A pass is a function `(module, *, options)` with a docstring; its options are its keywords."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from torch_mlir import ir

from steelyard.errors import IRError, PipelineError

PassFunction = Callable[..., None]
_TRUE, _FALSE = ("true", "1", ""), ("false", "0")


class PassFailedError(IRError):
    """A pass gave up; the diagnostic that says why was emitted."""


@dataclass(frozen=True)
class PassOption:
    """A keyword of a pass, spelled kebab-case in a pipeline."""

    name: str
    type: type
    default: Any

    def parse(self, text: str, pass_name: str) -> Any:
        """The option's value from its text."""
        if self.type is bool:
            if text.lower() not in _TRUE + _FALSE:
                raise PipelineError(f"option '{self.name}' of {pass_name} must be true or false, got '{text}'")
            return text.lower() in _TRUE
        try:
            value = self.type(text)
            if self.type is int and not 0 <= value < 2**31:
                raise ValueError
            return value
        except ValueError:
            wanted = "an int from 0 to 2147483647" if self.type is int else f"a {self.type.__name__}"
            raise PipelineError(f"option '{self.name}' of {pass_name} must be {wanted}, got '{text}'") from None


@dataclass(frozen=True)
class Pass:
    """A registered pass."""

    name: str
    function: PassFunction
    options: tuple[PassOption, ...]
    description: str

    @property
    def summary(self) -> str:
        """The first line of the description."""
        return self.description.splitlines()[0]

    def bind(self, values: Iterable[tuple[str, str]]) -> Callable[[ir.Operation], None]:
        """The pass as a function of the module, with its options from text."""
        options = {option.name: option for option in self.options}
        keywords: dict[str, Any] = {}
        for name, text in values:
            if name not in options:
                known = ", ".join(options) or "none"
                raise PipelineError(f"{self.name} has no option '{name}'; its options: {known}")
            keywords[name.replace("-", "_")] = options[name].parse(text, self.name)
        missing = [o.name for o in self.options if o.default is inspect.Parameter.empty and _key(o) not in keywords]
        if missing:
            raise PipelineError(f"{self.name} needs the option '{missing[0]}', as in {self.name}{{{missing[0]}=...}}")
        return partial(self.function, **keywords)


_PASSES: dict[str, Pass] = {}


def register_pass(function: PassFunction) -> PassFunction:
    """Register a function as the pass `scaled-<its name>`."""
    name = "scaled-" + function.__name__.replace("_", "-")
    keywords = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    options = tuple(PassOption(p.name.replace("_", "-"), p.annotation, p.default) for p in keywords)
    _PASSES[name] = Pass(name, function, options, inspect.getdoc(function) or "")
    return function


def all_passes() -> dict[str, Pass]:
    """Every registered pass, by name."""
    return dict(sorted(_PASSES.items()))


def fail(op: ir.Operation | ir.OpView, message: str) -> NoReturn:
    """Give up a pass with an error at an op."""
    op.location.emit_error(f"'{op.operation.name}' op {message}")
    raise PassFailedError(message)


def _key(option: PassOption) -> str:
    return option.name.replace("-", "_")
