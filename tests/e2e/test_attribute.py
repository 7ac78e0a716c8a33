"""`net.attribute`: errors of single layers beside the reference, files that runs go on from, and the estimate."""

import json
import math
from pathlib import Path

import pytest
import torch
from expert_models import Model as ExpertModel
from oracle import make_oracle
from small_models import make_llama
from torch import nn
from torch.nn import functional

import steelyard
from steelyard import recipes, reference
from steelyard.driver import attributing
from steelyard.errors import FileError, RecipeError, ResultError, UnsupportedModelError
from steelyard.insight.results import Attribution
from steelyard.insight.statistics import rank_correlation

LAYERS = ("0", "2", "4")


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32)).eval()


def batches() -> list[torch.Tensor]:
    return [torch.randn(16, 48, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]


def error_of(model: nn.Module, other: nn.Module) -> float:
    with torch.no_grad():
        # Each batch has scales of its own.
        exact, found = (torch.cat([each(x).double() for x in batches()]) for each in (model, other))
        return float((found - exact).norm() / exact.norm())


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4", "fp8-current"])
def test_errors_of_single_layers(name: str):
    model = make_model()
    found = steelyard.compile(model, name).attribute(batches())
    assert [row.layer for row in found.rows] == list(LAYERS)
    assert (found.recipe, found.batches, found.error) == (name, 2, "relative_error")
    for row in found.rows:
        only = make_oracle(model, name, {layer: None for layer in LAYERS if layer != row.layer})
        without = make_oracle(model, name, {row.layer: None})
        assert row.only_error == pytest.approx(error_of(model, only), rel=0.03)
        assert row.without_error == pytest.approx(error_of(model, without), rel=0.03)
    assert found.baseline_error == pytest.approx(error_of(model, make_oracle(model, name)), rel=0.03)
    assert Attribution.from_json(found.to_json()) == found


def test_the_program_has_a_switch_per_layer_and_is_compiled_once():
    net = steelyard.compile(make_model(), "mxfp8")
    made = []
    make = type(net)._variant
    type(net)._variant = lambda self, *arguments: made.append(make(self, *arguments)) or made[-1]
    try:
        net.attribute(batches(), estimate=False)
    finally:
        del type(net)._variant
    (switched,) = made
    (compilation,) = switched._steelyard.backend.compilations
    assert compilation.text("quantized").count("scaled.switch") == len(LAYERS)
    assert '{scaled.state = "2.fprop.switch"}' in compilation.text("lowered")
    assert "switch" not in "".join(net.state_dict())


def test_divergence_of_logits():
    model, inputs = make_llama()
    model.eval()
    found = steelyard.compile(model, "nvfp4").attribute([inputs], estimate=False)
    assert found.error == "kl_divergence"
    assert found.estimate_agreement is None
    row = found.rows[-1]
    assert row.layer == "lm_head"
    others = {each.layer: None for each in found.rows if each is not row}
    net = steelyard.compile(model, "nvfp4", overrides=others)
    with torch.no_grad():
        own, exact = (each(**inputs).logits.double().log_softmax(-1) for each in (net, model))
    wanted = functional.kl_div(own, exact, log_target=True, reduction="none").sum(-1).mean()
    assert row.only_error == pytest.approx(float(wanted), rel=1e-3)


def test_the_estimate():
    model = make_model()
    found = steelyard.compile(model, "mxfp8").attribute(batches())
    recipe = recipes.get("mxfp8")

    def decoded(x: torch.Tensor, role: str) -> torch.Tensor:
        row, _ = recipe.schemes(recipes.Role(role, ""))
        return reference.dequantize(reference.quantize(x, row, None)[0]).double()

    # The gradient of a random direction of the output, times the error of the last layer, row by row.
    sums = squares = 0.0
    for x in batches():
        direction = torch.randn(16, 32, generator=torch.Generator().manual_seed(0)).double()
        with torch.no_grad():
            hidden = make_oracle(model, "mxfp8")[:4](x)
            weight, bias = model[4].weight, model[4].bias
            quantized = decoded(hidden, "input") @ decoded(weight, "weight").T
            error = quantized - hidden.double() @ weight.double().T
            sums += float((error * direction).sum(1).square().sum())
            squares += float((quantized + bias.double()).square().sum())
    assert found.rows[-1].estimated_error == pytest.approx(math.sqrt(sums / squares), rel=0.02)
    for row in found.rows:
        assert row.only_error / 2 < row.estimated_error < row.only_error * 2
    agreement = rank_correlation([row.estimated_error for row in found.rows], [row.only_error for row in found.rows])
    assert found.estimate_agreement == agreement


def test_a_few_layers_run_and_all_are_estimated():
    net = steelyard.compile(make_model(), "nvfp4")
    whole = net.attribute(batches())
    estimated = sorted(whole.rows, key=lambda row: -row.estimated_error)
    # The largest, and the middle one of the others: the second of two.
    kept = {estimated[0].layer, estimated[2].layer}
    found = net.attribute(batches(), layers=2)
    for row, wanted in zip(found.rows, whole.rows, strict=True):
        assert row.estimated_error == wanted.estimated_error
        wanted_errors = (wanted.only_error, wanted.without_error) if row.layer in kept else (None, None)
        assert (row.only_error, row.without_error) == wanted_errors
    assert abs(found.estimate_agreement) == pytest.approx(1)
    assert found.baseline_error == whole.baseline_error
    none = net.attribute(batches(), layers=0)
    assert [row.only_error for row in none.rows] == [None, None, None]
    assert (none.estimate_agreement, none.baseline_error) == (None, whole.baseline_error)
    assert net.attribute(batches(), layers=10) == whole


def test_gradients_and_state_stay():
    net = steelyard.compile(make_model().train(), "fp8-delayed")
    net(batches()[0]).sum().backward()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    gradient = net[0].weight.grad.clone()
    found = net.attribute(batches())
    assert found.rows[0].estimated_error > 0
    assert torch.equal(net[0].weight.grad, gradient)
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_model_without_gradients_has_no_estimate():
    found = steelyard.compile(make_model().requires_grad_(False), "mxfp8").attribute(batches())
    assert [row.estimated_error for row in found.rows] == [None, None, None]
    assert found.estimate_agreement is None


def test_random_numbers_are_the_same_in_all_runs():
    model = nn.Sequential(nn.Linear(48, 64), nn.Dropout(0.5), nn.Linear(64, 32))
    found = steelyard.compile(model, "mxfp8").attribute(batches(), estimate=False)
    assert all(row.only_error < 0.1 for row in found.rows)


def test_experts():
    torch.manual_seed(0)
    ends = torch.tensor([7, 7, 15, 24], dtype=torch.int32)
    found = steelyard.compile(ExpertModel(), "mxfp8").attribute([(torch.randn(24, 48), ends)])
    (row,) = found.rows
    assert row.layer == "experts.weight"
    assert row.without_error == pytest.approx(0, abs=1e-6)
    assert row.only_error == found.baseline_error > 0.01


def test_a_run_goes_on_from_its_file(tmp_path: Path):
    path = tmp_path / "attribution.json"
    net = steelyard.compile(make_model(), "mxfp8")
    found = net.attribute(batches(), path=path)
    kept = json.loads(path.read_text())
    runs = kept["batches"]["batch 1"]["runs"]
    assert len(runs) == 1 + 2 * len(LAYERS)
    # What is there is not run again: numbers that nobody measured show it.
    runs["only 2"][0] *= 4
    del runs["without 4"]
    path.write_text(json.dumps(kept))
    again = net.attribute(batches(), path=path)
    assert again.rows[2] == found.rows[2]
    assert again.rows[1].only_error != found.rows[1].only_error


def test_what_was_found_before_a_failure_is_kept(tmp_path: Path):
    path = tmp_path / "attribution.json"
    net = steelyard.compile(make_model(), "mxfp8")

    def interrupted():
        yield batches()[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        net.attribute(interrupted(), path=path)
    assert len(json.loads(path.read_text())["batches"]["batch 0"]["runs"]) == 1 + 2 * len(LAYERS)


def test_what_was_found_is_kept_while_layers_run(tmp_path: Path, monkeypatch):
    path = tmp_path / "attribution.json"
    monkeypatch.setattr(attributing, "_SECONDS_BETWEEN_WRITES", 0.0)
    kept = []

    net = steelyard.compile(make_model(), "mxfp8")
    measure = attributing._Runs._measure

    def recorded(*arguments):
        # As it is if the process ends now.
        kept.append(len(json.loads(path.read_text())["batches"]["batch 0"]["runs"]) if path.exists() else 0)
        return measure(*arguments)

    monkeypatch.setattr(attributing._Runs, "_measure", recorded)
    net.attribute(batches()[:1], path=path, estimate=False)
    assert kept == list(range(1 + 2 * len(LAYERS)))


def test_files_of_something_else_are_refused(tmp_path: Path):
    path = tmp_path / "attribution.json"
    net = steelyard.compile(make_model(), "mxfp8")
    net.attribute(batches(), path=path, estimate=False)
    with pytest.raises(ResultError, match="must be about the same model, recipe and batches, and batch 0 there"):
        net.attribute(batches()[1:], path=path)
    with pytest.raises(ResultError, match="delete the file, or choose another path"):
        steelyard.compile(make_model(), "nvfp4").attribute(batches(), path=path)
    path.write_text('{"version": 1}')
    with pytest.raises(FileError, match=r"must be what net\.attribute keeps between runs, got 'batches'"):
        net.attribute(batches(), path=path)
    with pytest.raises(FileError, match="cannot write"):
        net.attribute(batches(), path=tmp_path / "missing" / "attribution.json")


def test_what_cannot_be_attributed_is_refused():
    net = steelyard.compile(make_model(), "mxfp8", overrides={"*": None})
    with pytest.raises(UnsupportedModelError, match="must have a quantized GEMM, and this one has none"):
        net.attribute(batches())
    net = steelyard.compile(make_model(), "mxfp8")
    with pytest.raises(ResultError, match="batches must hold at least one batch, got none"):
        net.attribute([])
    with pytest.raises(RecipeError, match="batches must be a list"):
        net.attribute(batches()[0])
    with pytest.raises(ResultError, match="layers must be how many layers are run alone, at least 0, got -1"):
        net.attribute(batches(), layers=-1)
    with pytest.raises(ResultError, match="leave out estimate=False"):
        net.attribute(batches(), layers=1, estimate=False)
    with pytest.raises(ResultError, match="a net without gradients has none; leave out layers="):
        steelyard.compile(make_model().requires_grad_(False), "mxfp8").attribute(batches(), layers=1)


def test_rank_correlation():
    # By hand: 1 - 6 * sum(d^2) / (n * (n^2 - 1)), without equal values.
    assert rank_correlation([10, 20, 30, 40], [1, 3, 2, 4]) == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert rank_correlation([1, 2, 3], [30, 20, 10]) == pytest.approx(-1)
    # Equal values share the mean of their ranks: 1.5, 1.5, 3 against 1, 2, 3.
    assert rank_correlation([5, 5, 7], [1, 2, 3]) == pytest.approx(math.sqrt(3) / 2)
    assert rank_correlation([5, 5], [1, 2]) is None
    assert rank_correlation([5], [1]) is None
