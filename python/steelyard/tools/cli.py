"""The command `steelyard`."""

import argparse
import sys


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    arguments = _make_parser().parse_args(argv)
    return arguments.run(arguments)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="steelyard", description="Low precision for PyTorch models, visibly.")
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    demo = commands.add_parser("demo", help="show what a recipe does to a transformer block's linear layers")
    demo.add_argument("--recipe", default="mxfp8", choices=("fp8-current", "fp8-block", "mxfp8", "nvfp4"))
    demo.set_defaults(run=_demo)
    return parser


def _demo(arguments: argparse.Namespace) -> int:
    from steelyard.tools.demo import run

    return run(arguments.recipe)


def _version() -> str:
    from importlib.metadata import version

    return f"steelyard {version('steelyard')}"


if __name__ == "__main__":
    sys.exit(main())
