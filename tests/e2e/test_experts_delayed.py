"""Delayed scales of experts against a loop in NumPy that trains each expert as a layer of its own."""

import ml_dtypes
import numpy as np
import pytest
import torch
from expert_models import EXPERTS, IN, OUT, Model
from gemm_calls import read_groups

import steelyard
from steelyard.errors import StateError
from steelyard.ir.kernel_calls import GroupedGemmCall
from steelyard.recipes import DelayedScaling
from steelyard.runtime.cpu import bound

ROWS, LENGTH = 24, 3
ENDS = ([5, 5, 18, 21], [0, 9, 9, 24], [8, 8, 8, 8], [0, 0, 0, 0], [1, 2, 23, 23], [24, 24, 24, 24])
"""One list per step. Experts have rows in some steps and none in others; rows behind the last group are of none."""
LARGEST = {"input": 448.0, "weight": 448.0, "grad_output": 57344.0}
DTYPES = {"input": ml_dtypes.float8_e4m3fn, "weight": ml_dtypes.float8_e4m3fn, "grad_output": ml_dtypes.float8_e5m2}


class Layer:
    """The delayed state of one role of one expert."""

    def __init__(self, role: str):
        self.role, self.scale, self.history = role, np.float32(1), np.zeros(LENGTH, np.float32)

    def encode(self, x: np.ndarray) -> np.ndarray:
        scaled = (x * self.scale).clip(-LARGEST[self.role], LARGEST[self.role])
        return scaled.astype(DTYPES[self.role]).view(np.uint8)

    def update(self, x: np.ndarray) -> None:
        amax = np.abs(x).max(initial=np.float32(0))
        if amax == 0:
            return
        self.history[0] = amax
        largest = self.history.max()
        self.history = np.append(self.history[1:], amax)
        self.history[0] = 0
        self.scale = np.float32(LARGEST[self.role]) / largest


@pytest.fixture
def products(monkeypatch):
    """The kind of each product of experts that a program runs, and the copies of its operands."""
    found = []

    def recording(call, quantizers):
        run, allocate = original(call, quantizers)
        if not isinstance(call, GroupedGemmCall):
            return run, allocate

        def recorded(*values):
            run(*values)
            found.append((call.kind, *read_groups(call, values)))

        return recorded, allocate

    original = bound.bind
    # Calls on a tape are seen by no Python.
    monkeypatch.setenv("STEELYARD_TAPE", "0")
    monkeypatch.setattr(bound, "bind", recording)
    return found


def rows_of(x: torch.Tensor, ends: list[int]) -> list[np.ndarray]:
    return [x[start:end].numpy() for start, end in zip([0, *ends], ends, strict=False)]


def assert_codes(copies, layers, operands) -> None:
    for copy, layer, operand in zip(copies, layers, operands, strict=True):
        codes = layer.encode(operand)
        np.testing.assert_array_equal(copy.codes.numpy(), codes.T if copy.columnwise else codes)
        assert copy.scales.numpy() == np.float32(1) / layer.scale


def assert_state(net, layers: dict[str, list[Layer]]) -> None:
    state = net.state_dict()
    for role, own in layers.items():
        name = f"_steelyard.experts.weight.{role}"
        np.testing.assert_array_equal(state[f"{name}.scale"].numpy(), [layer.scale for layer in own])
        histories = np.stack([layer.history for layer in own], axis=1)
        np.testing.assert_array_equal(state[f"{name}.amax_history"].numpy(), histories)


def test_each_expert_is_a_layer_of_its_own(products):
    torch.manual_seed(0)
    model = Model()
    net = steelyard.compile(model, DelayedScaling(amax_history_len=LENGTH))
    layers = {role: [Layer(role) for _ in range(EXPERTS)] for role in LARGEST}
    for step, ends in enumerate(ENDS):
        x = (torch.randn(ROWS, IN) * (4.0, 0.5, 1.0, 9.0, 0.1, 2.0)[step]).requires_grad_()
        dy = torch.randn(ROWS, OUT) * (1.0, 0.01, 3.0, 1.0, 0.1, 1.0)[step]
        # The first expert's values are the largest by far.
        x.data[: ends[0]] *= 50
        weights = list(model.experts.weight.detach().clone().numpy())
        net(x, torch.tensor(ends, dtype=torch.int32)).backward(dy)
        operands = {"input": rows_of(x.detach(), ends), "weight": weights, "grad_output": rows_of(dy, ends)}
        assert {kind for kind, *_ in products} == {"fprop", "dgrad", "wgrad"}
        roles = {"fprop": ("input", "weight"), "dgrad": ("grad_output", "weight"), "wgrad": ("grad_output", "input")}
        for kind, *copies in products:
            for role, own in zip(roles[kind], copies, strict=True):
                assert_codes(own, layers[role], operands[role])
        for role, own in layers.items():
            for layer, operand in zip(own, operands[role], strict=True):
                layer.update(operand)
        assert_state(net, layers)
        products.clear()
        with torch.no_grad():
            model.experts.weight -= 0.1 * model.experts.weight.grad
            model.experts.weight[step % EXPERTS] *= 3
        model.experts.weight.grad = None
    # The scales of experts have gone their own ways.
    assert all(len({float(layer.scale) for layer in own}) == EXPERTS for own in layers.values())


