"""Products of experts on the mock GPU: they give the bytes of the CPU target."""

import copy
import gc
import itertools
import shutil
import weakref

import pytest
import torch
from mock_gpu import mock_gpu, reference_gemms
from torch import nn

import steelyard
import steelyard.frontend.grouped_mm  # It defines the op.
from steelyard import recipes
from steelyard.errors import TargetError
from steelyard.runtime.cuda import groups
from steelyard.tensor import QuantizedStack

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler to build the mock with")

EXPERTS, ROWS = 4, 75
ENDS = torch.tensor([5, 5, 68, 72], dtype=torch.int32)
"""An expert without rows, one with more rows than a tile, and three rows of no expert."""
MIXED = ("nvfp4/none", "mxfp4/none", "mxfp4/mxfp8")
TARGETS = ("sm_89", "sm_90a", "sm_100a")


@pytest.fixture(autouse=True)
def _fresh_capture():
    yield
    torch._dynamo.reset()


class Experts(nn.Module):
    """Two products of each expert."""

    def __init__(self, dtype: torch.dtype, width: int = 48, hidden: int = 80):
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS, hidden, width).to(dtype))
        self.down = nn.Parameter(torch.randn(EXPERTS, width, hidden).to(dtype))

    def forward(self, x, ends):
        hidden = nn.functional.silu(multiply(x, self.up.transpose(-2, -1), ends))
        return multiply(hidden, self.down.transpose(-2, -1), ends)


def multiply(x, weight, ends):
    if x.dtype == torch.bfloat16:
        return nn.functional.grouped_mm(x, weight, offs=ends)
    return torch.ops.steelyard.grouped_mm(x, weight, ends)


def train(model: nn.Module, x: torch.Tensor, recipe, target: str) -> tuple[dict[str, torch.Tensor], list]:
    """The results of two steps, outputs, gradients, parameters and state, and the rows of the net."""
    torch.manual_seed(7)
    net = steelyard.compile(copy.deepcopy(model), recipe, target=target)
    x = x.clone().requires_grad_()
    found = {}
    for step in range(2):
        y = net(x, ENDS)
        y.float().square().sum().backward()
        found |= {f"y{step}": y.detach(), f"dx{step}": x.grad.clone()}
        found |= {f"{name}.grad{step}": p.grad.clone() for name, p in net.named_parameters()}
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.05 * parameter.grad
    rows = net.explain().rows
    assert all(row.is_quantized for row in rows if row.kind == "fprop")
    return found | {name: tensor.clone() for name, tensor in net.state_dict().items()}, rows


def count_reads(monkeypatch) -> list[int]:
    """Grows whenever the host reads where groups end."""
    read, reads = groups.read_ends, []

    def read_ends(ends: torch.Tensor) -> list[int]:
        reads.append(1)
        return read(ends)

    monkeypatch.setattr(groups, "read_ends", read_ends)
    return reads


FAST = (
    ("fp8-delayed", "bf16", "sm_90a"),
    ("nvfp4", "bf16", "sm_90a"),
)
ALL = itertools.product((*recipes.NAMES, *MIXED), ("bf16", "f32"), TARGETS)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("recipe", "dtype", "target"),
    [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in ALL if case not in FAST)],
)
def test_training_leaves_the_bytes_of_the_cpu(monkeypatch, library, recipe, dtype, target):
    torch.manual_seed(0)
    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    model, x = Experts(kind), torch.randn(ROWS, 48).to(kind)
    with reference_gemms(monkeypatch):
        expected, _ = train(model, x, recipe, "cpu")
    torch._dynamo.reset()
    with mock_gpu(monkeypatch, library, target) as launcher:
        reads = count_reads(monkeypatch)
        found, rows = train(model, x, recipe, f"cuda:{target}")
    assert launcher.launches
    # On other GPUs torch's own product of groups reads where they end, too.
    waiting = sum("the host reads" in row.reason for row in rows)
    assert len(reads) == 2 * waiting or (target == "sm_89" and len(reads) < 2 * waiting)
    assert found.keys() == expected.keys()
    assert not [name for name in expected if not torch.equal(found[name], expected[name])]


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "recipe", ["mxfp8", "nvfp4", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mxfp4", "nvfp4-4over6"))]
)
def test_blocks_are_multiplied_natively(monkeypatch, library, recipe):
    """Scales lie in tiles of each group's own; only the gradients of weights are decoded."""
    torch.manual_seed(0)
    model, x = Experts(torch.bfloat16, 64, 96), torch.randn(ROWS, 64).bfloat16()
    with reference_gemms(monkeypatch):
        expected, _ = train(model, x, recipe, "cpu")
    torch._dynamo.reset()
    with mock_gpu(monkeypatch, library, "sm_100a"):
        found, rows = train(model, x, recipe, "cuda:sm_100a")
    assert {row.kind for row in rows if "scaled_grouped_mm" in row.kernel} == {"fprop", "dgrad"}
    # A second level is rounded before it is multiplied, so that results in bf16 may be rounded the other way.
    most = 2.0**-7 if recipe.startswith("nvfp4") else 0.0
    for name, tensor in expected.items():
        wanted = tensor.double()
        assert ((found[name].double() - wanted).abs() <= most * wanted.abs()).all(), name


