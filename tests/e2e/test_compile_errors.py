import copy

import pytest
import torch
from small_models import make_mlp
from torch import nn
from torch.utils.checkpoint import checkpoint

import steelyard
from steelyard.errors import (
    ConstraintError,
    IRError,
    RecipeError,
    SteelyardError,
    SteelyardWarning,
    TargetError,
    UnsupportedModelError,
)


@pytest.fixture
def mlp():
    """A model and its input. After each test, the model must be unchanged."""
    model, arguments = make_mlp()
    x = arguments["input"]
    with torch.no_grad():
        before, state = model(x), copy.deepcopy(model.state_dict())
    attributes, model_class = set(vars(model)), type(model)
    yield model, x
    with torch.no_grad():
        assert torch.equal(model(x), before)
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert (set(vars(model)), type(model)) == (attributes, model_class)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_unknown_recipe_names_the_known_ones(mlp):
    with pytest.raises(RecipeError, match=r"fp8-current.*nvfp4.*'mxfp9'.*did you mean 'mxfp8'"):
        steelyard.compile(mlp[0], "mxfp9")


def test_unknown_recipe_of_an_override(mlp):
    with pytest.raises(RecipeError, match="got 'fp16'"):
        steelyard.compile(mlp[0], "mxfp8", overrides={"0": "fp16"})


@pytest.mark.parametrize("wrong", ["head", {3: None}, [("0", None)], 7])
def test_overrides_that_are_no_mapping_of_patterns(wrong, mlp):
    with pytest.raises(RecipeError, match=r'overrides must map patterns .* as in \{"lm_head": None\}, got '):
        steelyard.compile(mlp[0], "mxfp8", overrides=wrong)


@pytest.mark.parametrize("name", ["attention", "check_finite"])
def test_flags_that_are_no_flags(name, mlp):
    with pytest.raises(RecipeError, match=f"{name} must be True or False, got 'no'"):
        steelyard.compile(mlp[0], "mxfp8", **{name: "no"})


def test_nested_tensors_are_refused_by_name(mlp):
    model, x = mlp
    nested = torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged)
    with pytest.raises(UnsupportedModelError, match="must be plain tensors, got a NestedTensor"):
        steelyard.compile(model, "mxfp8")(nested)


def test_padded_nested_tensors_are_refused_by_name(mlp):
    model, x = mlp
    with pytest.raises(UnsupportedModelError, match="must be plain tensors, got a Tensor that is nested; pad it"):
        steelyard.compile(model, "mxfp8")(torch.nested.nested_tensor([x, x[:2]]))


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("kind", ["text", "torch-quantized"])
def test_a_call_that_fails_leaves_later_ones_quantized(kind, is_first):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 32)), torch.randn(8, 64)
    wrong = "x" if kind == "text" else torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    with torch.no_grad():
        expected = steelyard.compile(model, "nvfp4")(x)
        net = steelyard.compile(model, "nvfp4")
        if not is_first:
            net(x)
        with pytest.raises((TypeError, RuntimeError)):
            net(wrong)
        assert torch.equal(net(x), expected)
        assert not torch.allclose(expected, model(x), atol=1e-3)


def test_errors_of_the_model_leave_compiled_what_was():
    class Checked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 32)

        def forward(self, x):
            if x.isnan().any():
                raise ValueError("not a number")
            return self.layer(x)

    net, x = steelyard.compile(Checked(), "mxfp8"), torch.randn(8, 64)
    with torch.no_grad():
        expected = net(x)
        graphs = net._steelyard.backend.graphs
        for _ in range(3):
            with pytest.raises(ValueError, match="not a number"):
                net(x * float("nan"))
            assert torch.equal(net(x), expected)
    assert net._steelyard.backend.graphs == graphs


