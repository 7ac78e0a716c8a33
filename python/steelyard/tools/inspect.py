"""`steelyard inspect`: compile a model from the shell and show its explanation or its IR."""

import argparse
from pathlib import Path
from typing import Any

from steelyard.errors import SteelyardError
from steelyard.files import write_folder
from steelyard.tools.console import show
from steelyard.tools.named_models import (
    add_model_arguments,
    check_page,
    check_recipes,
    compile_model,
    load_function,
    lower,
    make_inputs,
)

_EXAMPLES = """examples:
  steelyard inspect mypackage.models:make_gpt --input 2x16:int64
  steelyard inspect mypackage.models:make_bert --recipe nvfp4 --input 2x16:int64 --input attention_mask=2x16:int64
  steelyard inspect mypackage.models:make_mlp --input 8x512:bfloat16 --override '0=none' --stage quantized
  steelyard inspect mypackage.models:make_gpt --input 2x16:int64 --dump-ir out --json
  steelyard inspect mypackage.models:make_gpt --input 2x16:int64 --html gpt.html
  steelyard inspect mypackage.models:make_gpt --input 2x16:int64 --target cuda:sm_100a --stage ptx
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = "Compile a model for inputs of these sizes, and show what became of its GEMMs, or the IR."
    parser.epilog = f"{_EXAMPLES}\n{parser.epilog}"
    add = parser.add_argument
    add_model_arguments(parser)
    add("--target", default="cpu", help="cpu, or a CUDA architecture, as in cuda:sm_90a (default: cpu)")
    add("--training", action="store_true", help="compile the backward too")
    add(
        "--stage",
        metavar="STAGE",
        help="print the IR of a stage: traced, raised, quantized, ..., lowered; of CUDA also gpu, nvvm, ptx",
    )
    add("--explain", action="store_true", help="print one row per GEMM (the default)")
    add("--layer", metavar="PATTERN", help="print only the ops of these layers of the stage, for example blocks.0.*")
    add("--json", action="store_true", help="print the rows as JSON")
    add("--dump-ir", metavar="DIR", help="write the IR into numbered files of this folder")
    add("--html", metavar="FILE", help="write a page with the GEMMs, the IR of every stage and the memory of a call")


def run(arguments: argparse.Namespace) -> int:
    """Compile and show; raises `SteelyardError` for what the user can fix."""
    net = _compile(arguments)
    _show(net, arguments)
    return 0


def _compile(arguments: argparse.Namespace) -> Any:
    _check_options(arguments)
    make = load_function(arguments.factory)
    inputs = make_inputs(arguments.input)
    model, net = compile_model(arguments, make, arguments.target)
    lower(net, model, inputs, arguments.input, training=arguments.training)
    return net


def _check_options(arguments: argparse.Namespace) -> None:
    """Refuse wrong options before the model is made, which may take long."""
    from steelyard.driver.compilation import all_stages
    from steelyard.targets import check_target

    check_target(arguments.target)
    check_recipes(arguments)
    stages = all_stages(arguments.target)
    if arguments.stage and arguments.stage not in stages:
        raise SteelyardError(f"stage must be one of {', '.join(stages)}, got {arguments.stage!r}")
    if arguments.layer is not None and not arguments.stage:
        raise SteelyardError("--layer needs a stage to show, as in --stage quantized")
    if arguments.dump_ir is not None:
        if not arguments.dump_ir:
            raise SteelyardError("--dump-ir needs the name of a folder, as in --dump-ir out")
        write_folder(Path(arguments.dump_ir), {})
    if arguments.html is not None:
        check_page(arguments.html)


def _show(net: Any, arguments: argparse.Namespace) -> None:
    if arguments.dump_ir:
        for path in net.ir_dump(arguments.dump_ir):
            show(str(path))
    if arguments.html:
        net.report(arguments.html)
        show(arguments.html)
    if arguments.stage:
        show(net.ir(arguments.stage, arguments.layer))
    if arguments.json:
        show(net.explain().to_json())
    if arguments.explain or not (arguments.dump_ir or arguments.stage or arguments.json or arguments.html):
        show(str(net.explain()))
