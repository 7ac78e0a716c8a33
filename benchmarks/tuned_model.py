"""What tuning keeps of SmolLM2-135M: perplexity of two texts by several goals, beside speed and bits.

    python benchmarks/tuned_model.py --out benchmarks/results/tuned_model.json --plot docs/images/tuned-model.png

Calibration and evaluation are on disjoint topics of Python's documentation; the second text is the docstrings of the
standard library. lm_head stays in float32. Finished rows are not measured again.
"""

import argparse
import importlib
import inspect
import json
import pydoc_data.topics
import time
from pathlib import Path

import torch
from language_judge import ROWS, judge

import steelyard
from steelyard.tools import trained

LENGTH = 256
CALIBRATION, EVALUATION, SECOND = 16, 8, 4
"""Rows of LENGTH tokens each."""
ROUNDS = 5
MODULES = ("argparse", "asyncio.events", "collections", "datetime", "decimal", "email.message", "logging", "random")
MIX = ("nvfp4-4over6", "nvfp4-4over6/mxfp8", "mxfp8")
GOALS = {
    "nvfp4 x nvfp4, compensated": {"bits": 4.5, "formats": ["nvfp4-4over6"]},
    "nvfp4 weights only, compensated": {"bits": 4.5, "formats": ["nvfp4-4over6/none"]},
    "nvfp4 weights x mxfp8, compensated": {"bits": 4.5, "formats": ["nvfp4-4over6/mxfp8"]},
    "mixed, half of the FLOPs nvfp4 x nvfp4": {"share": {"nvfp4-4over6": 0.5}, "formats": MIX},
    "mixed, at most 6 bits": {"bits": 6.0, "formats": MIX},
}
PLAIN = ("nvfp4", "nvfp4-4over6", "nvfp4-4over6/mxfp8", "nvfp4-4over6/none", "mxfp8")


def read_texts(model: trained.Trained, calibration: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens of calibration, of evaluation, and of the second text."""
    topics = list(pydoc_data.topics.topics.values())
    docstrings = []
    for name in MODULES:
        module = importlib.import_module(name)
        docstrings += [inspect.getdoc(each) or "" for _, each in sorted(vars(module).items()) if callable(each)]

    def rows(texts: list[str], count: int) -> torch.Tensor:
        tokens = model.tokenizer("\n\n".join(texts), return_tensors="pt").input_ids[0]
        return tokens[: count * LENGTH].reshape(count, LENGTH)

    return rows(topics[1::2], calibration), rows(topics[0::2], EVALUATION), rows(docstrings, SECOND)


@torch.no_grad()
def shortest(net, tokens: torch.Tensor) -> float:
    """Seconds of the shortest of a few calls."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        net(tokens)
        times.append(time.perf_counter() - start)
    return min(times)


def measure(name: str, model: trained.Trained, texts, work: Path, *, timed: bool) -> dict:
    calibration, evaluation, second = texts
    bits, tried = None, None
    if name == "float32":
        net, bits = model.model, 32.0
    elif name in PLAIN:
        net = steelyard.compile(model.model, name, overrides=trained.OVERRIDES)
    else:
        batches = list(calibration.split(ROWS))
        tuned, recipe = steelyard.tune(model.model, batches, **GOALS[name], judged=batches[:1], folder=work)
        net, tried = steelyard.compile(tuned, recipe), recipe.about["tried"]
        bits = tried[-1]["bits"]
    topics, docstrings = judge(net, model.model, evaluation), judge(net, model.model, second)
    row = {"name": name, "bits": bits, "topics": topics, "docstrings": docstrings, "tried": tried}
    return {**row, "tokens": calibration.numel(), "seconds": shortest(net, evaluation[:ROWS]) if timed else None}


def plot(rows: list[dict], file: Path) -> None:
    from matplotlib import pyplot

    exact = next(row for row in rows if row["name"] == "float32")
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for row in rows:
        speed = exact["seconds"] / row["seconds"]
        more = 100 * (row["topics"]["perplexity"] / exact["topics"]["perplexity"] - 1)
        is_tuned = row["tried"] is not None
        axes.scatter(speed, more, color="tab:blue" if is_tuned else "tab:gray")
        axes.annotate(row["name"], (speed, more), fontsize=7, xytext=(4, 4), textcoords="offset points")
    axes.set_xlabel("speed of a forward of 4 x 256 tokens against float32")
    axes.set_ylabel("perplexity above float32, %")
    axes.set_title("SmolLM2-135M: tuned (blue) and as it is (gray)")
    figure.tight_layout()
    figure.savefig(file, dpi=120)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a JSON file, to which rows are added")
    parser.add_argument("--work", type=Path, default=Path("build/tuned"), help="where tuning keeps finished work")
    parser.add_argument("--rows", nargs="+", default=["float32", *PLAIN, *GOALS])
    parser.add_argument("--calibration", type=int, default=CALIBRATION, help=f"rows of {LENGTH} tokens")
    parser.add_argument("--plot", type=Path, help="a picture of error against speed; without it, nothing is timed")
    options = parser.parse_args(argv)
    rows = json.loads(options.out.read_text()) if options.out.exists() else []
    missing = [name for name in options.rows if name not in [row["name"] for row in rows]]
    if missing:
        model = trained.load()
        texts = read_texts(model, options.calibration)
        for name in missing:
            rows.append(measure(name, model, texts, options.work, timed=options.plot is not None))
            options.out.write_text(json.dumps(rows, indent=1))
            print(name, json.dumps(rows[-1]["topics"]), json.dumps(rows[-1]["docstrings"]), flush=True)
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
