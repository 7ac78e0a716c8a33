"""`weights="quantized"` on a mock GPU: parameters become codes in the layout that its GEMMs read."""

import copy
import gc
import shutil
import weakref

import pytest
import torch
from mock_gpu import mock_gpu, reference_gemms
from torch import nn
from transformers.pytorch_utils import Conv1D

import steelyard
from steelyard.runtime.weights import Weights
from steelyard.targets.architectures import TARGETS
from steelyard.targets.gemm_paths import NATIVE, gemm_path, schemes_of
from steelyard.tensor import QuantizedTensor

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler to build the mock with")

CASES = [
    ("fp8-delayed", "sm_90a"),
    ("fp8-current", "sm_100a"),
    ("fp8-block", "sm_90a"),
    ("fp8-block", "sm_100a"),  # emulated
    ("fp8-row", "sm_89"),
    ("mxfp8", "sm_100a"),
    ("mxfp4", "sm_120a"),  # emulated
    ("mxfp4/none", "sm_90a"),  # emulated
    ("nvfp4", "sm_121a"),
    ("nvfp4", "sm_90a"),  # emulated
]


class Layers(nn.Module):
    """Sizes that fit, sizes that GEMMs pad, and a weight that is stored transposed."""

    def __init__(self):
        super().__init__()
        self.fitting = nn.Linear(128, 128)
        self.transposed = Conv1D(40, 128)
        self.ragged = nn.Linear(40, 24)

    def forward(self, x):
        return self.ragged(torch.relu(self.transposed(self.fitting(x))))


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def make() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Layers().eval(), torch.randn(16, 128)


def expected_of(monkeypatch, model: nn.Module, recipe: str, x: torch.Tensor) -> torch.Tensor:
    """What the CPU target computes with the same GEMM."""
    with reference_gemms(monkeypatch):
        found = steelyard.compile(copy.deepcopy(model), recipe)(x)
    torch._dynamo.reset()
    return found


@pytest.mark.every(13)
@pytest.mark.parametrize(("recipe", "target"), CASES, ids=lambda name: name)
def test_parameters_become_codes(recipe, target, monkeypatch, library):
    model, x = make()
    expected = expected_of(monkeypatch, model, recipe, x)
    with mock_gpu(monkeypatch, library, target) as gpu:
        net = steelyard.compile(model, recipe, target="cuda", weights="quantized")
        gone = [weakref.ref(layer.weight) for layer in (model.fitting, model.transposed, model.ragged)]
        first = net(x)
        gc.collect()
        assert [reference() for reference in gone] == [None] * 3
        weights = {name: p for name, p in model.named_parameters() if name.endswith("weight")}
        assert all(isinstance(weight, QuantizedTensor) for weight in weights.values())
        net(x)
        gpu.launches.clear()
        second = net(x)
        assert torch.equal(first, expected)
        assert torch.equal(second, expected)
        # Weights are neither quantized nor arranged again: a call quantizes what its three GEMMs are given.
        quantized = [launch for launch in gpu.launches if launch.kernel.name.startswith("quantize")]
        assert len(quantized) == (0 if recipe.endswith("/none") else 3)
        path = gemm_path("fprop", *schemes_of(steelyard.recipes.get(recipe), "fprop"), TARGETS[target])
        is_swizzled = path.path == NATIVE and "swizzle" in path.steps
        arranged = [launch for launch in gpu.launches if launch.kernel.name.startswith("scales_")]
        assert len(arranged) == (3 if is_swizzled else 0)
        assert model.fitting.weight._with_gemm_swizzled_scales == is_swizzled
        beside = net.memory()["quantized_weights"]
        assert (beside > 0) == (path.path == NATIVE)  # the two layers whose sizes are padded
        assert beside <= 3 * 128 * 128


