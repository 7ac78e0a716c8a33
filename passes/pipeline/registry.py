"""The passes by name. A pass is a function `(module, *, options)` with a docstring; its options are its keywords."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NoReturn, get_args, get_origin

from torch_mlir import ir

from steelyard.errors import IRError, PipelineError, SteelyardError

PassFunction = Callable[..., None]
_TRUE, _FALSE = ("true", "1", ""), ("false", "0")


class PassFailedError(IRError):
    """A pass gave up; the diagnostic that says why was emitted."""


@dataclass(frozen=True)
class PassOption:
    """A keyword of a pass, spelled kebab-case in a pipeline.

    A keyword annotated as `Annotated[Type, read]` takes objects from code, and text that `read` understands.
    """

    name: str
    type: type
    default: Any
    read: Callable[[str], Any] | None = None

    @property
    def default_text(self) -> str:
        """The default as a pipeline would spell it."""
        if self.default is inspect.Parameter.empty:
            return "required"
        return str(self.default).lower() if self.type is bool else str(self.default or "none")

    def value_of(self, value: Any, pass_name: str) -> Any:
        """The option's value from its text, or from an object as it is."""
        if not isinstance(value, str):
            return value
        if self.read is None:
            return self._parse(value, pass_name)
        try:
            return self.read(value)
        except SteelyardError as error:
            raise PipelineError(f"option '{self.name}' of {pass_name}: {error}") from None

    def _parse(self, text: str, pass_name: str) -> Any:
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

    def bind(self, values: Iterable[tuple[str, Any]]) -> Callable[[ir.Operation], None]:
        """The pass as a function of the module, with its options from text or objects."""
        options = {option.name: option for option in self.options}
        keywords: dict[str, Any] = {}
        for name, value in values:
            if name not in options:
                known = ", ".join(options) or "none"
                raise PipelineError(f"{self.name} has no option '{name}'; its options: {known}")
            keywords[name.replace("-", "_")] = options[name].value_of(value, self.name)
        missing = [o.name for o in self.options if o.default is inspect.Parameter.empty and _key(o) not in keywords]
        if missing:
            raise PipelineError(f"{self.name} needs the option '{missing[0]}', as in {self.name}{{{missing[0]}=...}}")
        return partial(self.function, **keywords)


_PASSES: dict[str, Pass] = {}


def register_pass(function: PassFunction) -> PassFunction:
    """Register a function as the pass `scaled-<its name>`."""
    name = "scaled-" + function.__name__.replace("_", "-")
    keywords = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    options = tuple(_option(keyword) for keyword in keywords)
    _PASSES[name] = Pass(name, function, options, inspect.getdoc(function) or "")
    return function


def all_passes() -> dict[str, Pass]:
    """Every registered pass, by name."""
    return dict(sorted(_PASSES.items()))


def fail(op: ir.Operation | ir.OpView, message: str) -> NoReturn:
    """Give up a pass with an error at an op."""
    op.location.emit_error(f"'{op.operation.name}' op {message}")
    raise PassFailedError(message)


def _option(keyword: inspect.Parameter) -> PassOption:
    name, annotation = keyword.name.replace("_", "-"), keyword.annotation
    if get_origin(annotation) is not Annotated:
        return PassOption(name, annotation, keyword.default)
    own_type, read = get_args(annotation)
    return PassOption(name, own_type, keyword.default, read)


def _key(option: PassOption) -> str:
    return option.name.replace("-", "_")
