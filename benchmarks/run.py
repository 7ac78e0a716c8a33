"""Runs the benchmarks: `python benchmarks/run.py [GROUP ...]`. Prints a table a group, writes JSON into results/."""

import argparse
import json
import platform
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import call_overhead  # noqa: E402
import compile_time  # noqa: E402
import compiler  # noqa: E402
import import_time  # noqa: E402
from report import Table  # noqa: E402


def _measure_jax(quick: bool = False) -> Table:
    """Imported when asked for: jax is an extra."""
    import jax_dense

    return jax_dense.measure(quick=quick)


GROUPS = {
    "import": import_time.measure,
    "compiler": compiler.measure,
    "compile": compile_time.measure,
    "call": call_overhead.measure,
    "jax": _measure_jax,
}


def main() -> int:
    """Run the groups that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"any of {', '.join(GROUPS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer repeats")
    arguments = parser.parse_args()
    unknown = set(arguments.groups) - GROUPS.keys()
    if unknown:
        parser.error(f"unknown group {sorted(unknown)[0]}; the groups are {', '.join(GROUPS)}")
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}\n")
    for name in arguments.groups or GROUPS:
        table: Table = GROUPS[name](quick=arguments.quick)
        print(table.text(), end="\n\n")
        results = HERE / "results"
        results.mkdir(exist_ok=True)
        (results / f"{name}.json").write_text(json.dumps(table.data(), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