def test_a_hook_that_ends_each_call_by_an_error_compiles_once():
    class StopError(Exception):
        pass

    def stop(*_):
        raise StopError

    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 16))
    model[0].register_forward_hook(stop)
    net = steelyard.compile(model, "mxfp8")
    found = []
    for _ in range(3):
        with pytest.raises(StopError):
            net(torch.randn(8, 64))
        found.append(net._steelyard.backend.graphs)
    assert found[-1] == found[0]


def test_checkpointing_does_not_compile_again():
    net = steelyard.compile(nn.Sequential(nn.Linear(64, 32), nn.GELU()), "mxfp8")
    x = torch.randn(8, 64, requires_grad=True)
    for _ in range(3):
        checkpoint(net, x, use_reentrant=False).sum().backward()
    assert net._steelyard.backend.graphs == 1


def test_a_freed_tensor_is_refused_before_it_is_read():
    model, x = nn.Sequential(nn.Linear(64, 32)), torch.randn(8, 64)
    net = steelyard.compile(model, "mxfp8")
    with torch.no_grad():
        expected = net(x)
        freed = torch.randn(8, 64)
        freed.untyped_storage().resize_(0)
        for argument in (freed, torch._efficientzerotensor((8, 64))):
            with pytest.raises(ConstraintError, match="tensors must have memory of their own"):
                net(argument)
        assert torch.equal(net(x), expected)
        model[0].weight.untyped_storage().resize_(0)
        with pytest.raises(ConstraintError, match="tensors must have memory of their own"):
            net(x)


def test_a_call_with_a_sparse_tensor_warns_and_leaves_later_ones_quantized():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 32)), torch.randn(8, 64)
    net = steelyard.compile(model, "nvfp4")
    with torch.no_grad():
        expected = net(x)
        with pytest.warns(SteelyardWarning, match=r"a sparse tensor, which ran in high precision; use to_dense\(\)"):
            net(x.to_sparse())
        assert torch.equal(net(x), expected)


def test_override_that_matches_nothing_names_the_layers(mlp):
    model, x = mlp
    net = steelyard.compile(model, "mxfp8", overrides={"head": None})
    for _ in range(2):
        with pytest.raises(RecipeError, match=r"'head' matches no layer.*0, 2, 4"), torch.no_grad():
            net(x)


def test_override_that_matches_nothing_is_an_error_of_lower_too(mlp):
    model, x = mlp
    with pytest.raises(RecipeError, match=r"'layers\.\*' matches no layer"):
        steelyard.compile(model, "mxfp8", overrides={"layers.*": "nvfp4"}).lower(x)


@pytest.mark.parametrize("thing", [lambda x: x, nn.Linear, None, torch.zeros(3)])
def test_what_is_no_module_is_refused(thing):
    with pytest.raises(UnsupportedModelError, match=rf"nn\.Module, got {type(thing).__name__}"):
        steelyard.compile(thing, "mxfp8")


def test_compiled_twice(mlp):
    net = steelyard.compile(mlp[0], "mxfp8")
    with pytest.raises(UnsupportedModelError, match=r"compiled already.*net\.model"):
        steelyard.compile(net, "nvfp4")


def test_a_model_may_be_compiled_by_two_recipes(mlp, gemm_calls):
    model, x = mlp
    nets = [steelyard.compile(model, recipe) for recipe in ("mxfp8", "nvfp4")]
    with torch.no_grad():
        for net in nets:
            net(x)
    assert [a.scheme.family for a, *_ in gemm_calls] == ["mx"] * 3 + ["nvfp4"] * 3


def test_unknown_target(mlp):
    with pytest.raises(TargetError, match=r"one of cpu.*got 'tpu'"):
        steelyard.compile(mlp[0], "mxfp8", target="tpu")


@pytest.mark.parametrize(
    "ask", [lambda net: net.ir("lowered"), lambda net: net.explain(), lambda net: net.ir_dump("x")]
)
def test_inspection_before_the_first_call_names_lower(mlp, ask, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SteelyardError, match=r"nothing is compiled yet.*lower"):
        ask(steelyard.compile(mlp[0], "mxfp8"))
    assert not list(tmp_path.iterdir())