def test_a_weight_that_fits_is_what_the_gemm_reads(monkeypatch, library):
    """The same memory: nothing is kept beside it."""
    model, x = make()
    with mock_gpu(monkeypatch, library, "sm_100a"):
        net = steelyard.compile(model, "mxfp8", target="cuda", weights="quantized")
        net(x)
        read = []
        get = Weights.get

        def record(self, weight, sources):
            parts = get(self, weight, sources)
            read.append((weight.parameter, parts))
            return parts

        monkeypatch.setattr(Weights, "get", record)
        net(x)
        parts = dict(read)["fitting.weight"]
        own = {part.data_ptr() for part in model.fitting.weight._parts()}
        assert {part.data_ptr() for part in parts} == own


@pytest.mark.every(8)
@pytest.mark.parametrize("recipe", ["fp8-delayed", "mxfp8", "nvfp4"])
def test_state_dicts_go_to_and_come_from_the_cpu(recipe, monkeypatch, library, tmp_path):
    model, x = make()
    plain = copy.deepcopy(model)
    expected = expected_of(monkeypatch, model, recipe, x)
    with mock_gpu(monkeypatch, library, "sm_100a"):
        net = steelyard.compile(model, recipe, target="cuda", weights="quantized")
        net(x)
        torch.save(net.state_dict(), tmp_path / "state.pt")
        torch._dynamo.reset()
        state = torch.load(tmp_path / "state.pt", weights_only=True)
        other = steelyard.compile(copy.deepcopy(plain), recipe, target="cuda", weights="quantized")
        other.load_state_dict(state)
        assert torch.equal(other(x), expected)
        assert torch.equal(other(x), expected)
    torch._dynamo.reset()
    with reference_gemms(monkeypatch):
        on_cpu = steelyard.compile(copy.deepcopy(plain), recipe, weights="quantized")
        on_cpu.load_state_dict(state)
        assert torch.equal(on_cpu(x), expected)


def test_codes_that_are_written_are_arranged_again(monkeypatch, library):
    """A ragged weight is kept as it is, and padded beside it."""
    model, x = make()
    other = copy.deepcopy(model)
    other.ragged.weight.mul_(-2)
    expected = expected_of(monkeypatch, other, "mxfp8", x)
    with mock_gpu(monkeypatch, library, "sm_100a"):
        nets = [steelyard.compile(one, "mxfp8", target="cuda", weights="quantized") for one in (model, other)]
        for net in nets:
            net(x)
        model.ragged.weight.copy_(other.ragged.weight)
        assert torch.equal(nets[0](x), expected)


def test_writes_past_torch_are_noticed_when_asked_to(monkeypatch, library):
    model, x = make()
    with mock_gpu(monkeypatch, library, "sm_100a"):
        net = steelyard.compile(model, "mxfp8", target="cuda", weights="quantized")
        net(x)
        assert not torch.equal(net(x), model.ragged.bias.expand(16, -1))
        model.ragged.weight._rowwise_data.data.zero_()  # which no version counts
        net.requantize()
        assert torch.equal(net(x), model.ragged.bias.expand(16, -1))


def test_a_model_on_the_cpu_is_only_looked_at():
    model, x = make()
    net = steelyard.compile(model, "mxfp8", target="cuda:sm_100a", weights="quantized").lower(x)
    assert not any(isinstance(parameter, QuantizedTensor) for parameter in model.parameters())
    assert "scaled.weight_form = {gemm = array<i64: 16, 32>" in net.ir("lowered")


def test_what_others_read_stays(monkeypatch, library):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(32, 64)
            self.head = nn.Linear(64, 32, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids):
            return self.head(self.embedding(ids))

    model = Tied()
    with mock_gpu(monkeypatch, library, "sm_100a"):
        net = steelyard.compile(model, "mxfp8", target="cuda", weights="quantized")
        net(torch.arange(7))
        (row,) = net.explain().rows
        assert row.stays == "aten.embedding reads its values too"
        assert not isinstance(model.head.weight, QuantizedTensor)