def own_algorithm(history: torch.Tensor) -> torch.Tensor:
    assert history.shape == (LENGTH,)
    return 2 * history.max()


def test_a_users_algorithm_picks_for_each_expert():
    torch.manual_seed(0)
    recipe = DelayedScaling(amax_history_len=LENGTH, amax_compute_algo=own_algorithm)
    net = steelyard.compile(Model(), recipe)
    x, ends = torch.randn(ROWS, IN, requires_grad=True), ENDS[0]
    net(x, torch.tensor(ends, dtype=torch.int32)).sum().backward()
    scales = net.state_dict()["_steelyard.experts.weight.input.scale"]
    expected = [448 / (2 * np.abs(rows).max()) if len(rows) else 1.0 for rows in rows_of(x.detach(), ends)]
    np.testing.assert_array_equal(scales.numpy(), np.float32(expected))


def test_nan_is_no_part_of_a_scale():
    torch.manual_seed(0)
    net = steelyard.compile(Model(), DelayedScaling(amax_history_len=LENGTH))
    x, ends = torch.randn(ROWS, IN), torch.tensor(ENDS[0], dtype=torch.int32)
    net(x.requires_grad_(), ends).sum().backward()
    before = net.state_dict()["_steelyard.experts.weight.input.scale"].clone()
    broken = x.detach().clone()
    broken[0, 0] = torch.nan
    net(broken.requires_grad_(), ends).sum().backward()
    state = net.state_dict()
    assert torch.equal(state["_steelyard.experts.weight.input.scale"], before)
    assert state["_steelyard.experts.weight.input.amax_history"][-1].isnan().tolist() == [True, False, False, False]


def test_state_is_saved_and_loaded():
    torch.manual_seed(0)
    recipe = DelayedScaling(amax_history_len=LENGTH)
    x, ends = torch.randn(ROWS, IN), torch.tensor(ENDS[0], dtype=torch.int32)
    net = steelyard.compile(Model(), recipe)
    net(x * 7, ends).sum().backward()
    saved = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    other = steelyard.compile(Model(), recipe)
    other.load_state_dict(saved)
    with torch.no_grad():
        assert torch.equal(other(x, ends), net(x, ends))
    assert all(torch.equal(tensor, saved[name]) for name, tensor in other.state_dict().items())
    name = "_steelyard.experts.weight.input.scale"
    for wrong, message in (
        (torch.ones(3), r"must have the shape \(4,\), got torch.float32 of shape \(3,\)"),
        (torch.ones(()), r"must have the shape \(4,\), got torch.float32 of shape \(\)"),
        (torch.tensor([1.0, 0.0, 1.0, 1.0]), "must be finite scales above 0, got 0.0"),
    ):
        with pytest.raises(StateError, match=message):
            other.load_state_dict(saved | {name: wrong})


@torch.no_grad()
def test_quantized_weights_keep_the_scale_of_each_expert():
    torch.manual_seed(0)
    x, ends = torch.randn(ROWS, IN), torch.tensor(ENDS[0], dtype=torch.int32)
    model = Model().eval()
    scales = torch.tensor([16.0, 3.0, 100.0, 7.0])
    loaded = {**model.state_dict(), "_steelyard.experts.weight.weight.scale": scales}
    values, results = model.experts.weight.detach().clone(), []
    for weights in ("cached", "quantized"):
        net = steelyard.compile(model, "fp8-delayed", weights=weights)
        net.load_state_dict(loaded)
        results.append(net(x, ends))
    assert torch.equal(*results)
    stack = model.experts.weight
    for expert, (scale, matrix) in enumerate(zip(scales.numpy(), values.numpy(), strict=True)):
        codes = (matrix * scale).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn)
        np.testing.assert_array_equal(stack[expert].dequantize().numpy(), codes.astype(np.float32) * (1 / scale))
    saved = net.state_dict()
    assert torch.equal(saved["experts.weight.scale"], scales)
    other = steelyard.compile(Model().eval(), "fp8-delayed", weights="quantized")
    other(x, ends)
    other.load_state_dict(saved)
    assert torch.equal(other(x, ends), results[0])
