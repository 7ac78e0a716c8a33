"""The work of `steelyard-opt`, in the child process: parse, run the passes, print."""

import argparse
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from steelyard.dialect import make_context, print_module
from steelyard.dialect.assembly.positions import Positions
from steelyard.dialect.assembly.reader import relocate, translate
from steelyard.errors import AssemblyError, ConstraintError, FileError, PipelineError
from steelyard.files import write_file
from steelyard.ir.contract import check_foldable, check_input
from steelyard.ir.torch_ops import walk_ops
from steelyard.passes.pipeline.registry import fail
from steelyard.passes.pipeline.text import Element, add_element, as_external_pass, build_pass_manager, parse_pipeline
from steelyard.tools.console import say, show
from steelyard.tools.opt.arguments import EXIT_DIAGNOSTICS, EXIT_OK, EXIT_USAGE
from steelyard.tools.opt.diagnostics import Diagnostic, format_diagnostic, from_mlir
from steelyard.tools.opt.dumps import Dumps, check_tree_folder, pass_names, text_of
from steelyard.tools.opt.expectations import compare, find_expectations
from steelyard.tools.opt.reproducer import describe_reproducer
from steelyard.tools.opt.source import Source

SEPARATOR = b"// -----\n"


@dataclass
class ChunkResult:
    """What became of one part of the input."""

    output: bytes = b""
    diagnostics: list[Diagnostic] = field(default_factory=list)
    failed_pass: bool = False

    @property
    def has_errors(self) -> bool:
        return any(diagnostic.severity == "error" for diagnostic in self.diagnostics)


def run(source: Source, arguments: argparse.Namespace) -> int:
    """Process an input; returns the exit code."""
    try:
        return _run(source, arguments)
    except (PipelineError, FileError) as error:
        say(f"steelyard-opt: error: {error}")
        return EXIT_USAGE


def _run(source: Source, arguments: argparse.Namespace) -> int:
    elements = parse_pipeline(arguments.pass_pipeline)
    _check_printing_flags(arguments, elements)
    context = make_context()
    context.allow_unregistered_dialects = arguments.allow_unregistered_dialect
    build_pass_manager(elements, context)
    check_tree_folder(arguments.mlir_print_ir_tree_dir)
    if arguments.dump_pass_pipeline:
        text = ",".join(element.text for element in elements)
        say(f"Pass Manager with {len(elements)} passes:\nbuiltin.module({text})")
    exit_code, outputs = EXIT_OK, []
    for chunk in source.chunks(arguments.split_input_file):
        result = _process(chunk, source.name, elements, context, arguments)
        exit_code = max(exit_code, _report(result, chunk, source.name, arguments))
        outputs.append(result.output)
    if arguments.verify_diagnostics or (exit_code and not any(outputs)):
        return exit_code
    output = SEPARATOR.join(outputs)
    if arguments.output == "-":
        show(output)
    else:
        write_file(Path(arguments.output), output)
    return exit_code


def _process(
    chunk: str | bytes, name: str, elements: list[Element], context: ir.Context, arguments: argparse.Namespace
) -> ChunkResult:
    result = ChunkResult()
    # While parsing, MLIR reports places in the translated text.
    positions: Positions | None = None

    def collect(diagnostic: ir.Diagnostic) -> bool:
        result.diagnostics.append(from_mlir(diagnostic, name, positions))
        return True

    handler = context.attach_diagnostic_handler(collect)
    try:
        if isinstance(chunk, bytes):
            module = ir.Module.parse(chunk, context)
        else:
            translation = translate(chunk)
            positions = translation.positions
            module = ir.Module.parse(translation.text, context)
            relocate(module, translation)
            positions = None
        result.failed_pass = True
        _make_manager(elements, context, arguments).run(module.operation)
        result.failed_pass = False
        result.output = _print(module, name, arguments)
    except AssemblyError as error:
        result.diagnostics.append(Diagnostic("error", error.message, name, error.line, error.column))
    except ir.MLIRError as error:
        result.diagnostics += _errors(error, name, positions)
    except FileError:
        # A dump could not be written.
        raise
    except Exception as error:  # a bug of ours must still name the input and leave a reproducer
        message = f"internal error: {type(error).__name__}: {error}; please report it with the reproducer"
        result.diagnostics.append(Diagnostic("error", message))
        result.failed_pass = True
    finally:
        handler.detach()
    return result


def _errors(error: ir.MLIRError, name: str, positions: Positions | None) -> list[Diagnostic]:
    found = [from_mlir(diagnostic, name, positions) for diagnostic in error.error_diagnostics]
    return found or [Diagnostic("error", error.message)]


def _make_manager(elements: list[Element], context: ir.Context, arguments: argparse.Namespace) -> PassManager:
    with context:
        manager = PassManager("builtin.module")
        dumps = Dumps(arguments)
        if elements:
            manager.add(as_external_pass(partial(_check_ops, check_foldable)), name="check-foldable")
        for index, element in enumerate(elements):
            for print_ir in dumps.before(element):
                manager.add(print_ir, name="print-ir")
            if element.run is not None and element.name != "scaled-verify-stage":
                # Frontends make what passes take for granted; a text may hold anything.
                manager.add(as_external_pass(partial(_check_ops, check_input)), name="check-input")
            add_element(manager, element)
            for print_ir in dumps.after(element, index):
                manager.add(print_ir, name="print-ir")
    if arguments.mlir_timing:
        manager.enable_timing()
    return manager


def _check_ops(check: Callable[[ir.Operation], None], module: ir.Operation) -> None:
    for op in walk_ops(module):
        try:
            check(op)
        except ConstraintError as error:
            fail(op, str(error))


def _check_printing_flags(arguments: argparse.Namespace, elements: list[Element]) -> None:
    present = {element.name for element in elements}
    for flag in ("mlir_print_ir_before", "mlir_print_ir_after"):
        absent = sorted(pass_names(getattr(arguments, flag)) - present)
        if absent:
            raise PipelineError(f"--{flag.replace('_', '-')} names {absent[0]}, which is not in the pipeline")


def _print(module: ir.Module, name: str, arguments: argparse.Namespace) -> bytes:
    operation = module.operation
    if arguments.emit_bytecode:
        buffer = io.BytesIO()
        operation.write_bytecode(buffer)
        return buffer.getvalue()
    text = text_of(operation, arguments)
    if arguments.mlir_print_debuginfo:
        # The parser calls every text from memory "-".
        text = re.sub(r'(?<!\\)"-":(?=\d)', lambda _: f"{json.dumps(name)}:", text)
    return (text.rstrip("\n") + "\n").encode()


def _report(result: ChunkResult, chunk: str | bytes, name: str, arguments: argparse.Namespace) -> int:
    lines = chunk.splitlines() if isinstance(chunk, str) else []
    diagnostics = result.diagnostics
    if arguments.verify_diagnostics:
        diagnostics = compare(find_expectations(chunk) if isinstance(chunk, str) else [], diagnostics)
    for diagnostic in diagnostics:
        say(format_diagnostic(diagnostic, name, lines))
    if result.failed_pass and not arguments.verify_diagnostics:
        text = chunk if isinstance(chunk, str) else _text_of_bytecode(chunk)
        say(f"{name}: note: {describe_reproducer(text, arguments.pass_pipeline, arguments.reproducer)}")
    failed = bool(diagnostics) if arguments.verify_diagnostics else result.has_errors
    return EXIT_DIAGNOSTICS if failed else EXIT_OK


def _text_of_bytecode(data: bytes) -> str:
    module = ir.Module.parse(data, make_context())
    return print_module(module.operation)
