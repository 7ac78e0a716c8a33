"""The command `steelyard`."""

import argparse
import sys
from importlib.metadata import version

from steelyard.tools import inspect, targets, verify_gpu
from steelyard.tools.console import Parser, drop_standard_output

EXIT_USAGE, EXIT_INTERRUPTED = 2, 130


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    try:
        arguments = _make_parser().parse_args(argv)
        code = arguments.run(arguments)
        sys.stdout.flush()
    except OSError as error:
        drop_standard_output()
        where = f"'{error.filename}'" if error.filename else "standard output"
        print(f"steelyard: error: cannot write {where}: {error.strerror}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("steelyard: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    return code


def _make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="steelyard", description="Low precision for PyTorch models, visibly.")
    parser.add_argument("--version", action="version", version=f"steelyard {version('steelyard')}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    demo = commands.add_parser("demo", help="compile a small GPT by two recipes and show what became of it")
    demo.set_defaults(run=_demo)
    inspecting = commands.add_parser("inspect", help="compile a model and show its GEMMs or its IR")
    inspect.add_arguments(inspecting)
    inspecting.set_defaults(run=inspect.run)
    listing = commands.add_parser("targets", help="how each recipe's GEMMs run on each CUDA target")
    targets.add_arguments(listing)
    listing.set_defaults(run=targets.run)
    verifying = commands.add_parser("verify-gpu", help="check and measure the CUDA kernels on this machine's GPU")
    verify_gpu.add_arguments(verifying)
    verifying.set_defaults(run=verify_gpu.run)
    return parser


def _demo(_: argparse.Namespace) -> int:
    # Imported late: it loads torch, which would make --help take seconds.
    print("loading torch and the compiler ...", flush=True)
    from steelyard.tools.demo import run

    return run()


if __name__ == "__main__":
    sys.exit(main())
