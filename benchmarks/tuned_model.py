"""What tuning keeps of SmolLM2-135M: perplexity of two texts by several goals, beside bits and speed.

    python benchmarks/tuned_model.py
    python benchmarks/run.py --cores 1 tuned
    python benchmarks/tuned_model.py --plot docs/images/tuned-model.png

Calibration and evaluation are on disjoint topics of Python's documentation; the second text is the docstrings of the
standard library. lm_head stays in float32. A row is measured again unless one with the same goal, calibration and use
of factors is stored. Speeds are those that the second command measured.
"""

import argparse
import json
import pydoc_data.topics
import time
from pathlib import Path

import torch
import tuned_plot
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
DISTILLED = "nvfp4 x nvfp4, distilled"
"""A row that `examples/distill_nvfp4.py` measures."""


def read_texts(model: trained.Trained, calibration: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens of calibration, of evaluation, and of the second text."""
    topics = list(pydoc_data.topics.topics.values())

    def rows(texts: list[str], count: int) -> torch.Tensor:
        tokens = model.tokenizer("\n\n".join(texts), return_tensors="pt").input_ids[0]
        return tokens[: count * LENGTH].reshape(count, LENGTH)

    return rows(topics[1::2], calibration), rows(topics[0::2], EVALUATION), rows([trained.docstrings()], SECOND)


def identity(name: str, tokens: int, fold: bool) -> dict:
    """What makes a row the same as a stored one; rows that are not tuned have a name alone."""
    if name not in GOALS:
        return {"name": name, "goal": None, "fold": None, "tokens": None}
    goal = json.loads(json.dumps(GOALS[name]))
    return {"name": name, "goal": goal, "fold": fold, "tokens": tokens}


def is_like(row: dict, wanted: dict) -> bool:
    return all(row[key] == value for key, value in wanted.items())


def is_stored(rows: list[dict], wanted: dict) -> bool:
    """Whether a row was measured; rows with a `source` are figures of a page, whose results nobody kept."""
    return any(is_like(row, wanted) and "source" not in row for row in rows)


def title_of(row: dict) -> str:
    """What tables call a row."""
    return f"{row['name']}, with factors" if row["fold"] else row["name"]


def folder_of(work: Path, wanted: dict) -> Path:
    """Where a row's finished work is kept: no row shares that of another, so that each has its own time."""
    words = [*wanted["name"].replace(",", "").split(), "factors" if wanted["fold"] else "plain", str(wanted["tokens"])]
    return work / "-".join(words)


def measure(wanted: dict, model: trained.Trained, texts, work: Path) -> dict:
    calibration, evaluation, second = texts
    name, found = wanted["name"], {"bits": None, "tried": None}
    if name == "float32":
        net, found["bits"] = model.model, 32.0
    elif name in PLAIN:
        net = steelyard.compile(model.model, name, overrides=trained.OVERRIDES)
    else:
        net, found = tune(wanted, model, calibration, folder_of(work, wanted))
    texts = {"topics": evaluation, "docstrings": second}
    return {**wanted, **found, **{text: judge(net, model.model, rows) for text, rows in texts.items()}}


def tune(wanted: dict, model: trained.Trained, calibration: torch.Tensor, folder: Path) -> tuple:
    """A tuned net, and what is to be known of it."""
    goes_on = folder.exists()
    batches, options = list(calibration.split(ROWS)), Options(fold=wanted["fold"])
    started, cpu = time.monotonic(), time.process_time()
    tuned, recipe = steelyard.tune(
        model.model, batches, **wanted["goal"], judged=batches[:1], folder=folder, options=options
    )
    # A run that goes on from finished work would claim too little time.
    times = [None if goes_on else round(each) for each in (time.monotonic() - started, time.process_time() - cpu)]
    tried = recipe.about["tried"]
    found = {"seconds": times[0], "cpu_seconds": times[1], "threads": torch.get_num_threads()}
    found |= {"bits": tried[-1]["bits"], "tried": tried, "recipe": {**recipe.to_dict(), "about": {}}}
    return steelyard.compile(tuned, recipe), found


def read_speeds() -> dict[str, dict[str, float]]:
    """The speeds of each row by the kinds of work that `run.py tuned` has measured."""
    works: dict[str, dict[str, float]] = {}
    for row in json.loads((RESULTS / "tuned.json").read_text())["rows"]:
        works.setdefault(row["work"], {})[row["contender"]] = row[SPEED_BEST]
    return works


def format_of(name: str) -> str:
    """What the nets of a row are called where speeds are measured."""
    if name == DISTILLED:
        return "nvfp4-4over6"
    formats = GOALS.get(name, {}).get("formats", [name])
    return formats[0] if len(formats) == 1 else name


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
    tokens = options.calibration * LENGTH
    wanted = [identity(name, tokens, not options.no_fold) for name in options.rows]
    missing = [each for each in wanted if not is_stored(rows, each)]
    if missing:
        model = trained.load()
        texts = read_texts(model, options.calibration)
        for each in missing:
            rows = [row for row in rows if not is_like(row, each)] + [measure(each, model, texts, options.work)]
            options.out.write_text(json.dumps(rows, indent=1) + "\n")
            print(each["name"], json.dumps(rows[-1]["topics"]), json.dumps(rows[-1]["docstrings"]), flush=True)
    if options.plot:
        tuned_plot.plot(tuned_plot.points_of(rows, format_of), read_speeds(), options.plot)


if __name__ == "__main__":
    main()
