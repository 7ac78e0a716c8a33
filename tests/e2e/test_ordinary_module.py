"""A net is an ordinary module: what torch and libraries do with modules works, or is refused with the reason."""

import copy
import inspect
import types

import pytest
import torch
from small_models import make_llama, make_mlp, quantized_layers
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import steelyard
from steelyard.errors import UnsupportedModelError


class Scaled(nn.Module):
    """A forward with a keyword that libraries can find in its signature."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(40, 48)
        self.second = nn.Linear(48, 24)

    def forward(self, x, scale: float = 1.0):
        return self.second(torch.relu(self.first(x))) * scale


X = torch.randn(6, 40, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def model():
    return Scaled().eval()


@pytest.fixture
def net(model):
    return steelyard.compile(model, "mxfp8")


@pytest.fixture
def expected(model):
    """The quantized result, of a net that nothing else has touched."""
    with torch.no_grad():
        return steelyard.compile(model, "mxfp8")(X)


def test_forward_is_a_method_with_the_signature_of_the_model(model, net):
    assert inspect.isfunction(type(net).forward)
    assert inspect.signature(type(net).forward) == inspect.signature(Scaled.forward)
    assert inspect.ismethod(net.forward)
    assert net.forward.__self__ is net
    assert inspect.signature(net.forward) == inspect.signature(model.forward)


def test_an_instance_with_a_forward_of_its_own_shows_its_signature(model, net):
    model.forward = lambda x, times: x * times
    assert list(inspect.signature(net.forward).parameters) == ["x", "times"]


@pytest.mark.parametrize("is_method", [True, False])
def test_a_wrapped_forward_calls_the_program_and_leaves_the_model_alone(is_method, model, net, gemm_calls):
    if is_method:
        net.forward = types.MethodType(torch.autocast("cpu", torch.bfloat16)(net.forward.__func__), net)
    else:
        net.forward = torch.autocast("cpu", torch.bfloat16)(net.forward)
    with torch.no_grad():
        assert net(X).dtype == torch.bfloat16
        assert len(gemm_calls) == 2
        assert model(X).dtype == torch.float32
        assert copy.deepcopy(net)(X).dtype == torch.bfloat16
        assert len(gemm_calls) == 4
    del net.forward
    with torch.no_grad():
        assert net(X).dtype == torch.float32
    with pytest.raises(AttributeError):
        del net.forward


def test_the_class_keeps_its_name_and_the_net_prints_as_compiled(net, tmp_path):
    assert type(net).__name__ == "Scaled"
    assert repr(net).startswith("CompiledScaled(")
    llama, _ = make_llama()
    steelyard.compile(llama, "mxfp8").save_pretrained(tmp_path)
    assert llama.config.architectures == ["LlamaForCausalLM"]
    assert type(llama).from_pretrained(tmp_path).config.architectures == ["LlamaForCausalLM"]


def test_compile_of_a_net_changes_neither_the_net_nor_the_model(model, net, expected):
    with pytest.warns(UserWarning, match=r"net.compile\(\) has no effect"):
        net.compile(backend="eager")
    assert model._compiled_call_impl is None
    with torch.no_grad():
        assert torch.equal(net(X), expected)


def test_a_model_that_is_compiled_by_torch_is_quantized_all_the_same(model, expected, gemm_calls):
    model.compile(backend="eager")
    net = steelyard.compile(model, "mxfp8")
    with torch.no_grad():
        assert torch.equal(net(X), expected)
    assert len(gemm_calls) == 2


@pytest.mark.parametrize("around", ["net", "module", "part"])
def test_torch_compile_around_a_net_runs_its_programs(around, net, expected, gemm_calls):
    with torch.no_grad():
        if around == "net":
            assert torch.equal(torch.compile(net, backend="eager")(X), expected)
        elif around == "module":
            assert torch.equal(torch.compile(nn.Sequential(nn.Identity(), net), backend="eager")(X), expected)
        else:
            torch.compile(lambda x: net.second(net.first(x)), backend="eager")(X)
    assert len(gemm_calls) == 2


def test_a_full_graph_around_a_net_is_refused_with_the_reason(net):
    with pytest.raises(torch._dynamo.exc.Unsupported, match="leave out fullgraph=True"):
        torch.compile(net, backend="eager", fullgraph=True)(X)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"give torch\.export the model that was compiled"):
        torch.export.export(net, (X,), strict=True)


@pytest.mark.parametrize(
    ("tool", "use"),
    [
        ("torch.export", lambda net: torch.export.export(net, (X,))),
        ("torch.fx", torch.fx.symbolic_trace),
        ("torch.fx", lambda net: make_fx(net)(X)),
        ("torch.jit.script", torch.jit.script),
        ("torch.jit.trace", lambda net: torch.jit.trace(net, (X,))),
    ],
)
def test_a_tool_that_takes_plain_models_is_refused_by_name(tool, use, model, net):
    with pytest.raises(UnsupportedModelError, match=f"{tool} takes a module whose forward is made of torch's ops"):
        use(net)
    if tool != "torch.jit.script":
        use(model)


def test_hooks_registered_after_the_first_call_fire_until_they_are_removed(model, net, expected):
    seen = []
    net(X)
    handles = [
        model.first.register_forward_hook(lambda module, inputs, output: seen.append("forward")),
        net.second.register_forward_pre_hook(lambda module, inputs: seen.append("before")),
        net.second.register_full_backward_hook(lambda module, inputs, outputs: seen.append("backward")),
    ]
    result = net(X.clone().requires_grad_())
    assert seen == ["forward", "before"]
    result.sum().backward()
    assert seen == ["forward", "before", "backward"]
    for handle in handles:
        handle.remove()
    assert torch.equal(net(X), expected)
    assert len(seen) == 3


def test_a_hook_that_changes_a_result_changes_the_next_call(model, net, expected):
    with torch.no_grad():
        net(X)
        with model.second.register_forward_hook(lambda module, inputs, output: output + 1):
            assert torch.equal(net(X), expected + 1)
        assert torch.equal(net(X), expected)


class Guarded(nn.Module):
    """A setter that reads attributes, as those of nn.LSTM and of some libraries do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.names = []
        self.linear = nn.Linear(40, 24)

    def __setattr__(self, name, value):
        if name != "names":
            self.names.append(name)
        super().__setattr__(name, value)

    def forward(self, x):
        return self.linear(x)


def test_a_setter_that_reads_attributes(gemm_calls):
    net = steelyard.compile(Guarded(), "mxfp8")
    with torch.no_grad():
        net(X)
    net.extra = 1
    assert net.names[-1] == "extra"
    assert len(gemm_calls) == 1


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.cells = kind(40, 32, batch_first=True)
        self.head = nn.Linear(32, 24)

    def forward(self, x):
        return self.head(self.cells(x)[0])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_model_with_a_recurrent_layer(kind, gemm_calls):
    model = Recurrent(kind)
    net = steelyard.compile(model, "mxfp8")
    with torch.no_grad():
        got = net(X[None])
        assert (got - model(X[None])).norm() < 0.1 * model(X[None]).norm()
    assert quantized_layers(net) == ["head"]


def test_an_mlp_of_a_class_that_torch_defines(gemm_calls):
    model, arguments = make_mlp()
    net = steelyard.compile(model, "mxfp8")
    assert type(net).__name__ == "Sequential"
    with torch.no_grad():
        net(**arguments)
    assert len(gemm_calls) == 3
