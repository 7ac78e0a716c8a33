"""Compiled models, forward and backward, on the mock GPU: they give the bytes of the CPU target."""

import copy
import itertools
import re
import shutil

import pytest
import torch
from mock_gpu import mock_gpu, reference_gemms
from torch import nn

import steelyard
from steelyard.errors import NonFiniteError, TargetError
from steelyard.recipes import Float8CurrentScaling, NVFP4BlockScaling
from steelyard.targets.architectures import TARGETS

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler to build the mock with")


@pytest.fixture(autouse=True)
def _fresh_capture():
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    """A block of a GPT: odd sizes, so that native GEMMs are padded."""

    def __init__(self, width: int = 40, heads: int = 2):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 72), nn.Linear(72, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attention = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attention.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


def make_mlp(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(50, 70), nn.GELU(), nn.Linear(70, 24)).to(dtype), torch.randn(21, 50).to(dtype)


def make_block(dtype=torch.float32):
    torch.manual_seed(0)
    return Block().to(dtype), torch.randn(2, 9, 40).to(dtype)


MODELS = {"mlp": make_mlp, "block": make_block}
RECIPES = ("fp8-delayed", "fp8-current", "fp8-row", "fp8-block", "mxfp8", "mxfp4", "nvfp4")
MIXED = (
    "fp8-row/none",
    "mxfp4/none",
    "nvfp4/none",
    "nvfp4/mxfp8",
    "mxfp4/mxfp8",
    "nvfp4/fp8-row",
    "fp8-row/fp8-current",
)
"""Formats of weights and of activations."""
ALL = tuple(itertools.product(MODELS, (*RECIPES, *MIXED), TARGETS))

FAST = (
    ("mlp", "fp8-delayed", "sm_90a"),
    ("mlp", "fp8-current", "sm_100a"),
    ("mlp", "mxfp8", "sm_100a"),
    ("mlp", "nvfp4", "sm_100a"),
    ("block", "mxfp8", "sm_90a"),
)


def train(model: nn.Module, x: torch.Tensor, recipe: str, target: str, steps: int) -> dict[str, torch.Tensor]:
    """The results of some training steps: outputs, gradients, parameters and state."""
    torch.manual_seed(7)
    net = steelyard.compile(copy.deepcopy(model), recipe, target=target)
    x = x.clone().requires_grad_()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    found = {}
    for step in range(steps):
        optimizer.zero_grad()
        x.grad = None
        y = net(x)
        y.float().square().sum().backward()
        found |= {f"y{step}": y.detach(), f"dx{step}": x.grad}
        found |= {f"{name}.grad{step}": p.grad.clone() for name, p in net.named_parameters()}
        optimizer.step()
    return found | {name: tensor.clone() for name, tensor in net.state_dict().items()}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    different = [name for name in expected if not torch.equal(found[name], expected[name])]
    assert not different


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("name", "recipe", "target"),
    [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in ALL if case not in FAST)],
)
def test_training_leaves_the_bytes_of_the_cpu(monkeypatch, library, name, recipe, target):
    model, x = MODELS[name]()
    # A second step reads weights that were written, and state that was updated.
    steps = 2 if name == "mlp" or recipe == "fp8-delayed" else 1
    with reference_gemms(monkeypatch):
        expected = train(model, x, recipe, "cpu", steps)
    torch._dynamo.reset()
    with mock_gpu(monkeypatch, library, target) as launcher:
        found = train(model, x, recipe, f"cuda:{target}", steps)
    assert launcher.launches
    assert_same(found, expected)


@pytest.mark.parametrize(
    ("recipe", "target"),
    [
        (Float8CurrentScaling(input_scales={"*": 0.004}), "sm_90a"),
        (NVFP4BlockScaling(input_scales={"0": 0.0004}, weight_tiles=False), "sm_100a"),
    ],
    ids=["fp8", "nvfp4"],
)
def test_static_scales_leave_the_bytes_of_the_cpu(monkeypatch, library, recipe, target):
    """Native products with a scale that is given; what saturates is counted on the GPU."""
    model, x = make_mlp()

    def run(target):
        net = steelyard.compile(copy.deepcopy(model).eval(), recipe, target=target)
        with torch.no_grad():
            found = {"first": net(x), "second": net(x)}
        return found | {name: tensor.clone() for name, tensor in net.state_dict().items()}

    with reference_gemms(monkeypatch):
        expected = run("cpu")
    torch._dynamo.reset()
    with mock_gpu(monkeypatch, library, target):
        assert_same(run(f"cuda:{target}"), expected)
    assert expected["_steelyard.0.input.saturated"] > 0


def test_what_is_shown_is_what_runs(monkeypatch, library):
    model, x = make_mlp()
    net = steelyard.compile(model, "mxfp8", target="cuda:sm_100a")
    with mock_gpu(monkeypatch, library, "sm_100a") as launcher:
        net(x).sum().backward()
    shown = [f".version{text}".strip() for text in net.ir("ptx").split(".version")[1:]]
    assert sorted(text[text.index(".version") :].strip() for text in launcher.driver.texts) == sorted(shown)


@pytest.mark.every(3)
@pytest.mark.parametrize("recipe", ["mxfp8", "nvfp4", "fp8-row", "mxfp4/none"])
def test_sizes_known_only_at_run_time(monkeypatch, library, recipe):
    model, _ = make_mlp()

    def run(target):
        torch.manual_seed(1)
        net = steelyard.compile(copy.deepcopy(model), recipe, target=target)
        found = {}
        for tokens in (21, 33):
            x = torch.randn(tokens, 50)
            torch._dynamo.mark_dynamic(x, 0)
            y = net(x)
            y.square().sum().backward()
            found[f"y{tokens}"] = y.detach()
        assert "?" in net.ir("lowered")
        return found | {name: p.grad for name, p in net.named_parameters()}

    with reference_gemms(monkeypatch):
        expected = run("cpu")
    torch._dynamo.reset()
    with mock_gpu(monkeypatch, library, "sm_100a"):
        assert_same(run("cuda:sm_100a"), expected)