def test_unknown_stage_names_the_stages(mlp):
    net = steelyard.compile(mlp[0], "mxfp8")
    with pytest.raises(SteelyardError, match=r"traced, raised, quantized.*lowered.*got 'optimized'"):
        net.ir("optimized")


def test_errors_of_the_model_are_the_models(mlp):
    model, x = mlp
    net = steelyard.compile(model, "mxfp8")
    with pytest.raises(TypeError), torch.no_grad():
        net(x, x)
    with torch.no_grad():
        assert net(x).shape == (5, 10)


def test_shapes_that_do_not_fit_are_refused(mlp):
    model, x = mlp
    net = steelyard.compile(model, "mxfp8").lower(x)
    with pytest.raises(Exception, match="37"), torch.no_grad():
        net(x[:, :-1])
    with torch.no_grad():
        assert net(x).shape == (5, 10)


class WithProduct(nn.Module):
    """A linear beside a product that no recipe takes."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.dtype = nn.Linear(16, 16), dtype

    def forward(self, x):
        other = x.to(self.dtype)
        return self.linear(x), other @ other


@pytest.mark.parametrize(
    ("dtype", "spelled"), [(torch.int64, "si64"), (torch.complex64, "complex<f32>"), (torch.float64, "f64")]
)
def test_products_of_other_dtypes_run_as_they_are_and_are_listed(dtype, spelled):
    model, x = WithProduct(dtype), torch.randn(16, 16)
    net = steelyard.compile(model, "mxfp8")
    with torch.no_grad():
        assert torch.equal(net(x)[1], model(x)[1])
    quantized, kept = net.explain().rows
    assert (quantized.layer, quantized.padding, quantized.reason) == ("linear", "", "")
    assert spelled in kept.reason
    assert "recipes take" in kept.reason
    assert kept.kernel == "aten.mm"


def test_sparse_parameters_and_buffers_are_refused_with_a_remedy(mlp):
    model, _ = mlp
    holder = nn.Sequential(model)
    holder.register_buffer("mask", torch.eye(8).to_sparse())
    with pytest.raises(UnsupportedModelError, match=r"mask must be a dense tensor.*to_dense"):
        steelyard.compile(holder, "mxfp8")


class TwoLayers(nn.Module):
    """A model whose source lines are in this file."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(33, 8), nn.Linear(8, 5)

    def forward(self, x):
        return self.second(self.first(x))


def test_a_failing_pass_names_layer_and_line_and_changes_nothing(monkeypatch):
    from steelyard.passes import lower_storage
    from steelyard.passes.pipeline.registry import fail

    torch.manual_seed(0)
    model = TwoLayers().eval()
    before = copy.deepcopy(model.state_dict())
    net = steelyard.compile(model, "mxfp8")

    def refuse(self, op):
        fail(op, f"cannot be lowered (layer '{op.layer.value}')")

    x = torch.randn(4, 33)
    with monkeypatch.context() as patched, torch.no_grad():
        patched.setitem(lower_storage._LOWERINGS, lower_storage.GemmOp, refuse)
        with pytest.raises(IRError, match=r"first.*test_compile_errors\.py.*op cannot be lowered \(layer 'first'\)"):
            net(x)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
    with torch.no_grad():
        torch._dynamo.reset()
        assert (net(x) - model(x)).norm() <= 0.1 * model(x).norm()


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_a_recurrent_layer_on_its_own_runs_as_it_is_with_a_warning(layer):
    model = layer(8, 8)
    x = torch.randn(1, 2, 8)
    with torch.no_grad():
        net = steelyard.compile(model, "mxfp8")
        assert isinstance(net, layer)
        with pytest.warns(UserWarning, match="only 0% of the FLOPs of GEMMs are quantized"):
            assert torch.equal(net(x)[0], model(x)[0])
    assert {row.reason.split(":")[0] for row in net.explain().rows} == {
        "torch runs it outside of compiled graphs (torch.compile with fullgraph=True says why)"
    }
