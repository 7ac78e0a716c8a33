"""The entry point of `steelyard-opt`: reads and checks the input; a child process does the rest."""

import argparse
import sys

from steelyard.errors import FileError
from steelyard.tools.console import hold_closed_streams, say
from steelyard.tools.opt.arguments import EXIT_DIAGNOSTICS, EXIT_USAGE, parse_arguments
from steelyard.tools.opt.child import Outcome, run_in_child
from steelyard.tools.opt.reproducer import describe_reproducer
from steelyard.tools.opt.source import Source, SourceError, check_text, read_source


def main(argv: list[str] | None = None) -> int:
    """Run `steelyard-opt`; returns the exit code."""
    hold_closed_streams()
    try:
        arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
        source = read_source(arguments.input)
    except FileError as error:
        return _fail(f"steelyard-opt: error: {error}", EXIT_USAGE)
    except KeyboardInterrupt:
        return _fail("steelyard-opt: interrupted")
    try:
        check_text(source)
    except SourceError as error:
        return _fail(f"{source.name}:{error.line}:{error.column}: error: {error.message}")

    def work() -> int:
        from steelyard.tools.opt.driver import run

        return run(source, arguments)

    try:
        outcome = run_in_child(work, arguments.time_limit)
    except KeyboardInterrupt:
        return _fail("steelyard-opt: interrupted")
    if outcome.exit_code is not None:
        return outcome.exit_code
    return _report_death(outcome, source, arguments)


def _report_death(outcome: Outcome, source: Source, arguments: argparse.Namespace) -> int:
    message = f"{source.name}:1:1: error: compiling this input {outcome.describe_failure(arguments.time_limit)}"
    if not source.is_bytecode:
        text = source.data.decode()
        message += f"\n{source.name}: note: "
        message += describe_reproducer(text, arguments.pass_pipeline, arguments.reproducer)
    return _fail(message)


def _fail(message: str, exit_code: int = EXIT_DIAGNOSTICS) -> int:
    say(message)
    return exit_code
