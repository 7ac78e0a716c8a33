"""The IR between passes: `--mlir-print-ir-after-all` and similar flags.

MLIR's own dumps print ops in the generic form. These are passes that print, between those of the pipeline.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch_mlir import ir

from steelyard.dialect import print_module
from steelyard.files import write_folder
from steelyard.passes.pipeline.text import Element
from steelyard.tools.console import say

PrintPass = Callable[[ir.Operation, Any], None]
_TREE = "builtin_module_no-symbol-name"
"""The folder that MLIR's tree of dumps uses for a module without a name."""


def text_of(operation: ir.Operation, arguments: argparse.Namespace) -> str:
    """A module as the flags ask for it."""
    return print_module(
        operation,
        debug_info=arguments.mlir_print_debuginfo,
        local_scope=arguments.mlir_print_local_scope,
        generic=arguments.mlir_print_op_generic,
    )


def check_tree_folder(path: str | None) -> None:
    """Refuse a folder that dumps cannot be written into before any pass runs; raises `FileError`."""
    if path is not None:
        write_folder(Path(path, _TREE), {})


def pass_names(text: str) -> set[str]:
    """The passes that a flag lists."""
    return {name.strip() for name in text.split(",") if name.strip()}


class Dumps:
    """What to print around the passes of a pipeline."""

    def __init__(self, arguments: argparse.Namespace):
        self._arguments = arguments
        self._before = pass_names(arguments.mlir_print_ir_before)
        self._after = pass_names(arguments.mlir_print_ir_after)
        self._latest = ""

    def before(self, element: Element) -> Iterator[PrintPass]:
        """What runs before a pass."""
        if self._arguments.mlir_print_ir_before_all or element.name in self._before:
            yield self._printer("Before", element)
        if self._arguments.mlir_print_ir_after_change:
            yield self._remember

    def after(self, element: Element, index: int) -> Iterator[PrintPass]:
        """What runs after a pass."""
        if self._arguments.mlir_print_ir_after_all or element.name in self._after:
            yield self._printer("After", element)
        elif self._arguments.mlir_print_ir_after_change:
            yield self._printer("After", element, only_changes=True)
        if self._arguments.mlir_print_ir_tree_dir is not None:
            yield self._writer(Path(self._arguments.mlir_print_ir_tree_dir, _TREE), f"{index}_{element.name}.mlir")

    def _remember(self, operation: ir.Operation, _: Any) -> None:
        self._latest = text_of(operation, self._arguments)

    def _printer(self, when: str, element: Element, only_changes: bool = False) -> PrintPass:
        def print_ir(operation: ir.Operation, _: Any) -> None:
            text = text_of(operation, self._arguments)
            if not (only_changes and text == self._latest):
                header = f"// -----// IR Dump {when} {element.name} ({element.text}) //----- //"
                say(f"{header}\n{text}\n")

        return print_ir

    def _writer(self, folder: Path, name: str) -> PrintPass:
        def write_ir(operation: ir.Operation, _: Any) -> None:
            write_folder(folder, {name: text_of(operation, self._arguments)})

        return write_ir