@pytest.mark.parametrize(
    "recipe", ["nvfp4", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mxfp8", "fp8-row"))]
)
def test_rows_known_only_at_run_time(monkeypatch, library, recipe):
    torch.manual_seed(0)
    model = Experts(torch.bfloat16)
    calls = [(75, ENDS), (40, torch.tensor([0, 33, 33, 40], dtype=torch.int32))]

    def run(target):
        torch.manual_seed(1)
        net = steelyard.compile(copy.deepcopy(model), recipe, target=target)
        found = {}
        for rows, ends in calls:
            x = torch.randn(rows, 48).bfloat16()
            torch._dynamo.mark_dynamic(x, 0)
            y = net(x, ends)
            y.float().square().sum().backward()
            found[f"y{rows}"] = y.detach()
        assert "?" in net.ir("lowered")
        return found | {name: p.grad for name, p in net.named_parameters()}

    with reference_gemms(monkeypatch):
        expected = run("cpu")
    torch._dynamo.reset()
    with mock_gpu(monkeypatch, library, "sm_90a"):
        found = run("cuda:sm_90a")
    assert not [name for name in expected if not torch.equal(found[name], expected[name])]


STORED = (("mxfp8", "bf16", "sm_100a"),)
ALL_STORED = itertools.product((*recipes.NAMES, *MIXED), ("bf16", "f32"), TARGETS)


@pytest.mark.parametrize(
    ("recipe", "dtype", "target"),
    [*STORED, *(pytest.param(*case, marks=pytest.mark.slow) for case in ALL_STORED if case not in STORED)],
)
@torch.no_grad()
def test_parameters_become_codes(monkeypatch, library, tmp_path, recipe, dtype, target):
    torch.manual_seed(0)
    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    model, x = Experts(kind).eval(), torch.randn(ROWS, 48).to(kind)
    plain = copy.deepcopy(model)
    with mock_gpu(monkeypatch, library, target) as launcher:
        expected = steelyard.compile(copy.deepcopy(model), recipe, target="cuda")(x, ENDS)
        torch._dynamo.reset()
        net = steelyard.compile(model, recipe, target="cuda", weights="quantized")
        gone = [weakref.ref(model.up), weakref.ref(model.down)]
        results = [net(x, ENDS), net(x, ENDS)]
        gc.collect()
        assert [reference() for reference in gone] == [None, None]
        assert isinstance(model.up, QuantizedStack)
        assert isinstance(model.down, QuantizedStack)
        launcher.launches.clear()
        results.append(net(x, ENDS))
        # Weights are not quantized again: a call quantizes what its two products are given.
        quantized = [launch for launch in launcher.launches if launch.kernel.name.startswith("quantize")]
        assert len(quantized) == (0 if recipe.endswith("/none") else 2)
        assert all(torch.equal(result, expected) for result in results)
        assert net.memory()["quantized_weights"] == 0
        torch.save(net.state_dict(), tmp_path / "state.pt")
        state = torch.load(tmp_path / "state.pt", weights_only=True)
    torch._dynamo.reset()
    with reference_gemms(monkeypatch):
        on_cpu = steelyard.compile(plain, recipe, weights="quantized")
        on_cpu.load_state_dict(state)
        assert torch.equal(on_cpu(x, ENDS), expected)


@torch.no_grad()
def test_what_saturates_is_counted_in_rows_of_experts(monkeypatch, library):
    torch.manual_seed(0)
    recipe = recipes.Float8CurrentScaling(input_scales={"*": 0.004})
    net = steelyard.compile(Experts(torch.bfloat16).eval(), recipe, target="cuda:sm_90a")
    x = torch.randn(ROWS, 48).bfloat16()
    with mock_gpu(monkeypatch, library, "sm_90a"):
        net(x, ENDS)
    saturated = (x.double() / 0.004).abs() > 448
    assert saturated[ENDS[-1] :].any()
    assert net.state_dict()["_steelyard.up.input.saturated"] == saturated[: ENDS[-1]].sum()


@torch.no_grad()
def test_no_rows_at_all(monkeypatch, library):
    net = steelyard.compile(Experts(torch.bfloat16), "fp8-current", target="cuda:sm_90a")
    with mock_gpu(monkeypatch, library, "sm_90a"):
        y = net(torch.randn(0, 48).bfloat16(), torch.zeros(EXPERTS, dtype=torch.int32))
    assert y.shape == (0, 48)


@torch.no_grad()
def test_a_mixture_of_experts(monkeypatch, library):
    """Routers stay in high precision, so that both targets choose the same experts."""
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    model, tokens = MixtralForCausalLM(config).eval(), torch.randint(0, 64, (1, 12))

    def run(target):
        net = steelyard.compile(copy.deepcopy(model), "mxfp8", target=target)
        logits = net(tokens).logits
        kernels = {row.kernel for row in net.explain().rows if "experts" in row.layer}
        return logits, kernels

    with reference_gemms(monkeypatch):
        expected, _ = run("cpu")
    torch._dynamo.reset()
    with mock_gpu(monkeypatch, library, "sm_100a"):
        found, kernels = run("cuda:sm_100a")
    assert kernels == {"cuda mx emulated in bf16 of 4 experts"}
    assert torch.equal(found, expected)


def test_what_the_host_must_read_is_refused_in_a_capture(monkeypatch):
    monkeypatch.setattr(groups, "is_capturing", lambda _: True)
    with pytest.raises(
        TargetError, match="must not be part of a CUDA graph if the host reads where groups of rows end"
    ):
        groups.multiply_one_by_one(torch.ones(3, 4), torch.ones(4, 2, 4), ENDS, torch.empty(3, 2))
