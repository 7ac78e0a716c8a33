"""The command `steelyard`."""

import argparse
import sys
from importlib.metadata import version
from pathlib import Path

from steelyard.errors import FileError, SteelyardError
from steelyard.files import failure
from steelyard.tools import (
    cache,
    checkpoint,
    compare,
    convert,
    demo,
    generate,
    inspect,
    report,
    targets,
    tune,
    verify_gpu,
)
from steelyard.tools.console import Parser, hold_closed_streams, say

EXIT_ERROR, EXIT_INTERRUPTED = 2, 130
_EXIT_CODES = """exit codes:
  0    done
  1    verify-gpu: a check failed; checkpoint: something is wrong with it
  2    an option, a path, the model or the environment is wrong; one line says what to do
  3    verify-gpu: this machine has no GPU
  130  interrupted
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    hold_closed_streams()
    command = "steelyard"
    try:
        arguments = _make_parser().parse_args(argv)
        command = arguments.command
        _check_current_folder()
        return arguments.run(arguments)
    except SteelyardError as error:
        say(f"{command}: error: {' '.join(str(error).split())}")
        return EXIT_ERROR
    except OSError as error:
        # What torch, or a library below it, could not read or write.
        what = f"cannot use '{error.filename}'" if error.filename else "a file cannot be used"
        say(f"{command}: error: {failure(what, error)}")
        return EXIT_ERROR
    except KeyboardInterrupt:
        say(f"{command}: interrupted")
        return EXIT_INTERRUPTED


def _make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="steelyard",
        description="Low precision for PyTorch models, visibly.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"steelyard {version('steelyard')}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(name: str, help: str, run) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name, help=help, epilog=_EXIT_CODES, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        made.set_defaults(run=run, command=f"steelyard {name}")
        return made

    demo.add_arguments(add("demo", "run a trained model, or a small GPT, by several recipes", demo.run))
    inspect.add_arguments(add("inspect", "compile a model and show its GEMMs or its IR", inspect.run))
    report.add_arguments(add("report", "measure a model and write a page that shows what each layer loses", report.run))
    compare.add_arguments(add("compare", "show the figures of reports beside each other", compare.run))
    convert.add_arguments(add("convert", "quantize a checkpoint and write it for other programs", convert.run))
    tune.add_arguments(add("tune", "quantize a checkpoint so that it loses little", tune.run))
    targets.add_arguments(add("targets", "how each recipe's GEMMs run on each CUDA target", targets.run))
    verify_gpu.add_arguments(
        add("verify-gpu", "check and measure the CUDA kernels on this machine's GPU", verify_gpu.run)
    )
    checkpoint.add_arguments(add("checkpoint", "what is in a checkpoint, and what is wrong with it", checkpoint.run))
    generate.add_arguments(add("generate", "load a checkpoint and let it write text", generate.run))
    cache.add_arguments(add("cache", "show or empty the disk cache of lowered programs", cache.run))
    return parser


def _check_current_folder() -> None:
    """Refuse a folder that was deleted: Intel's library, loaded with torch, would end the process."""
    try:
        Path.cwd()
    except OSError as error:
        raise FileError(f"the current folder must exist, and is gone ({error.strerror}); change to another") from error


if __name__ == "__main__":
    sys.exit(main())
