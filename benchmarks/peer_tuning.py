"""SmolLM2-135M in few bits by this project and by others, on the same text: one table.

    python benchmarks/tuned_model.py
    python benchmarks/peer_tuning.py --out peers.json

Each peer has an environment of its own, which is made where it is missing: their pins differ. All of them run on the
CPU, are given the same calibration, and keep lm_head in float32. A peer that cannot be installed or run, or that takes
too long, has a row that says so. Finished rows are not measured again.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import torch
import tuned_model
from peer_quantizers import GGUF, MAKERS

from steelyard.insight.table import format_table
from steelyard.tools import trained

TORCH = "torch==2.13.0"
"""A range would pull GPU packages."""
PEERS = {
    "llm-compressor": ["llmcompressor==0.14.0.1", "transformers==5.17.0"],
    "ModelOpt": ["nvidia-modelopt==0.47.0", "transformers==5.22.2", "accelerate==1.15.0"],
    "llama.cpp": ["llama_cpp_python==0.3.36", "transformers==5.22.2"],
}
"""What is installed for the rows that begin with a name."""
HEADS = ("", "bits", "topics", "above", "KL", "docstrings", "above", "KL")


def python_of(peer: str, work: Path) -> Path:
    """The interpreter that has a peer: this one if its versions are the same, or that of an environment made for it."""
    wanted = [TORCH, *PEERS[peer]]
    if all(_is_installed(each) for each in wanted):
        return Path(sys.executable)
    folder = work / f"env-{peer}"
    python = folder / "bin" / "python"
    if not (folder / "finished").exists():
        venv.create(folder, with_pip=True, clear=True)
        constraints = folder / "constraints.txt"
        constraints.write_text(TORCH)
        # torch alone first, so that nothing else decides which of its builds is taken.
        for packages in ([TORCH], wanted):
            _run([python, "-m", "pip", "install", "--quiet", "--constraint", constraints, *packages])
        (folder / "finished").touch()
    return python


def _is_installed(requirement: str) -> bool:
    name, _, version = requirement.partition("==")
    try:
        return metadata.version(name).partition("+")[0] == version
    except metadata.PackageNotFoundError:
        return False


def _run(command: list, minutes: int | None = None) -> str:
    """What a command prints; raises `RuntimeError` with the end of its errors, or after so many minutes of CPU time."""
    limit = resource.RLIM_INFINITY if minutes is None else 60 * minutes

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))

    words = [str(each) for each in command]
    made = subprocess.run(words, capture_output=True, text=True, env=os.environ, preexec_fn=prepare)
    if made.returncode == -signal.SIGXCPU:
        raise RuntimeError(f"more than {minutes} minutes of CPU time")
    if made.returncode:
        raise RuntimeError((made.stderr.strip().splitlines() or [f"exit code {made.returncode}"])[-1])
    return made.stdout


def prepare(work: Path, calibration: int) -> None:
    """Write the model and the texts where all programs read them."""
    if (work / "texts.pt").exists():
        return
    model = trained.load()
    rows = tuned_model.read_texts(model, calibration)
    model.model.save_pretrained(work / "model")
    model.tokenizer.save_pretrained(work / "model")
    (work / GGUF).symlink_to(trained.find())
    torch.save(dict(zip(("calibration", "topics", "docstrings"), rows, strict=True)), work / "texts.pt")


def measure(name: str, work: Path, rows: int, minutes: int) -> dict:
    peer = next(each for each in PEERS if name.startswith(each))
    try:
        script = Path(__file__).with_name("peer_quantizers.py")
        printed = _run([python_of(peer, work), script, name, work, rows], minutes)
    except RuntimeError as error:
        return {"name": name, "failed": str(error)}
    return json.loads(printed.splitlines()[-1])


def cells(row: dict, exact: dict) -> tuple[str, ...]:
    """A line of the table, of this project's rows as of those of peers."""
    if "failed" in row:
        return (row["name"], "", f"did not run: {row['failed']}", "", "", "", "", "")
    name = tuned_model.title_of(row) if "fold" in row else row["name"]
    made = [name, "" if row["bits"] is None else f"{row['bits']:.2f}"]
    for text in ("topics", "docstrings"):
        perplexity = row[text]["perplexity"]
        above = 100 * (perplexity / exact[text]["perplexity"] - 1)
        divergence = row[text]["divergence"]
        made += [f"{perplexity:.2f}", f"{above:+.1f} %", "" if divergence is None else f"{divergence:.3f}"]
    return tuple(made)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--ours", type=Path, default=tuned_model.RESULTS / "tuning" / "tuned_model.json", help="rows of tuned_model.py"
    )
    parser.add_argument("--out", type=Path, required=True, help="a JSON file, to which rows are added")
    parser.add_argument("--work", type=Path, default=Path("build/peers"), help="where environments and texts are kept")
    parser.add_argument("--rows", nargs="*", default=list(MAKERS))
    parser.add_argument("--calibration", type=int, default=tuned_model.CALIBRATION, help="rows of 256 tokens")
    parser.add_argument("--minutes", type=int, default=30, help="the most CPU time of a row (default: 30)")
    options = parser.parse_args(argv)
    options.work.mkdir(parents=True, exist_ok=True)
    prepare(options.work, tuned_model.CALIBRATION)
    rows = json.loads(options.out.read_text()) if options.out.exists() else []
    for name in options.rows:
        if name not in [row["name"] for row in rows]:
            rows.append(measure(name, options.work, options.calibration, options.minutes))
            options.out.write_text(json.dumps(rows, indent=1))
    ours = json.loads(options.ours.read_text())
    exact = next(row for row in ours if row["name"] == "float32")
    print("\n".join(format_table(HEADS, [cells(row, exact) for row in [*ours, *rows]])))


if __name__ == "__main__":
    main()
