"""The command line of `steelyard-opt`: mlir-opt's flags."""

import argparse
import sys
import textwrap

from steelyard.tools.console import Parser, show

EXIT_OK, EXIT_DIAGNOSTICS, EXIT_USAGE = 0, 1, 2


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parse the command line; wrong usage exits with 2."""
    return _make_parser().parse_args([_with_two_dashes(argument) for argument in argv])


class _HelpAction(argparse.Action):
    """Help that ends with the passes, which are loaded only for this."""

    def __call__(self, parser, namespace, values, option_string=None):
        show(f"{parser.format_help()}\n{describe_passes()}")
        parser.exit(EXIT_OK)


class _ListAction(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        show(list_passes())
        parser.exit(EXIT_OK)


def _make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="steelyard-opt",
        description="Run passes over MLIR text or bytecode and print the result.",
        epilog="Exit status: 0 fine, 1 diagnostics, 2 wrong usage or a file that cannot be read or written.",
        add_help=False,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-h", "--help", action=_HelpAction, nargs=0, help="show this help and the passes")
    add("input", nargs="?", default="-", help="file to read; standard input by default")
    add("-o", dest="output", default="-", metavar="FILE", help="file to write; standard output by default")
    add("-p", "--pass-pipeline", default="", metavar="TEXT", help="passes to run: 'scaled-canonicalize,func.func(cse)'")
    add("--list-passes", action=_ListAction, nargs=0, help="list the passes and pipelines, one per line")
    add("--dump-pass-pipeline", action="store_true", help="print the pipeline that will run to standard error")
    add("--split-input-file", action="store_true", help="process the parts between '// -----' lines one by one")
    add("--verify-diagnostics", action="store_true", help="check that the 'expected-error @+1 {{...}}' comments hold")
    add("--emit-bytecode", action="store_true", help="write bytecode instead of text")
    add("--mlir-print-debuginfo", action="store_true", help="print locations")
    add("--mlir-print-op-generic", action="store_true", help="print MLIR's generic form of every op, type and scheme")
    add("--mlir-print-local-scope", action="store_true", help="print locations in place instead of using aliases")
    add("--mlir-timing", action="store_true", help="print the time each pass took")
    _add_printing_flags(add)
    add("--mlir-pass-pipeline-crash-reproducer", dest="reproducer", metavar="FILE", help="where to write a reproducer")
    add("--allow-unregistered-dialect", action="store_true", help="take ops of dialects that are not known")
    add("--time-limit", type=_seconds, default=600.0, metavar="SECONDS", help="stop after this time (default: 600)")
    add("--version", action="version", version=_version())
    return parser


def _add_printing_flags(add) -> None:
    add("--mlir-print-ir-before", default="", metavar="PASSES", help="print the IR before these passes")
    add("--mlir-print-ir-after", default="", metavar="PASSES", help="print the IR after these passes")
    add("--mlir-print-ir-before-all", action="store_true", help="print the IR before every pass")
    add("--mlir-print-ir-after-all", action="store_true", help="print the IR after every pass")
    add("--mlir-print-ir-after-change", action="store_true", help="print the IR after every pass that changed it")
    add("--mlir-print-ir-tree-dir", metavar="DIR", help="write the IR after every pass into files below this folder")


def _with_two_dashes(argument: str) -> str:
    """mlir-opt takes long flags with one dash too."""
    single = len(argument) > 2 and argument[0] == "-" and argument[1].isalpha()
    return f"-{argument}" if single else argument


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError(f"must be between 0 and 1000000, got {text}")
    return seconds


def _version() -> str:
    from importlib.metadata import version

    return f"steelyard-opt {version('steelyard')}, torch-mlir {version('torch-mlir')}, Python {sys.version.split()[0]}"


def list_passes() -> str:
    """Passes and pipelines, one per line."""
    from steelyard.passes import all_passes
    from steelyard.passes.pipeline.named import all_pipelines

    entries = [(p.name, p.summary) for p in all_passes().values()]
    entries += [(p.name, p.description) for p in all_pipelines().values()]
    width = max(len(name) for name, _ in entries)
    return "\n".join(f"{name:{width}}  {summary}" for name, summary in entries)


def describe_passes() -> str:
    """Passes and pipelines with their descriptions and options."""
    from steelyard.passes import all_passes
    from steelyard.passes.pipeline.named import all_pipelines

    lines = ["passes:"]
    for entry in all_passes().values():
        lines += [f"  {entry.name}", textwrap.indent(entry.description, "    ")]
        for option in entry.options:
            default = "" if option.default_text == "required" else "default: "
            lines.append(f"      {option.name}=<{option.type.__name__}>  ({default}{option.default_text})")
    lines += ["", "pipelines:"]
    for pipeline in all_pipelines().values():
        lines += [f"  {pipeline.name}", f"    {pipeline.description}", f"    {pipeline.text}"]
        lines += [f"      {name}=<str>  (default: {default})" for name, default in pipeline.options.items()]
    return "\n".join([*lines, "", "All passes of MLIR work too: canonicalize, cse, func.func(cse), ..."])
