"""Programs on tapes have the bits of programs that Python calls kernel by kernel."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from small_models import make_bert, make_llama, make_mlp
from torch import nn

import steelyard
from steelyard.errors import SteelyardError

MODELS = {"mlp": make_mlp, "llama": make_llama, "bert": make_bert}


@pytest.fixture(autouse=True)
def with_tapes(monkeypatch):
    """Whatever the environment says."""
    monkeypatch.delenv("STEELYARD_TAPE", raising=False)


@pytest.fixture
def without_tapes(monkeypatch):
    """Compiles a model into a function whose kernels Python calls one by one."""

    def compile_without(*arguments, **keywords):
        net = steelyard.compile(*arguments, **keywords)

        def call(*given, **named):
            with monkeypatch.context() as patch:
                patch.setenv("STEELYARD_TAPE", "0")
                return net(*given, **named)

        return call

    return compile_without


def tensors_of(output):
    values = output.to_tuple() if hasattr(output, "to_tuple") else output if isinstance(output, tuple) else (output,)
    return [value for value in values if isinstance(value, torch.Tensor)]


def count_tapes(net) -> int:
    return net.ir("tape").count("tape ")


@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp8", "fp8-delayed"])
@pytest.mark.parametrize("name", MODELS)
def test_inference_has_the_bits_of_python(name, recipe, without_tapes):
    model, arguments = MODELS[name]()
    plain = without_tapes(model, recipe)
    taped = steelyard.compile(model, recipe)
    with torch.no_grad():
        for _ in range(2):
            expected, found = plain(**arguments), taped(**arguments)
            assert all(map(torch.equal, tensors_of(expected), tensors_of(found)))
    assert count_tapes(taped)


def test_a_decoding_step_is_one_tape(without_tapes):
    """A cache grows by a token at a time: its size is known only at run time."""
    model, arguments = make_llama()
    results, nets = [], (without_tapes(model, "nvfp4"), steelyard.compile(model, "nvfp4"))
    with torch.no_grad():
        for net in nets:
            output = net(**arguments, use_cache=True)
            logits = [output.logits]
            for token in (3, 5, 7, 9):
                output = net(torch.tensor([[token]] * len(output.logits)), past_key_values=output.past_key_values)
                logits.append(output.logits)
            results.append(logits)
    assert all(map(torch.equal, *results))
    # What torch computes beside the tape: the embedding, the positions and their table.
    last = nets[1].ir("tape").split("// graph")[-1]
    assert last.count("gemm_") == 15
    assert last.count("attention_") == 2
    assert last.count("concatenate_") == 4


class Branches(nn.Module):
    """Ops of torch's between kernels, a result that is read twice, and a view of one that is returned."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(48, 48) for _ in range(3))

    def forward(self, x):
        a = self.first(x)
        b = self.second(a.transpose(0, 1)).cos()
        c = self.third(b + 1)
        return a, c.transpose(0, 1), self.second(a)[1:, :, ::2]


@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp8", "fp8-current", "fp8-block"])
def test_training_has_the_bits_of_python(recipe, without_tapes):
    torch.manual_seed(0)
    model = Branches()
    results = []
    for compiled in (without_tapes(model, recipe), steelyard.compile(model, recipe)):
        model.zero_grad()
        torch.manual_seed(1)
        x = torch.randn(6, 7, 48, requires_grad=True)
        outputs = compiled(x)
        sum(output.square().sum() for output in outputs).backward()
        results.append([*outputs, x.grad, *(parameter.grad for parameter in model.parameters())])
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp8"])
def test_sizes_known_only_at_run_time(recipe, without_tapes):
    model = Branches().eval()
    plain, taped = without_tapes(model, recipe), steelyard.compile(model, recipe)
    with torch.no_grad():
        for tokens in (3, 8, 31, 1, 64):
            x = torch.randn(4, tokens, 48)
            assert all(map(torch.equal, plain(x), taped(x)))
    assert "n0" in taped.ir("tape") or "rows(" in taped.ir("tape")


def test_calls_of_many_threads():
    model = Branches().eval()
    net = steelyard.compile(model, "nvfp4")
    inputs = [torch.randn(4, 9, 48) for _ in range(8)]
    with torch.no_grad():
        expected = [net(x) for x in inputs]

    def check(number):
        with torch.no_grad():
            return all(map(torch.equal, net(inputs[number % 8]), expected[number % 8]))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(check, range(200)))


def test_a_tape_prints_its_steps():
    model, arguments = make_mlp()
    net = steelyard.compile(model, "mxfp8")
    with torch.no_grad():
        net(**arguments)
    text = net.ir("tape")
    heading, *steps = text.splitlines()
    assert heading.startswith("// graph0 @forward, tape 0: 6 steps; takes tensor t0, ")
    assert "quantize_0(t0) -> t1: 5x37 uint8 in arena 0, t2: 5x2 uint8 in arena 192" in steps[0]
    assert "gemm_2" in steps[-1]
    assert "5x10 float32 in caller 0" in steps[-1]
    with pytest.raises(SteelyardError, match="look at stage lowered by layer"):
        net.ir("tape", layer="0")
