"""A trained model: what the recipes for inference cost it, and that the example and the demo run it."""

import pydoc_data.topics
import re
import sys
from pathlib import Path

import pytest

import steelyard
from steelyard.errors import FileError
from steelyard.tools import cli, trained, trained_demo

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import convert_checkpoints
import smollm2 as example

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("trained")]
# What transformers computes in float32, on the topics of Python 3.11.
EXACT = 17.54


@pytest.fixture(scope="module")
def smollm2():
    try:
        return trained.load()
    except FileError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def tokens(smollm2):
    return smollm2.tokens(512)


def test_float32(smollm2, tokens):
    assert tokens.shape == (1, 512)
    assert trained.perplexity(smollm2.model, tokens) == pytest.approx(EXACT, rel=0.01)
    assert "Paris" in smollm2.complete(smollm2.model, trained_demo.PROMPT, 4)


@pytest.mark.parametrize(("recipe", "cost"), [("mxfp8", 0.06), ("nvfp4-4over6/none", 0.28)])
def test_a_recipe_costs_little(smollm2, tokens, recipe, cost):
    net = steelyard.compile(smollm2.model, recipe, overrides=trained.OVERRIDES)
    assert 1 < trained.perplexity(net, tokens) / EXACT < 1 + cost
    rows = {row.layer: row for row in net.explain().rows if row.N}
    assert len(rows) == 30 * 7 + 1
    assert [layer for layer, row in rows.items() if not row.is_quantized] == ["lm_head"]


@pytest.mark.parametrize(
    ("format", "cost"), [("nvfp4-4over6", 0.34), ("nvfp4-4over6/mxfp8", 0.17), ("nvfp4-4over6/none", 0.14)]
)
def test_tuning_keeps_the_model_in_four_bits(smollm2, format, cost):
    # Calibration and evaluation are on different topics.
    topics = list(pydoc_data.topics.topics.values())

    def rows(texts, count):
        return (
            smollm2.tokenizer("\n\n".join(texts), return_tensors="pt").input_ids[0, : count * 256].reshape(count, 256)
        )

    batches, judged = rows(topics[1::2], 16).split(4), rows(topics[0::2], 4)
    tuned, recipe = steelyard.tune(smollm2.model, batches, bits=4.5, formats=[format], judged=batches[:1])
    net = steelyard.compile(tuned, recipe)
    assert 1 < trained.perplexity(net, judged) / trained.perplexity(smollm2.model, judged) < 1 + cost
    assert [row.layer for row in net.explain().rows if row.N and not row.is_quantized] == ["lm_head"]


def test_the_example(smollm2, monkeypatch, capsys):
    monkeypatch.setattr(trained, "load", lambda: smollm2)
    example.main(["--recipe", "mxfp8", "--new-tokens", "2"])
    (first, exact, _), (second, quantized, _) = re.findall(
        r"^(\S+), perplexity ([\d.]+): .* France is( Paris)", capsys.readouterr().out, re.MULTILINE
    )
    assert (first, second) == ("float32", "mxfp8")
    assert float(exact) == pytest.approx(EXACT, rel=0.01)
    assert 1 < float(quantized) / EXACT < 1.06


def test_the_demo(smollm2, monkeypatch, capsys):
    monkeypatch.setattr(trained, "load", lambda _: smollm2)
    monkeypatch.setattr(trained_demo, "RECIPES", ("mxfp8",))
    assert cli.main(["demo"]) == 0
    printed = capsys.readouterr().out
    float32, mxfp8 = (re.search(rf"^  {name} .*", printed, re.MULTILINE)[0].split() for name in ("float32", "mxfp8"))
    # Of 30 layers: q and o 576 x 576, k and v 192 x 576, gate, up and down 1536 x 576.
    weights = 30 * 576 * (2 * 576 + 2 * 192 + 3 * 1536)
    assert float32[3:5] == [f"{weights * 4 / 1e6:.0f}", "MB"]
    assert mxfp8[3:5] == [f"{weights * 33 / 32 / 1e6:.0f}", "MB"]
    assert float(float32[5]) == pytest.approx(EXACT, rel=0.01)
    assert 1 < float(mxfp8[5]) / EXACT < 1.06
    assert "Paris" in " ".join(float32[6:])
    assert "Paris" in " ".join(mxfp8[6:])
    assert "scaled.gemm fprop" in printed


def test_conversions(smollm2, monkeypatch, capsys):
    """Perplexities of SmolLM2 and similarities of MiniLM, after each format was written and loaded again."""
    monkeypatch.setattr(trained, "load", lambda: smollm2)
    convert_checkpoints.main(["--new-tokens", "2"])
    printed = capsys.readouterr().out
    costs = {"fp8-row": 0.06, "mxfp8": 0.06, "fp8-block": 0.06, "nvfp4/none": 0.4, "nvfp4": 0.8, "mxfp4/mxfp8": 0.8}
    found = dict(re.findall(r"^SmolLM2-135M-Instruct, (\S+).*: perplexity ([\d.]+)", printed, re.MULTILINE))
    assert float(found.pop("float32")) == pytest.approx(EXACT, rel=0.01)
    assert found.keys() == costs.keys()
    for recipe, cost in costs.items():
        assert 1 < float(found[recipe]) / EXACT < 1 + cost, recipe
    rows = re.findall(r"^all-MiniLM-L6-v2, (\S+).*: ([\d.]+), (-?[\d.]+), (-?[\d.]+)", printed, re.MULTILINE)
    assert [name for name, *_ in rows] == ["float32", *costs]
    for name, *similarities in rows:
        assert similarities == sorted(similarities, key=float, reverse=True), name
