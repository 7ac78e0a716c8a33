"""`steelyard report`: measure a model from the shell, and write a page that shows what low precision does to it."""

import argparse
from typing import Any

from steelyard.errors import SteelyardError
from steelyard.tools.console import show
from steelyard.tools.named_models import (
    add_model_arguments,
    check_page,
    check_recipes,
    compile_model,
    load_function,
    lower,
    make_inputs,
    reported,
)

_EXAMPLES = """examples:
  steelyard report mypackage.models:make_gpt --recipe nvfp4 --input 2x128:int64
  steelyard report mypackage.models:make_gpt --recipe nvfp4 --data mypackage.models:batches --output gpt.html
  steelyard report mypackage.models:make_gpt --recipe nvfp4 --input 2x128:int64 --override 'head=none'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = (
        "Compile a model, measure what each of its GEMMs loses, time it beside float32, and write a page that shows "
        "it, with JSON of the same name beside it. Prints a summary."
    )
    parser.epilog = f"{_EXAMPLES}\n{parser.epilog}"
    add = parser.add_argument
    add_model_arguments(parser)
    add("--data", metavar="MODULE:FUNCTION", help="a function that returns batches, instead of random inputs of sizes")
    add("--batches", type=int, default=2, metavar="N", help="how many batches are drawn, or taken (default: 2)")
    add("--seed", type=int, default=0, help="of the model and of random inputs (default: 0)")
    add("--logits", action="store_true", help="the output is logits: compare distributions")
    add(
        "--attribute",
        nargs="?",
        type=int,
        const=True,
        default=False,
        metavar="LAYERS",
        help="find which layers cause the error: two forwards per layer and batch, of so many layers if there is a "
        "number; the others have estimates",
    )
    add("--output", default="report.html", metavar="FILE", help="the page (default: report.html)")


def run(arguments: argparse.Namespace) -> int:
    """Measure and write; raises `SteelyardError` for what the user can fix."""
    import torch

    from steelyard.tools.summary import print_summary

    check_recipes(arguments)
    check_page(arguments.output)
    if arguments.batches < 1:
        raise SteelyardError(f"--batches must be at least 1, got {arguments.batches}")
    make = load_function(arguments.factory)
    _check_source(arguments)
    torch.manual_seed(arguments.seed)
    model, net = compile_model(arguments, make)
    batches = _batches(net, model, arguments)
    logits = True if arguments.logits else None
    report = net.report(arguments.output, batches, logits=logits, attribute=arguments.attribute)
    print_summary(report)
    show(f"\n{arguments.output}")
    return 0


def _check_source(arguments: argparse.Namespace) -> None:
    """Refuse batches that cannot be made, before the model is, which may take long."""
    if bool(arguments.data) == bool(arguments.input):
        raise SteelyardError("give either --input for each argument of the model, as in --input 2x16:int64, or --data")
    if arguments.input:
        make_inputs(arguments.input)


def _batches(net: Any, model: Any, arguments: argparse.Namespace) -> list[Any]:
    from steelyard.driver.measuring import make_batch

    if arguments.data:
        load = load_function(arguments.data)
        with reported(f"{arguments.data} failed"):
            batches = [batch for batch, _ in zip(load(), range(arguments.batches), strict=False)]
        if not batches:
            raise SteelyardError(f"{arguments.data} must return at least one batch, and returned none")
        return batches
    drawn = [make_inputs(arguments.input, _vocabulary(model)) for _ in range(arguments.batches)]
    lower(net, model, drawn[0], arguments.input, training=False)
    return [make_batch(model, tuple(positional), keywords) for positional, keywords in drawn]


def _vocabulary(model: Any) -> int:
    """How many tokens every embedding of a model has, so that any of them may be drawn; 1 where it has none."""
    import torch

    sizes = [module.num_embeddings for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    return min(sizes, default=1)
