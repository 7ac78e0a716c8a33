"""What the compiler costs an op: parse, verify, print and each pass, over module sizes."""

import io
import time
from collections.abc import Callable

from report import Table, median_seconds, progress
from torch_mlir import ir

from steelyard.dialect import make_context
from steelyard.dialect.printing import print_module
from steelyard.passes import build_pass_manager, parse_pipeline

SIZES = (1_000, 10_000, 50_000)
PASSES = ("scaled-insert-quantize{recipe=mxfp8}", "cse", "scaled-canonicalize")
# Microseconds an op that the bindings were measured at; a pass stands beside the cost of the rewrites it makes.
EXPECTED = {"parse": 8.0, "verify": 4.0, "print": 8.0, "bytecode write": 0.2, "bytecode read": 0.9}


def measure(quick: bool = False) -> Table:
    """A row a step, a column a size, in microseconds an op, and how the cost grows."""
    sizes = SIZES[:2] if quick else SIZES
    columns = ["step", *(f"{size} ops" for size in sizes), "largest / smallest", "expected"]
    table = Table("Compiler cost (us of CPU time an op)", columns)
    costs = {size: _costs(size, repeats=3) for size in sizes}
    for step in costs[sizes[0]]:
        figures = [costs[size][step] for size in sizes]
        table.rows.append([step, *figures, figures[-1] / figures[0], EXPECTED.get(step, "")])
    table.notes.append("A cost that does not grow with the module has largest / smallest at or below about 1.")
    return table


def _costs(size: int, repeats: int) -> dict[str, float]:
    context = make_context()
    text = module_text(size)
    module = ir.Module.parse(text, context)
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    steps: dict[str, Callable[[], object]] = {
        "parse": lambda: ir.Module.parse(text, context),
        "verify": lambda: module.operation.verify(),
        "print": lambda: module.operation.get_asm(assume_verified=True),
        "print with aliases": lambda: print_module(module.operation),
        "bytecode write": lambda: module.operation.write_bytecode(io.BytesIO()),
        "bytecode read": lambda: ir.Module.parse(buffer.getvalue(), context),
    }
    costs = {}
    for name, step in steps.items():
        progress(f"{size} ops: {name}")
        costs[name] = median_seconds(step, repeats, time.process_time) / size * 1e6
    costs |= _pass_costs(text, size, context, repeats)
    progress("")
    return costs


def _pass_costs(text: str, size: int, context: ir.Context, repeats: int) -> dict[str, float]:
    """Each pass on what the ones before it left."""
    costs = {}
    for index, name in enumerate(PASSES):
        progress(f"{size} ops: {name}")
        before = ",".join(PASSES[:index])
        modules = []
        for _ in range(repeats):
            module = ir.Module.parse(text, context)
            build_pass_manager(parse_pipeline(before), context).run(module.operation)
            modules.append(module)
        manager = build_pass_manager(parse_pipeline(name), context)
        queue = iter(modules)
        seconds = median_seconds(lambda m=manager, q=queue: m.run(next(q).operation), repeats, time.process_time)
        costs[name.partition("{")[0]] = seconds / size * 1e6
    return costs


def module_text(size: int) -> str:
    """A module of matmuls, each reading the one before it, and as many other ops: `size` ops in all."""
    tensor = "tensor<?x64xbf16>"
    lines = []
    value = "%x"
    for index in range(size // 2):
        attributes = (
            f'batch_dims = 0 : i64, kind = "fprop", layer = "layers.{index}", operandSegmentSizes = array<i32: 1, 1, 0>'
        )
        lines.append(
            f'  %m{index} = "scaled.matmul"({value}, %w) {{{attributes}}} : ({tensor}, tensor<64x64xbf16>) -> {tensor}'
        )
        lines.append(f"  %a{index} = arith.addf %m{index}, %x : {tensor}")
        value = f"%a{index}"
    body = "\n".join(lines)
    return (
        f"func.func @f(%x: {tensor}, %w: tensor<64x64xbf16>) -> {tensor} {{\n{body}\n  return {value} : {tensor}\n}}\n"
    )
