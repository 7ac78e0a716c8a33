"""`net.measure`: what it finds, beside float64 and the reference; which calls it measures, and what it leaves alone."""

import copy
import itertools
import math

import pytest
import torch
from block_stacks import LAYERS, Stack, make_input
from expert_models import EXPERTS, Experts
from expert_models import Model as ExpertModel
from small_models import VOCABULARY, make_llama
from torch import nn
from torch.nn import functional
from transformers import DynamicCache

import steelyard
from steelyard import recipes, reference
from steelyard.errors import RecipeError, TargetError, UnsupportedModelError
from steelyard.insight.results import GemmMeasurement, Measurement
from steelyard.recipes import DelayedScaling

IN, HIDDEN, OUT = 48, 72, 40


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(IN, HIDDEN)
        self.down = nn.Linear(HIDDEN, OUT, bias=False)

    def forward(self, x):
        return self.down(functional.gelu(self.up(x)))


def make_model(seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return Model()


def rows_by_name(result: Measurement) -> dict[tuple[str, str], GemmMeasurement]:
    return {(row.layer, row.kind): row for row in result.rows}


def error_of(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact.double()).norm() / exact.double().norm())


def decoded(x: torch.Tensor, recipe: recipes.Recipe, role: str, usage: int, **options) -> torch.Tensor:
    """A tensor as a recipe quantizes it, by the reference."""
    schemes = [None, None]
    schemes[usage] = recipe.schemes(recipes.Role(role, ""))[usage]
    copy = reference.quantize(x, *schemes, **options)[usage]
    return reference.dequantize(copy).double()


