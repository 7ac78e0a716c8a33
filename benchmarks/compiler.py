"""What the compiler costs per op: parse, verify, print and each pass, over module sizes."""

import io
import statistics
import time
from collections.abc import Callable

from report import Table, progress
from timing import median_seconds
from torch_mlir import ir

from steelyard.dialect import make_context, parse_module, print_module
from steelyard.ir.torch_ops import walk_ops
from steelyard.passes import build_pass_manager, parse_pipeline

SIZES = (1_000, 10_000, 50_000)
PASSES = (
    "scaled-raise-gemms",
    "scaled-apply-recipe{recipe=mxfp8}",
    "scaled-insert-quantize",
    "scaled-merge-quantize",
    "cse",
    "scaled-canonicalize",
    "scaled-fuse-producer",
    "scaled-fuse-epilogue",
    "scaled-hoist-weights",
)
# Microseconds per op that the bindings were measured at, with a verifier in Python; reading verifies too. A pass is
# followed by a verification, and one that rewrites ops needs about 25 for each op it makes.
# Reading the short form includes parsing and verifying what it is translated to.
EXPECTED = {
    "parse": 8.0 + 4.0,
    "verify": 4.0,
    "print": 8.0,
    "read the short form": 60.0,
    "bytecode write": 0.2,
    "bytecode read": 0.9 + 4.0,
}


def measure(quick: bool = False) -> Table:
    """One row per step and one column per size, in microseconds per op, and how the cost grows."""
    sizes = SIZES[:2] if quick else SIZES
    columns = ["step", *(f"{size} ops" for size in sizes), "growth", "expected"]
    table = Table("Compiler cost (us of CPU time per op)", columns)
    costs = {size: _costs(size, repeats=3) for size in sizes}
    for step in costs[sizes[0]]:
        figures = [costs[size][step] for size in sizes]
        table.rows.append([step, *figures, figures[-1] / figures[0], EXPECTED.get(step, "")])
    table.notes.append(
        "Parse to bytecode: on the quantized module. Passes: per op of the module before the first of them."
    )
    table.notes.append("growth: cost per op in the largest module / in the smallest; about 1 where the cost is linear.")
    return table


def _costs(size: int, repeats: int) -> dict[str, float]:
    context = make_context()
    source = module_text(size)
    module = ir.Module.parse(source, context)
    build_pass_manager(parse_pipeline(",".join(PASSES[:3])), context).run(module.operation)
    text, short = module.operation.get_asm(), print_module(module.operation)
    ops = len(list(walk_ops(module.operation)))
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    steps: dict[str, Callable[[], object]] = {
        "parse": lambda: ir.Module.parse(text, context),
        "verify": lambda: module.operation.verify(),
        "print": lambda: module.operation.get_asm(assume_verified=True),
        "read the short form": lambda: parse_module(short, context),
        "print the short form": lambda: print_module(module.operation),
        "bytecode write": lambda: module.operation.write_bytecode(io.BytesIO()),
        "bytecode read": lambda: ir.Module.parse(buffer.getvalue(), context),
    }
    costs = {}
    for name, step in steps.items():
        progress(f"{size} ops: {name}")
        costs[name] = median_seconds(step, repeats, time.process_time) / ops * 1e6
    costs |= _pass_costs(source, size, context, repeats)
    progress("")
    return costs


def _pass_costs(text: str, size: int, context: ir.Context, repeats: int) -> dict[str, float]:
    """The cost of each pass, run on what the passes before it left."""
    seconds: dict[str, list[float]] = {name: [] for name in PASSES}
    for _ in range(repeats):
        module = ir.Module.parse(text, context)
        for name in PASSES:
            progress(f"{size} ops: {name}")
            manager = build_pass_manager(parse_pipeline(name), context)
            start = time.process_time()
            manager.run(module.operation)
            seconds[name].append(time.process_time() - start)
    return {name.partition("{")[0]: statistics.median(times) / size * 1e6 for name, times in seconds.items()}


def module_text(size: int) -> str:
    """A module of linear layers, each reading the one before it, and as many other ops: `size` ops in total."""
    tensor, weight = "!torch.vtensor<[?,64],bf16>", "!torch.vtensor<[64,64],bf16>"
    lines = ["  %none = torch.constant.none", "  %one = torch.constant.int 1"]
    value = "%x"
    for index in range(size // 2):
        location = f'loc("layers.{index}"("model.py":{index + 1}:0))'
        types = f"{tensor}, {weight}, !torch.none -> {tensor}"
        lines.append(f"  %m{index} = torch.aten.linear {value}, %w, %none : {types} {location}")
        lines.append(
            f"  %a{index} = torch.aten.add.Tensor %m{index}, %x, %one : {tensor}, {tensor}, !torch.int -> {tensor}"
        )
        value = f"%a{index}"
    body = "\n".join(lines)
    arguments = f'%x: {tensor}, %w: {weight} {{scaled.parameter = "weight"}}'
    return f"func.func @f({arguments}) -> {tensor} {{\n{body}\n  return {value} : {tensor}\n}}\n"
