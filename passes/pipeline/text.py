"""Pipelines as text: our passes and MLIR's own in one list, as in `scaled-canonicalize,func.func(cse)`.

MLIR cannot parse the name of a pass that is written in Python, so the text is split here at its top-level commas: an
element that names one of ours is added as a function, everything else goes to MLIR's parser as it stands.
"""

import difflib
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from steelyard.errors import IRError, PipelineError
from steelyard.ir.nesting import graphs_in
from steelyard.passes.pipeline.named import all_pipelines
from steelyard.passes.pipeline.registry import Pass, PassFailedError, all_passes

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_WRAPPER = re.compile(r"(?:builtin\.module|any)\s*\((.*)\)", re.DOTALL)
_INLINED = re.compile(r"default-pipeline=([^\s}]+)")
_OPENING, _CLOSING = "({[", ")}]"


@dataclass(frozen=True)
class Element:
    """One top-level element of a pipeline: one of our passes, or text for MLIR's parser."""

    text: str
    name: str
    run: Callable[[ir.Operation], None] | None
    """None for MLIR's own passes."""


def named_pipeline(name: str, **options: Any) -> list[Element]:
    """The elements of a named pipeline, with options as text or as objects; raises `PipelineError`."""
    pipeline = all_pipelines()[name]
    return parse_pipeline(pipeline.text, pipeline.values(options.items()))


def parse_pipeline(text: str, values: Mapping[str, Any] | None = None) -> list[Element]:
    """The elements of a pipeline's text; raises `PipelineError`.

    An option `<name>` has the value of that name, which may be any object.
    """
    stripped = text.strip()
    wrapper = _WRAPPER.fullmatch(stripped)
    if wrapper and _is_balanced(wrapper.group(1)):
        stripped = wrapper.group(1).strip()
    if not stripped:
        return []
    return [element for part in split_top_level(stripped) for element in _parse_element(part, values or {})]


def build_pass_manager(elements: list[Element], context: ir.Context) -> PassManager:
    """A pass manager that runs the elements on a module; raises `PipelineError`."""
    with context:
        manager = PassManager("builtin.module")
        for element in elements:
            add_element(manager, element)
    return manager


def run_pass_by_pass(module: ir.Module, elements: list[Element]) -> Iterator[tuple[str, ir.Module]]:
    """Run a pipeline on a module, and stop after each pass: its name, and the module as it left it."""
    for element in elements:
        build_pass_manager([element], module.context).run(module.operation)
        yield element.name, module


def add_element(manager: PassManager, element: Element) -> None:
    """Append an element to a pass manager."""
    if element.run is not None:
        manager.add(as_external_pass(element.run), name=element.name, argument=element.name)
        return
    try:
        manager.add(element.text)
        # MLIR itself only prints that it cannot read this option, and goes on with its default.
        for nested in _INLINED.findall(element.text if element.name == "inline" else ""):
            PassManager.parse(f"any({nested})")
    except ValueError as error:
        raise PipelineError(_mlir_parser_message(element, str(error))) from None


def split_top_level(text: str) -> list[str]:
    """Split at the commas outside of brackets and quotes."""
    parts: list[str] = []
    depth, start, quote = 0, 0, ""
    for position, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
            if depth < 0:
                raise PipelineError(f"unbalanced '{character}' at column {position + 1} of pipeline '{text}'")
        elif character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    if depth or quote:
        raise PipelineError(f"unbalanced {'quote' if quote else 'bracket'} in pipeline '{text}'")
    return [part.strip() for part in [*parts, text[start:]]]


def parse_options(text: str, pass_name: str) -> list[tuple[str, str]]:
    """Options as MLIR spells them: `a=1 b="two words" flag`."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise PipelineError(f"cannot read the options of {pass_name}: {error}") from None
    return [(name, value) for name, _, value in (word.partition("=") for word in words)]


def _parse_element(text: str, values: Mapping[str, Any]) -> list[Element]:
    match = _NAME.match(text)
    if match is None:
        raise PipelineError(f"a pass name must stand here, got '{text}'")
    name, rest = match.group(), text[match.end() :].strip()
    pipelines = all_pipelines()
    if name in pipelines:
        pipeline = pipelines[name]
        return parse_pipeline(pipeline.text, pipeline.values(_options(rest, name, values)))
    registered = all_passes().get(name)
    if registered is not None:
        return [_our_element(registered, rest, values)]
    _refuse_nested_passes(name, rest)
    return [Element(text, name, None)]


def _our_element(registered: Pass, rest: str, values: Mapping[str, Any]) -> Element:
    options = _options(rest, registered.name, values)
    spelled = " ".join(f"{name}={_spelled(value)}" for name, value in options)
    text = f"{registered.name}{{{spelled}}}" if options else registered.name
    return Element(text, registered.name, registered.bind(options))


def _spelled(value: Any) -> str:
    text = str(value)
    return f'"{text}"' if " " in text or not text else text


def _options(rest: str, name: str, values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The options of an element, those that name a value filled in."""
    given = parse_options(_option_text(rest, name), name)
    return [(option, values.get(text[1:-1], text) if text.startswith("<") else text) for option, text in given]


def _option_text(rest: str, name: str) -> str:
    if not rest:
        return ""
    if not (rest.startswith("{") and rest.endswith("}")):
        raise PipelineError(f"options of {name} must stand in braces, as in {name}{{option=value}}, got '{rest}'")
    return rest[1:-1]


def _refuse_nested_passes(anchor: str, rest: str) -> None:
    """MLIR aborts the process when a Python pass runs below the module."""
    if not rest.startswith("("):
        return
    nested = sorted({name for name in _NAME.findall(rest) if name in all_passes() or name in all_pipelines()})
    if nested:
        remedy = f"{nested[0]} runs on a module: put it outside, as in {nested[0]},{anchor}(...)"
        raise PipelineError(f"{nested[0]} cannot be nested in {anchor}(...); {remedy}")


def as_external_pass(run: Callable[[ir.Operation], None]) -> Callable[[ir.Operation, Any], None]:
    """A function of a module as MLIR's pass manager calls it, on each graph of it; its errors are diagnostics."""

    def external_pass(operation: ir.Operation, handle: Any) -> None:
        with operation.context:
            try:
                for graph in graphs_in(operation):
                    run(graph)
            except PassFailedError:
                handle.signal_pass_failure()
            except IRError as error:
                operation.location.emit_error(str(error))
                handle.signal_pass_failure()

    return external_pass


def _mlir_parser_message(element: Element, error: str) -> str:
    near = difflib.get_close_matches(element.name, [*all_passes(), *all_pipelines()], n=1)
    hint = f"; did you mean {near[0]}?" if near else "; --list-passes lists ours, any pass of MLIR's works too"
    first = error.strip().splitlines()[0] if error.strip() else "cannot be parsed"
    reason = re.sub(r"^.*?error: ", "", first)
    unknown = "does not refer to a registered pass" in error
    return f"pipeline element '{element.text}': {reason}{hint if unknown else ''}"


def _is_balanced(text: str) -> bool:
    try:
        split_top_level(text)
    except PipelineError:
        return False
    return True