def test_inputs_may_lie_in_memory_in_any_way(monkeypatch, library):
    """They are put in order once, so that launches are the planned ones."""
    model, _ = make_mlp()
    x = torch.randn(24, 64)
    model[0] = nn.Linear(64, 70)
    shifted = torch.empty(24 * 64 + 1)[1:].view(24, 64).copy_(x)
    assert shifted.data_ptr() % 16 == 4
    views = [x, x.t().contiguous().t(), torch.cat((x, x), dim=1)[:, :64], shifted, torch._neg_view(-x)]
    net = steelyard.compile(model, "mxfp8", target="cuda:sm_100a")
    found = []
    with mock_gpu(monkeypatch, library, "sm_100a") as launcher, torch.no_grad():
        for view in views:
            launcher.launches.clear()
            y = net(view)
            found.append((y, [(launch.kernel, launch.blocks) for launch in launcher.launches[-4:]]))
    assert all(torch.equal(y, found[0][0]) for y, _ in found)
    assert all(launches == found[0][1] for _, launches in found)
    assert len(found[0][1]) == 4


def test_attention_is_emulated(monkeypatch, library):
    model, x = make_block()

    def run(target):
        own = copy.deepcopy(model)
        net = steelyard.compile(own, "mxfp8", target=target, attention=True)
        y = net(x)
        y.square().sum().backward()
        return {"y": y} | {name: parameter.grad for name, parameter in own.named_parameters()}, net

    expected, _ = run("cpu")
    torch._dynamo.reset()
    with mock_gpu(monkeypatch, library, "sm_90a"):
        found, net = run("cuda:sm_90a")
    # torch makes one batch of 2 samples and 2 heads.
    assert re.search(r"batch_dims = 1 .* scaled.device = \"cuda\", scaled.kernel = \"gemm\"", net.ir("lowered"))
    # These sums are the CPU's own: last bits differ, and may flip a code.
    exact = model(x)
    exact.square().sum().backward()
    precise = {"y": exact} | {name: parameter.grad for name, parameter in model.named_parameters()}
    assert found.keys() == precise.keys()
    for name, value in precise.items():
        assert (found[name] - expected[name]).norm() <= 0.25 * (expected[name] - value).norm(), name


@pytest.mark.every(2)
@pytest.mark.parametrize("recipe", ["fp8-current", "fp8-row", "nvfp4/none"])
def test_bf16_models(monkeypatch, library, recipe):
    model, x = make_mlp(torch.bfloat16)
    with reference_gemms(monkeypatch):
        expected = train(model, x, recipe, "cpu", 1)
    torch._dynamo.reset()
    with mock_gpu(monkeypatch, library, "sm_90a"):
        assert_same(train(model, x, recipe, "cuda:sm_90a", 1), expected)


def test_cuda_is_the_device_that_the_tensors_are_on(monkeypatch, library):
    model, x = make_mlp()
    net = steelyard.compile(model, "fp8-current", target="cuda")
    with mock_gpu(monkeypatch, library, "sm_120a"), torch.no_grad():
        net(x)
    assert ".target sm_120a" in net.ir("ptx")


def test_another_architecture_is_refused(monkeypatch, library):
    model, x = make_mlp()
    net = steelyard.compile(model, "fp8-current", target="cuda:sm_90a")
    with (
        mock_gpu(monkeypatch, library, "sm_100a"),
        pytest.raises(TargetError, match=r"such a GPU, got sm_100a \(cpu\)"),
    ):
        net(x)


def test_state_stays_where_it_is(monkeypatch, library):
    """Replays of a CUDA graph read it at the same address."""
    model, x = make_mlp()
    net = steelyard.compile(model, "fp8-delayed", target="cuda:sm_90a")
    with mock_gpu(monkeypatch, library, "sm_90a"):
        net(x).sum().backward()
        before = {name: (t.data_ptr(), t.clone()) for name, t in net.state_dict().items() if "_steelyard" in name}
        net(2 * x).sum().backward()
    after = net.state_dict()
    assert {name: after[name].data_ptr() for name in before} == {name: address for name, (address, _) in before.items()}
    assert any(not torch.equal(after[name], value) for name, (_, value) in before.items())


def test_values_that_are_not_finite_are_found(monkeypatch, library):
    model, x = make_mlp()
    x[3, 5] = float("inf")
    net = steelyard.compile(model, "mxfp8", target="cuda:sm_90a", check_finite=True)
    with mock_gpu(monkeypatch, library, "sm_90a"), pytest.raises(NonFiniteError, match="input of layer '0'"):
        net(x)


@pytest.mark.every(2)
@pytest.mark.parametrize(("recipe", "target"), [("fp8-delayed", "sm_90a"), ("nvfp4", "sm_100a")])
def test_two_forwards_before_their_backwards(monkeypatch, library, recipe, target):
    """A backward reads the state of its own step, though state is written in place."""
    model, x = make_mlp()

    def run(target):
        torch.manual_seed(3)
        net = steelyard.compile(copy.deepcopy(model), recipe, target=target)
        losses = [net(factor * x).square().sum() for factor in (1.0, 5.0)]
        for loss in losses:
            loss.backward()
        state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        return state | {f"{name}.grad": p.grad for name, p in net.named_parameters()}

    with reference_gemms(monkeypatch):
        expected = run("cpu")
    torch._dynamo.reset()
    with mock_gpu(monkeypatch, library, target):
        assert_same(run(f"cuda:{target}"), expected)
