"""Nets for CUDA on a machine without a GPU: they compile, show their code, and refuse to run."""

import re

import pytest
import torch
from torch import nn

import steelyard
from steelyard.errors import SteelyardError, TargetError


def make_mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 40))


def modules_of(ptx: str) -> list[str]:
    return re.split(r"^(?=\.version)", ptx, flags=re.M)[1:]


def entries_of(ptx: str) -> list[str]:
    return re.findall(r"^\.visible \.entry (\w+)\(", ptx, flags=re.M)


def test_stages_of_the_kernels():
    net = steelyard.compile(make_mlp(), "mxfp8", target="cuda:sm_100a")
    with torch.no_grad():
        net.lower(torch.randn(24, 48))
    ptx, gpu, nvvm = (net.ir(stage) for stage in ("ptx", "gpu", "nvvm"))
    assert ptx.startswith(".version 8.6\n.target sm_100a\n")
    modules = modules_of(ptx)
    assert [len(entries_of(module)) for module in modules] == [1] * len(modules)
    assert sorted(entries_of(ptx)) == sorted(re.findall(r"gpu\.func @(\w+)", gpu))
    assert {name.split("_")[0] for name in entries_of(ptx)} == {"quantize", "scales", "epilogue"}
    assert all(f"llvm.func @{name}(" in nvvm for name in entries_of(ptx))
    assert "gpu.func" not in nvvm
    assert "func.func @forward" in gpu


def test_a_forward_and_its_backward_show_their_kernels():
    net = steelyard.compile(make_mlp(), "fp8-current", target="cuda:sm_90a").lower(torch.randn(16, 48))
    assert "func.func @backward" in net.ir("lowered")
    names = entries_of(net.ir("ptx"))
    assert any(name.startswith("amax_") for name in names)
    assert any("_col_e5m2" in name for name in names)  # gradients are in E5M2, and weights need their columns
    assert all(parameter.grad is None for parameter in net.parameters())


class Broken(nn.Module):
    """Two graphs: torch cannot capture the print between them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x):
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)


def test_a_model_of_several_graphs_is_lowered_whole():
    net = steelyard.compile(Broken(), "mxfp8", target="cuda:sm_90a")
    for training in (False, True):
        with torch.set_grad_enabled(training):
            net.lower(torch.randn(8, 32))
    layers = {(row.layer, row.kind) for row in net.explain().rows}
    assert layers == {(layer, kind) for layer in ("first", "second") for kind in ("fprop", "dgrad", "wgrad")} - {
        ("first", "dgrad")
    }
    assert "module @graph1" in net.ir("gpu")
    assert entries_of(net.ir("ptx"))


def test_dynamic_sizes_take_code_for_any_size():
    net = steelyard.compile(make_mlp(), "nvfp4", target="cuda:sm_100a")
    with torch.no_grad():
        net.lower(torch.randn(24, 48))
        net.lower(torch.randn(31, 48))
    assert "?" in net.ir("lowered")
    assert len(modules_of(net.ir("ptx"))) == len(entries_of(net.ir("ptx"))) > 0


def test_dump_has_the_kernels(tmp_path):
    net = steelyard.compile(nn.Linear(32, 32), "mxfp8", target="cuda:sm_90a")
    with torch.no_grad():
        net.lower(torch.randn(8, 32))
    names = [path.name for path in net.ir_dump(tmp_path)]
    assert names[-4:] == [
        "graph0_kernels.gpu.mlir",
        "graph0_kernels.nvvm.mlir",
        "graph0_kernels.ptx",
        "graph0_program.py",
    ]
    assert (tmp_path / "graph0_kernels.ptx").read_text() == net.ir("ptx")


def test_tensors_on_the_cpu_are_refused_with_a_remedy():
    net = steelyard.compile(make_mlp(), "mxfp8", target="cuda:sm_90a")
    x = torch.randn(8, 48)
    for _ in range(2):
        with pytest.raises(TargetError, match=r"compiled for cuda:sm_90a needs CUDA tensors.*\.to\(\"cuda\"\)"):
            net(x)
        net.lower(x)


def test_cuda_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    net = steelyard.compile(make_mlp(), "mxfp8", target="cuda")
    for call in (net, net.lower):
        with pytest.raises(TargetError, match=r"there must be a CUDA device.*compile for an architecture.*cuda:sm_90a"):
            call(torch.randn(8, 48))


@pytest.mark.parametrize("target", ["gpu", "cuda:sm_75", "cuda:0", "cuda:sm_90a+cublaslt", "cuda:sm_75+cublaslt12.6"])
def test_unknown_targets_are_refused(target):
    known = "cpu, cuda, cuda:sm_89, cuda:sm_90a, cuda:sm_100a, cuda:sm_103a, cuda:sm_120a, cuda:sm_121a"
    with pytest.raises(TargetError, match=f"target must be one of {known}, got '{re.escape(target)}'"):
        steelyard.compile(make_mlp(), "mxfp8", target=target)


def test_stages_of_cuda_are_no_stages_of_the_cpu():
    net = steelyard.compile(make_mlp(), "mxfp8").lower(torch.randn(8, 48))
    with pytest.raises(SteelyardError, match=r"stage must be one of traced, .*, lowered, tape, got 'ptx'"):
        net.ir("ptx")


def test_as_a_backend_of_torch_compile():
    compiled = torch.compile(make_mlp(), backend="steelyard", options={"recipe": "mxfp8", "target": "cuda:sm_75"})
    with pytest.raises(Exception, match="target must be one of"):
        compiled(torch.randn(8, 48))


class Shifted(nn.Module):
    """Has a constant, which torch makes an attribute of its graph."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 2)

    def forward(self, x):
        return self.linear(x) + torch.tensor([1.0, -1.0])


@pytest.mark.parametrize("training", [False, True])
def test_a_model_with_constants_is_lowered(training):
    net = steelyard.compile(Shifted(), "mxfp8", target="cuda:sm_100a")
    with torch.set_grad_enabled(training):
        net.lower(torch.randn(8, 32))
    assert ("func.func @backward" in net.ir("lowered")) == training
