"""The work of `steelyard-opt`, in the child process: parse, run the passes, print."""

import argparse
import io
import json
import os
import re
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from steelyard.dialect import make_context
from steelyard.dialect.printing import print_module
from steelyard.errors import PipelineError
from steelyard.passes.pipeline.text import Element, add_element, build_pass_manager, parse_pipeline
from steelyard.tools.opt.arguments import EXIT_DIAGNOSTICS, EXIT_OK, EXIT_USAGE, drop_standard_output
from steelyard.tools.opt.diagnostics import Diagnostic, format_diagnostic, from_mlir
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
        elements = parse_pipeline(arguments.pass_pipeline)
        _check_printing_flags(arguments, elements)
        context = make_context()
        build_pass_manager(elements, context)
        _make_tree_folder(arguments.mlir_print_ir_tree_dir)
    except OSError as error:
        return _say(f"steelyard-opt: error: cannot make '{error.filename}': {error.strerror}", EXIT_DIAGNOSTICS)
    except PipelineError as error:
        return _say(f"steelyard-opt: error: {error}", EXIT_USAGE)
    if arguments.dump_pass_pipeline:
        text = ",".join(element.text for element in elements)
        _say(f"Pass Manager with {len(elements)} passes:\nbuiltin.module({text})", EXIT_OK)
    exit_code, outputs = EXIT_OK, []
    for chunk in source.chunks(arguments.split_input_file):
        result = _process(chunk, source.name, elements, context, arguments)
        exit_code = max(exit_code, _report(result, chunk, source.name, arguments))
        outputs.append(result.output)
    if arguments.verify_diagnostics or (exit_code and not any(outputs)):
        return exit_code
    return max(exit_code, _write(SEPARATOR.join(outputs), arguments.output))


def _make_tree_folder(path: str | None) -> None:
    # MLIR writes nothing, and says nothing, where it cannot.
    if path is not None:
        Path(path).mkdir(parents=True, exist_ok=True)


def _process(
    chunk: str | bytes, name: str, elements: list[Element], context: ir.Context, arguments: argparse.Namespace
) -> ChunkResult:
    result = ChunkResult()

    def collect(diagnostic: ir.Diagnostic) -> bool:
        result.diagnostics.append(from_mlir(diagnostic, name))
        return True

    handler = context.attach_diagnostic_handler(collect)
    try:
        module = ir.Module.parse(chunk, context)
        result.failed_pass = True
        _make_manager(elements, context, arguments).run(module.operation)
        result.failed_pass = False
        result.output = _print(module, name, arguments)
    except ir.MLIRError as error:
        result.diagnostics += _errors(error, name)
    except Exception as error:  # a bug of ours must still name the input and leave a reproducer
        message = f"internal error: {type(error).__name__}: {error}; please report it with the reproducer"
        result.diagnostics.append(Diagnostic("error", message))
        result.failed_pass = True
    finally:
        handler.detach()
    return result


def _errors(error: ir.MLIRError, name: str) -> list[Diagnostic]:
    found = [from_mlir(diagnostic, name) for diagnostic in error.error_diagnostics]
    return found or [Diagnostic("error", error.message)]


def _make_manager(elements: list[Element], context: ir.Context, arguments: argparse.Namespace) -> PassManager:
    before, after = (_names(text) for text in (arguments.mlir_print_ir_before, arguments.mlir_print_ir_after))
    with context:
        manager = PassManager("builtin.module")
        for element in elements:
            if element.name in before:
                manager.add(_printer("Before", element), name="print-ir")
            add_element(manager, element)
            if element.name in after:
                manager.add(_printer("After", element), name="print-ir")
    _enable_printing(manager, arguments)
    if arguments.mlir_timing:
        manager.enable_timing()
    return manager


def _enable_printing(manager: PassManager, arguments: argparse.Namespace) -> None:
    after = arguments.mlir_print_ir_after_all or arguments.mlir_print_ir_after_change
    if after or arguments.mlir_print_ir_before_all or arguments.mlir_print_ir_tree_dir:
        manager.enable_ir_printing(
            print_before_all=arguments.mlir_print_ir_before_all,
            # MLIR writes a tree only from the dumps after a pass.
            print_after_all=bool(after or arguments.mlir_print_ir_tree_dir),
            print_after_change=arguments.mlir_print_ir_after_change,
            enable_debug_info=arguments.mlir_print_debuginfo,
            tree_printing_dir_path=arguments.mlir_print_ir_tree_dir,
        )


def _printer(when: str, element: Element):
    def print_ir(operation: ir.Operation, handle) -> None:
        header = f"// -----// IR Dump {when} {element.name} ({element.text}) //----- //"
        print(f"{header}\n{print_module(operation)}\n", file=sys.stderr)

    return print_ir


def _check_printing_flags(arguments: argparse.Namespace, elements: list[Element]) -> None:
    present = {element.name for element in elements}
    for flag in ("mlir_print_ir_before", "mlir_print_ir_after"):
        absent = sorted(_names(getattr(arguments, flag)) - present)
        if absent:
            raise PipelineError(f"--{flag.replace('_', '-')} names {absent[0]}, which is not in the pipeline")


def _names(text: str) -> set[str]:
    return {name.strip() for name in text.split(",") if name.strip()}


def _print(module: ir.Module, name: str, arguments: argparse.Namespace) -> bytes:
    operation = module.operation
    if arguments.emit_bytecode:
        buffer = io.BytesIO()
        operation.write_bytecode(buffer)
        return buffer.getvalue()
    debug_info = arguments.mlir_print_debuginfo
    if arguments.mlir_print_local_scope:
        text = operation.get_asm(enable_debug_info=debug_info, use_local_scope=True)
    else:
        text = print_module(operation, debug_info=debug_info)
    if debug_info:
        # The parser calls every text that it gets from memory "-".
        text = re.sub(r'(?<!\\)"-":(?=\d)', lambda _: f"{json.dumps(name)}:", text)
    return (text.rstrip("\n") + "\n").encode()


def _report(result: ChunkResult, chunk: str | bytes, name: str, arguments: argparse.Namespace) -> int:
    lines = chunk.splitlines() if isinstance(chunk, str) else []
    diagnostics = result.diagnostics
    if arguments.verify_diagnostics:
        diagnostics = compare(find_expectations(chunk) if isinstance(chunk, str) else [], diagnostics)
    for diagnostic in diagnostics:
        _say(format_diagnostic(diagnostic, name, lines), EXIT_OK)
    if result.failed_pass and not arguments.verify_diagnostics:
        text = chunk if isinstance(chunk, str) else _text_of_bytecode(chunk)
        _say(f"{name}: note: {describe_reproducer(text, arguments.pass_pipeline, arguments.reproducer)}", EXIT_OK)
    failed = bool(diagnostics) if arguments.verify_diagnostics else result.has_errors
    return EXIT_DIAGNOSTICS if failed else EXIT_OK


def _text_of_bytecode(data: bytes) -> str:
    return str(ir.Module.parse(data, make_context()))


def _write(data: bytes, path: str) -> int:
    try:
        if path == "-":
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        else:
            _replace(Path(path), data)
    except OSError as error:
        drop_standard_output()
        target = "standard output" if path == "-" else f"'{path}'"
        return _say(f"steelyard-opt: error: cannot write {target}: {error.strerror}", EXIT_DIAGNOSTICS)
    return EXIT_OK


def _replace(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(data)
            file.flush()
            Path(file.name).chmod(0o666 & ~_umask())
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _say(text: str, exit_code: int) -> int:
    with suppress(BrokenPipeError):
        print(text, file=sys.stderr, flush=True)
    return exit_code
