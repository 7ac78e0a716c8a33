"""What tuning keeps of SmolLM2-135M: perplexity of two texts by several goals, beside bits and speed.

    python benchmarks/tuned_model.py
    python benchmarks/run.py --cores 1 tuned
    python benchmarks/tuned_model.py --plot docs/images/tuned-model.png

Calibration and evaluation are on disjoint topics of Python's documentation; the second text is the docstrings of the
standard library. lm_head stays in float32. Finished rows are not measured again. Speeds are those that the second
command measured.
"""

import argparse
import json
import pydoc_data.topics
from pathlib import Path

import torch
from language_judge import ROWS, judge
from report import SPEED_BEST

import steelyard
from steelyard.tools import trained
from steelyard.tuning.gptq import Options

LENGTH = 256
CALIBRATION, EVALUATION, SECOND = 16, 8, 4
"""Rows of LENGTH tokens each."""
RESULTS = Path(__file__).parent / "results"
MIX = ("nvfp4-4over6", "nvfp4-4over6/fp8-row", "mxfp8", "fp8-row")
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

    def rows(texts: list[str], count: int) -> torch.Tensor:
        tokens = model.tokenizer("\n\n".join(texts), return_tensors="pt").input_ids[0]
        return tokens[: count * LENGTH].reshape(count, LENGTH)

    return rows(topics[1::2], calibration), rows(topics[0::2], EVALUATION), rows([trained.docstrings()], SECOND)


def measure(name: str, model: trained.Trained, texts, work: Path, fold: bool) -> dict:
    calibration, evaluation, second = texts
    row = {"name": name, "bits": None, "tried": None}
    if name == "float32":
        net, row["bits"] = model.model, 32.0
    elif name in PLAIN:
        net = steelyard.compile(model.model, name, overrides=trained.OVERRIDES)
    else:
        batches = list(calibration.split(ROWS))
        options = Options(fold=fold)
        tuned, recipe = steelyard.tune(
            model.model, batches, **GOALS[name], judged=batches[:1], folder=work, options=options
        )
        net, tried = steelyard.compile(tuned, recipe), recipe.about["tried"]
        row |= {"bits": tried[-1]["bits"], "tried": tried, "tokens": calibration.numel()}
        row["recipe"] = {**recipe.to_dict(), "about": {}}
    return {**row, "topics": judge(net, model.model, evaluation), "docstrings": judge(net, model.model, second)}


def read_speeds() -> dict[str, dict[str, float]]:
    """The speeds of each row by the kinds of work that `run.py tuned` has measured."""
    works: dict[str, dict[str, float]] = {}
    for row in json.loads((RESULTS / "tuned.json").read_text())["rows"]:
        works.setdefault(row["work"], {})[row["contender"]] = row[SPEED_BEST]
    return works


def format_of(name: str) -> str:
    """What the nets of a row are called where speeds are measured."""
    formats = GOALS.get(name, {}).get("formats", [name])
    return "eager" if name == "float32" else formats[0] if len(formats) == 1 else name


def plot(rows: list[dict], file: Path) -> None:
    from matplotlib import pyplot

    exact = next(row for row in rows if row["name"] == "float32")
    works = read_speeds()
    figure, panels = pyplot.subplots(1, len(works), figsize=(12, 4.5), sharey=True, layout="constrained")
    for axes, (work, speeds) in zip(panels, works.items(), strict=True):
        for index, row in enumerate(rows):
            more = 100 * (row["topics"]["perplexity"] / exact["topics"]["perplexity"] - 1)
            kind = {"marker": "o", "s": 90} if row["tried"] else {"marker": "x", "s": 60}
            label = row["name"] if axes is panels[0] else None
            axes.scatter(speeds[format_of(row["name"])], more, color=f"C{index}", label=label, zorder=2, **kind)
        axes.set_title(work, fontsize=10)
        axes.set_xlabel("speed against eager float32, one thread")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("perplexity above float32, %")
    figure.legend(loc="outside right center", fontsize=8)
    figure.suptitle("SmolLM2-135M: tuned (dots), and rounded to the nearest code (crosses)", fontsize=11)
    figure.savefig(file, dpi=120)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out = RESULTS / "tuning" / "tuned_model.json"
    parser.add_argument(
        "--out", type=Path, default=out, help="a JSON file, to which rows are added (default: %(default)s)"
    )
    parser.add_argument("--work", type=Path, default=Path("build/tuned"), help="where tuning keeps finished work")
    parser.add_argument("--rows", nargs="+", default=["float32", *PLAIN, *GOALS])
    parser.add_argument("--calibration", type=int, default=CALIBRATION, help=f"rows of {LENGTH} tokens")
    parser.add_argument("--no-fold", action="store_true", help="tune without factors of inputs")
    parser.add_argument("--plot", type=Path, help="a picture of error against speed")
    options = parser.parse_args(argv)
    rows = json.loads(options.out.read_text()) if options.out.exists() else []
    missing = [name for name in options.rows if name not in [row["name"] for row in rows]]
    if missing:
        model = trained.load()
        texts = read_texts(model, options.calibration)
        for name in missing:
            rows.append(measure(name, model, texts, options.work, fold=not options.no_fold))
            options.out.write_text(json.dumps(rows, indent=1) + "\n")
            print(name, json.dumps(rows[-1]["topics"]), json.dumps(rows[-1]["docstrings"]), flush=True)
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