def check_row(row: GemmMeasurement, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Check what an fprop in mxfp8 loses, by the reference and float64; returns its result in low precision."""
    recipe = recipes.get("mxfp8")
    values = {"input": x, "weight": weight.detach()}
    quantized = {role: decoded(tensor, recipe, role, 0) for role, tensor in values.items()}
    found, exact = quantized["input"] @ quantized["weight"].T, x.double() @ weight.detach().double().T
    assert row.relative_error == pytest.approx(error_of(found, exact), rel=1e-3)
    operands = {operand.role: operand for operand in row.operands}
    for role, tensor in values.items():
        assert operands[role].relative_error == pytest.approx(error_of(quantized[role], tensor), rel=1e-3)
        assert operands[role].amax == pytest.approx(float(tensor.abs().max()), rel=1e-6)
        assert sum(operands[role].code_histogram) == tensor.numel()
    return found


@pytest.mark.parametrize("name", ["fp8-current", "fp8-block", "mxfp8", "nvfp4"])
def test_a_forward(name: str):
    model = make_model().eval()
    net = steelyard.compile(model, name)
    x = torch.randn(5, 7, IN)
    found = net.measure([x])
    assert (found.model, found.recipe, found.steps) == ("Model", name, 1)
    row = rows_by_name(found)["up", "fprop"]
    assert (row.shape, row.flops, row.calls, row.reason) == ([35, HIDDEN, IN], 2 * 35 * HIDDEN * IN, 1, "")
    assert row.source_line == f"{__file__}:{Model.forward.__code__.co_firstlineno + 1}"
    recipe = recipes.get(name).settled(trains=False)
    flat = x.flatten(0, 1)
    values = {"input": flat, "weight": model.up.weight.detach()}
    quantized = {role: decoded(tensor, recipe, role, 0) for role, tensor in values.items()}
    products = quantized["input"] @ quantized["weight"].T, values["input"].double() @ values["weight"].double().T
    assert row.relative_error == pytest.approx(error_of(*products), rel=1e-3)
    assert row.snr_db == pytest.approx(-20 * math.log10(error_of(*products)), rel=1e-3)
    assert row.max_error == pytest.approx(float((products[0] - products[1]).abs().max()), rel=1e-3)
    assert row.gradient is None
    for operand in row.operands:
        exact = values[operand.role]
        assert operand.usage == "row"
        assert operand.elements == exact.numel()
        assert operand.relative_error == pytest.approx(error_of(quantized[operand.role], exact), rel=1e-4)
        assert operand.snr_db == pytest.approx(-20 * math.log10(operand.relative_error))
        assert operand.amax == float(exact.abs().max())
        assert operand.amax_history == [operand.amax]
        assert sum(operand.code_histogram) == exact.numel()
        zeros = int(((quantized[operand.role] == 0) & (exact != 0)).sum())
        assert operand.flushed_share == pytest.approx(zeros / exact.numel())
    with torch.no_grad():
        assert found.output.relative_error == pytest.approx(error_of(net(x), model(x)), rel=1e-3)


def test_gradients():
    model = make_model()
    net = steelyard.compile(model, "mxfp8")
    x = torch.randn(32, IN, requires_grad=True)
    dy = torch.randn(32, OUT)
    with net.measure() as measuring:
        net(x).backward(dy)
    rows = rows_by_name(measuring.result)
    assert set(rows) == {(layer, kind) for layer in ("up", "down") for kind in ("fprop", "dgrad", "wgrad")}
    recipe = recipes.get("mxfp8")
    row, col = 0, 1
    gradient = decoded(dy, recipe, "grad_output", row)
    dgrad = gradient @ decoded(model.down.weight.detach(), recipe, "weight", col)
    exact = dy.double() @ model.down.weight.detach().double()
    found = rows["down", "dgrad"].gradient
    assert found.relative_error == pytest.approx(error_of(dgrad, exact), rel=1e-3)
    assert found.cosine == pytest.approx(float(functional.cosine_similarity(dgrad.flatten(), exact.flatten(), 0)))
    assert found.norm == pytest.approx(float(dgrad.norm()), rel=1e-5)
    assert found.underflow_share == 0
    # The gradient of the weight, against the same product of what it is computed from.
    with torch.no_grad():
        hidden = functional.gelu(net.up(x.detach()))
    wgrad = decoded(dy, recipe, "grad_output", col).T @ decoded(hidden, recipe, "input", col)
    exact = dy.double().T @ hidden.double()
    found = rows["down", "wgrad"].gradient
    assert found.relative_error == pytest.approx(error_of(wgrad, exact), rel=1e-2)
    roles = [(operand.role, operand.usage) for operand in rows["down", "wgrad"].operands]
    assert roles == [("grad_output", "col"), ("input", "col")]


def test_gradients_that_underflow():
    net = steelyard.compile(nn.Sequential(nn.Linear(IN, OUT, bias=False)), DelayedScaling())
    x = torch.randn(32, IN, requires_grad=True)
    with net.measure() as measuring:
        # A scale that is 1 so far makes the smallest value of E5M2 2^-16.
        net(x).backward(torch.full((32, OUT), 2.0**-20))
    rows = rows_by_name(measuring.result)
    assert rows["0", "wgrad"].gradient.underflow_share == 1
    assert rows["0", "wgrad"].gradient.cosine is None
    assert rows["0", "wgrad"].gradient.norm == 0
    assert rows["0", "wgrad"].operands[0].flushed_share == 1


def test_measured_programs_compute_what_others_do_and_move_the_same_state():
    x = torch.randn(32, IN)
    found = []
    for is_measured in (False, True):
        model = make_model()
        net = steelyard.compile(model, "fp8-delayed")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with net.measure(every=1) if is_measured else torch.enable_grad():
            for _ in range(3):
                net(x).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        found.append(net.state_dict())
    plain, measured = found
    assert plain.keys() == measured.keys()
    assert any(key.startswith("_steelyard.") for key in plain)
    for key in plain:
        # A gelu that is not fused may differ in its last bits.
        torch.testing.assert_close(measured[key], plain[key], rtol=1e-3, atol=1e-3)


def test_every_so_many_calls_are_measured():
    net = steelyard.compile(make_model(), "fp8-current")
    inputs = [scale * torch.randn(32, IN) for scale in range(1, 7)]
    with net.measure(every=3) as measuring, torch.no_grad():
        for x in inputs:
            net(x)
        assert measuring.result.steps == 2
    operand = rows_by_name(measuring.result)["up", "fprop"].operands[0]
    assert operand.amax_history == [float(inputs[0].abs().max()), float(inputs[3].abs().max())]
    assert operand.elements == 2 * 32 * IN
    net(inputs[0])
    assert measuring.result.steps == 2


def test_nothing_is_left_behind():
    model = make_model()
    model.norm = nn.BatchNorm1d(OUT)
    model.forward = lambda x: model.norm(model.down(model.up(x)))
    net = steelyard.compile(model, "fp8-delayed")
    x = torch.randn(32, IN)
    net(x).pow(3).sum().backward()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    gradients = {name: parameter.grad.clone() for name, parameter in net.named_parameters()}
    programs = net.explain()
    random = torch.get_rng_state()
    found = net.measure([x], loss=lambda y, batch: y.pow(3).sum(), backward=True)
    assert rows_by_name(found)["up", "wgrad"].gradient.norm > 0
    assert torch.equal(random, torch.get_rng_state())
    assert net.explain() == programs
    assert "measure" not in net.ir("quantized")
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name])
    for name, parameter in net.named_parameters():
        assert torch.equal(parameter.grad, gradients[name])


def test_losses_and_divergence():
    model, inputs = make_llama()
    model.eval()
    net = steelyard.compile(model, "nvfp4")
    tokens = inputs["input_ids"]
    batch = {"input_ids": tokens, "labels": tokens}
    found = net.measure([batch, batch]).output
    with torch.no_grad():
        own, exact = net(**batch), model(**batch)
    log_own, log_exact = (each.logits.double().log_softmax(-1) for each in (own, exact))
    divergence = functional.kl_div(log_own, log_exact, log_target=True, reduction="none").sum(-1).mean()
    assert found.kl_divergence == pytest.approx(float(divergence), rel=0.02)
    assert found.loss == pytest.approx(own.loss.item(), rel=1e-3)
    assert found.loss_high_precision == pytest.approx(exact.loss.item(), rel=1e-6)
    assert found.loss_difference == found.loss - found.loss_high_precision
    assert found.relative_error == pytest.approx(error_of(own.logits, exact.logits), rel=0.02)


def test_the_output_is_compared_in_the_context_on_request():
    model, inputs = make_llama()
    net = steelyard.compile(model.train(), "nvfp4")
    batch = {"input_ids": inputs["input_ids"], "labels": inputs["input_ids"]}
    with net.measure() as measuring:
        net(**batch)
    assert measuring.result.output is None
    # Positions before keywords, a cache that calls write, and calls that are not measured.
    with net.measure(every=2, output=True) as measuring, torch.no_grad():
        own = net(batch["input_ids"], labels=batch["labels"], use_cache=True, past_key_values=DynamicCache())
        net(batch["input_ids"].flip(1))
    with torch.no_grad():
        exact = model(**batch)
    found = measuring.result.output
    log_own, log_exact = (each.logits.double().log_softmax(-1) for each in (own, exact))
    divergence = functional.kl_div(log_own, log_exact, log_target=True, reduction="none").sum(-1).mean()
    assert own.past_key_values.get_seq_length() == batch["input_ids"].shape[1]
    assert found.kl_divergence == pytest.approx(float(divergence), rel=1e-6)
    assert found.relative_error == pytest.approx(error_of(own.logits, exact.logits), rel=1e-6)
    assert found.loss == own.loss.item()
    assert found.loss_high_precision == pytest.approx(exact.loss.item(), rel=1e-6)
    assert found.loss_difference == found.loss - found.loss_high_precision


def test_a_training_step_whose_output_is_compared_is_the_same_step():
    x = torch.randn(32, IN)
    found = []
    for is_compared in (False, True):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(IN, HIDDEN), nn.Dropout(0.5), nn.BatchNorm1d(HIDDEN), nn.Linear(HIDDEN, OUT))
        net = steelyard.compile(model, "fp8-delayed")
        with net.measure(output=is_compared, loss=lambda y, batch: y.sum() - batch.sum()) as measuring:
            net(x).square().sum().backward()
        found.append((net.state_dict(), [parameter.grad for parameter in net.parameters()], torch.get_rng_state()))
    output = measuring.result.output
    # The same values are dropped in both.
    assert output.relative_error < 0.2
    assert output.loss_difference == output.loss - output.loss_high_precision != 0
    for plain, compared in zip(*found, strict=True):
        torch.testing.assert_close(compared, plain, rtol=0, atol=0)


def test_gradients_of_parameters_beside_those_of_the_model():
    model = make_model()
    exact = copy.deepcopy(model).double()
    net = steelyard.compile(model, "nvfp4")
    batches = [torch.randn(32, IN) for _ in range(2)]
    found = net.measure(batches, loss=lambda y, _: y.square().mean(), backward=True).gradients
    assert [one.parameter for one in found] == ["down.weight", "up.bias", "up.weight"]
    assert net.measure(batches, loss=lambda y, _: y.square().mean()).gradients == []
    sums = torch.zeros(3, 3, dtype=torch.float64)
    for x in batches:
        gradients = []
        # The programs that measure, whose random roundings are those of this call.
        for module, inputs in ((net, x), (exact, x.double())):
            module.zero_grad()
            with net._unchanged(), net.measure():
                module(inputs).square().mean().backward()
            gradients.append([module.get_parameter(one.parameter).grad.double().flatten() for one in found])
        for number, (own, wanted) in enumerate(zip(*gradients, strict=True)):
            sums[number] += torch.stack([own @ own, wanted @ wanted, own @ wanted])
    for one, (own, wanted, product) in zip(found, sums.tolist(), strict=True):
        assert one.norm == pytest.approx(math.sqrt(own), rel=1e-5)
        assert one.norm_high_precision == pytest.approx(math.sqrt(wanted), rel=1e-5)
        assert one.cosine == pytest.approx(product / math.sqrt(own * wanted), rel=1e-5)
        difference = own + wanted - 2 * product
        assert one.relative_error == pytest.approx(math.sqrt(difference / wanted), rel=1e-3)
        assert 0.8 < one.cosine < 0.999


def test_a_layer_that_is_called_twice_has_two_rows():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(IN, IN)

        def forward(self, x):
            return self.layer(10 * self.layer(x))

    model, x = Twice(), torch.randn(16, IN)
    found = steelyard.compile(model, "mxfp8").measure([x])
    first, second = found.rows
    hidden = check_row(first, x, model.layer.weight) + model.layer.bias.detach().double()
    check_row(second, (10 * hidden).float(), model.layer.weight)
    assert [(row.layer, row.number, row.calls) for row in found.rows] == [("layer", 0, 1), ("layer", 1, 1)]
    assert first.operands[1] == second.operands[1]
    assert first.operands[0].amax != second.operands[0].amax


def test_shared_weights_are_measured_for_each_layer():
    model = nn.Sequential(nn.Linear(IN, IN), nn.ReLU(), nn.Linear(IN, IN))
    model[2].weight = model[0].weight
    x = torch.randn(16, IN)
    found = steelyard.compile(model, "mxfp8").measure([x])
    assert len(found.rows) == 2
    hidden = check_row(found.rows[0], x, model[0].weight) + model[0].bias.detach().double()
    check_row(found.rows[1], hidden.relu().float(), model[0].weight)
    first, second = (next(o for o in row.operands if o.role == "weight") for row in found.rows)
    assert first == second


def test_several_graphs():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(IN, IN), nn.Linear(IN, IN)

        def forward(self, x):
            x = self.first(x)
            torch._dynamo.graph_break()
            return self.second(x)

    model, x = Broken(), torch.randn(16, IN)
    found = steelyard.compile(model, "mxfp8").measure([x])
    assert [(row.layer, row.graph) for row in found.rows] == [("first", 0), ("second", 1)]
    hidden = check_row(found.rows[0], x, model.first.weight) + model.first.bias.detach().double()
    check_row(found.rows[1], hidden.float(), model.second.weight)


@pytest.mark.parametrize("blocks", ["auto", False])
def test_blocks(blocks):
    torch.manual_seed(0)
    model = Stack()
    net = steelyard.compile(model, "mxfp8", blocks=blocks)
    with net.measure() as measuring:
        net(make_input(0)).sum().backward()
    rows = rows_by_name(measuring.result)
    names = {f"blocks.{number}.{layer}" for number in range(LAYERS) for layer in ("up", "down")}
    assert {layer for layer, kind in rows if kind == "fprop"} == names
    errors = {row.relative_error for row in rows.values()}
    assert len(errors) == len(rows) == len(names) * 3
    weight = rows["blocks.2.up", "fprop"].operands[1]
    assert weight.amax == float(model.blocks[2].up.weight.abs().max())


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4", "fp8-delayed"])
def test_experts(name: str):
    torch.manual_seed(0)
    net = steelyard.compile(ExpertModel(), name)
    x = torch.randn(24, 48)
    # The last rows belong to no expert, and one expert has none.
    ends = torch.tensor([7, 7, 15, 20], dtype=torch.int32)
    with net.measure() as measuring:
        net(x, ends).square().sum().backward()
    rows = {row.kind: row for row in measuring.result.rows}
    operands = {operand.role: operand for operand in rows["fprop"].operands}
    assert operands["input"].elements == 20 * 48
    assert operands["input"].amax == float(x[:20].abs().max())
    assert operands["weight"].elements == EXPERTS * 40 * 48
    recipe = recipes.get(name).settled(trains=True)
    scale = {} if name != "fp8-delayed" else {"scale": torch.tensor(1.0)}
    weight = net._steelyard.model.experts.weight.detach()
    starts = [0, *ends.tolist()]
    groups = [(x[a:b], weight[e]) for e, (a, b) in enumerate(itertools.pairwise(starts))]
    pairs = [(decoded(g, recipe, "input", 0, **scale), decoded(w, recipe, "weight", 0, **scale)) for g, w in groups]
    found = torch.cat([left @ right.T for left, right in pairs])
    exact = torch.cat([g.double() @ w.double().T for g, w in groups])
    assert rows["fprop"].relative_error == pytest.approx(error_of(found, exact), rel=1e-3)
    assert error_of(torch.cat([left for left, _ in pairs]), x[:20]) == pytest.approx(
        operands["input"].relative_error, rel=1e-4
    )
    assert rows["wgrad"].gradient.cosine > 0.9
    assert isinstance(net.experts, Experts)


@pytest.mark.slow
def test_generation_with_a_quantized_cache():
    model, inputs = make_llama()
    net = steelyard.compile(model.eval(), "mxfp8", kv_cache="fp8")
    with net.measure() as measuring, torch.no_grad():
        made = net.generate(inputs["input_ids"][:1, :5], max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert made.max() < VOCABULARY
    found = measuring.result
    assert found.steps == 3
    down = [row for row in found.rows if row.layer == "model.layers.0.mlp.down_proj"]
    assert sum(row.calls for row in down) == 3
    assert all(row.shape[0] in (1, 5) for row in down)


def test_weights_that_are_stored_in_low_precision_have_no_error_of_their_own():
    model = make_model().eval()
    net = steelyard.compile(model, "mxfp8", weights="quantized")
    x = torch.randn(16, IN)
    with torch.no_grad():
        net(x)
    found = rows_by_name(net.measure([x]))["up", "fprop"]
    operands = {operand.role: operand for operand in found.operands}
    assert operands["weight"].snr_db is None
    assert operands["weight"].relative_error is None
    assert sum(operands["weight"].code_histogram) == IN * HIDDEN
    # What is left is the error of the input.
    assert 0 < found.relative_error < 0.04


def test_only_weights_are_quantized():
    net = steelyard.compile(make_model().eval(), recipes.get("mxfp8/none"))
    row = rows_by_name(net.measure([torch.randn(16, IN)]))["up", "fprop"]
    assert [operand.role for operand in row.operands] == ["weight"]
    assert row.relative_error > 0


def test_rows_in_high_precision_say_why():
    net = steelyard.compile(make_model(), "mxfp8", overrides={"down": None})
    row = rows_by_name(net.measure([torch.randn(16, IN)]))["down", "fprop"]
    assert row.reason == "override 'down' asks for high precision"
    assert (row.operands, row.relative_error) == ([], None)


def test_sizes_that_are_known_only_at_run_time():
    net = steelyard.compile(make_model(), "mxfp8")
    found = net.measure([torch.randn(size, IN) for size in (8, 16, 24)])
    dynamic = [row for row in found.rows if row.layer == "up" and row.calls == 2]
    assert [row.shape for row in dynamic] == [[24, HIDDEN, IN]]
    assert dynamic[0].flops == 2 * 24 * HIDDEN * IN


def test_values_that_are_not_finite():
    net = steelyard.compile(make_model(), "mxfp8")
    x = torch.randn(16, IN)
    x[0, 0], x[1, 1] = math.nan, math.inf
    found = net.measure([x])
    operand = rows_by_name(found)["up", "fprop"].operands[0]
    assert (operand.nan_count, operand.inf_count) == (1, 1)
    assert math.isnan(operand.amax)
    # Values count that are finite before and after: of a block with one that is not, none is left.
    after = decoded(x, recipes.get("mxfp8"), "input", 0)
    counted = x.isfinite() & after.isfinite()
    assert 0 < int(counted.sum()) < x.numel()
    assert operand.relative_error == pytest.approx(error_of(after[counted], x[counted]), rel=1e-4)
    assert math.isnan(found.output.relative_error)
    assert Measurement.from_json(found.to_json()).to_json() == found.to_json()


def test_no_rows_at_all():
    net = steelyard.compile(make_model(), "mxfp8")
    found = net.measure([torch.randn(0, IN)])
    row = rows_by_name(found)["up", "fprop"]
    assert row.relative_error is None
    assert row.operands[0].elements == 0
    assert row.operands[0].saturated_share == 0
    assert found.output.relative_error is None


def test_the_program_shows_what_is_measured():
    net = steelyard.compile(make_model(), "mxfp8")
    net.measure([torch.randn(16, IN)])
    measured = net._observing().backend
    (compilation,) = measured.compilations
    assert "scaled.measure_product" in compilation.text("quantized")
    assert "@measure_quantize_0" in compilation.text("lowered")


def test_parts_of_a_net_are_measured_too():
    net = steelyard.compile(make_model(), "mxfp8")
    with net.measure() as measuring, torch.no_grad():
        net.up(torch.randn(16, IN))
    assert [(row.layer, row.calls) for row in measuring.result.rows] == [("up", 1)]


def test_what_cannot_be_measured_is_refused():
    net = steelyard.compile(make_model(), "mxfp8")
    x = torch.randn(16, IN)
    with pytest.raises(RecipeError, match=r"batches must be a list of what the net is called with, as in \[x\]"):
        net.measure(x)
    with pytest.raises(RecipeError, match="every must be a number of calls, at least 1, got 0"):
        net.measure(every=0)
    with pytest.raises(RecipeError, match="nothing is measured yet"):
        _ = net.measure().result
    with pytest.raises(RecipeError, match="backward=True needs a loss"):
        net.measure([x], backward=True)
    with pytest.raises(RecipeError, match="loss must return a tensor of one number, got None"):
        net.measure([x], loss=lambda *_: None)
    with pytest.raises(UnsupportedModelError, match="up is a part of a net; measure the net"):
        net.up.measure([x])
    with pytest.raises(TargetError, match="must be compiled for the CPU, got target cuda:sm_100a"):
        steelyard.compile(make_model(), "mxfp8", target="cuda:sm_100a").measure([x])
    # A failed call leaves the net as it was.
    assert net._steelyard.backend.observing is None
