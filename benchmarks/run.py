"""Runs the benchmarks: `python benchmarks/run.py [GROUP ...]`.

Prints one table per group, and writes each as JSON and as a chart into results/, or results/quick/.
"""

import argparse
import importlib
import json
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import machine  # noqa: E402
from report import Table  # noqa: E402

# Each is a module whose `measure(quick)` returns a table. It is imported when its group runs, so a group only needs
# what it imports itself.
GROUPS = {
    "import": "import_time",
    "compiler": "compiler",
    "compile": "compile_time",
    "gemm": "gemm",
    "gemv": "gemv",
    "formats": "formats",
    "attention": "attention",
    "elementwise": "elementwise",
    "decoding": "decoding",
    "tuned": "tuned_speed",
    "trained": "trained_model",
    "caches": "cached_error",
    "quantizers": "quantizers",
    "call": "call_overhead",
    "jax": "jax_dense",
    "jax-compile": "jax_compile",
    "models": "whole_models",
    "experts": "experts",
    "training": "training",
    "measuring": "measuring",
    "loading": "loading",
    "memory": "peak_memory",
    "peers": "peer_linears",
    "scaling": "scaling",
    "threads": "thread_scaling",
}
# What `--quick` runs if no group is named. It takes two minutes, too few for inductor to compile.
QUICK_GROUPS = (
    *(
        "gemm",
        "gemv",
        "formats",
        "attention",
        "elementwise",
        "quantizers",
        "call",
        "models",
        "experts",
        "training",
        "peers",
        "scaling",
    ),
    "threads",
)


def main() -> int:
    """Run the groups that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    everything = f"any of {', '.join(GROUPS)}; all by default, with --quick {', '.join(QUICK_GROUPS)}"
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=everything)
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer repeats")
    parser.add_argument("--cores", type=int, help="use at most this many; all by default")
    parser.add_argument(
        "--only", default="", help="run only contenders whose names contain one of these words: steelyard,inductor"
    )
    arguments = parser.parse_args()
    # `make bench GROUPS=gemm,models` passes them as one word.
    groups = [name for word in arguments.groups for name in word.split(",") if name]
    groups = groups or list(QUICK_GROUPS if arguments.quick else GROUPS)
    unknown = sorted(set(groups) - GROUPS.keys())
    if unknown:
        parser.error(f"unknown group {unknown[0]}; the groups are {', '.join(GROUPS)}")
    if arguments.only:
        import contest

        contest.ONLY += arguments.only.split(",")
    if arguments.cores is not None:
        machine.limit(max(arguments.cores, 1))
    print("\n".join(f"{name}: {value}" for name, value in machine.describe().items()), end="\n\n", flush=True)
    skipped = [name for name in GROUPS if name not in groups]
    if skipped:
        print(f"not measured this time: {', '.join(skipped)}\n", flush=True)
    failed = [name for name in groups if not _run(name, arguments)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run(name: str, arguments: argparse.Namespace) -> bool:
    """Measure a group. If it fails, the others still run."""
    start, before = time.perf_counter(), machine.load()
    try:
        table: Table = importlib.import_module(GROUPS[name]).measure(quick=arguments.quick)
    except ImportError as error:
        print(f"[{name}: missing, {error}; pip install 'steelyard[bench,jax]']\n", flush=True)
        return True
    except Exception:
        traceback.print_exc()
        return False
    seconds = time.perf_counter() - start
    print(f"{table.text()}\n[{name}: {seconds:.0f} s, load average {before} -> {machine.load()}]\n", flush=True)
    _write(name, table, before, arguments)
    return True


def _write(name: str, table: Table, load: str, arguments: argparse.Namespace) -> None:
    import charts

    quick = arguments.quick
    options = [f"--{key} {value}" for key in ("cores", "only") if (value := getattr(arguments, key))]
    results = HERE / "results" / "quick" if quick else HERE / "results"
    results.mkdir(parents=True, exist_ok=True)
    here = machine.describe() | {"load average": f"{load} before, {machine.load()} after"}
    command = " ".join(["python benchmarks/run.py", *(["--quick"] if quick else []), *options, name])
    data = {"command": command, "machine": here, **table.data()}
    (results / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    charts.draw(data, results / f"{name}.png")


if __name__ == "__main__":
    sys.exit(main())
