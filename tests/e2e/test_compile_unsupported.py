"""What cannot be compiled runs by torch, with a row and a warning, or is refused with layer, line and remedy."""

import inspect
import re
import warnings

import pytest
import torch
from torch import nn

import steelyard
from steelyard.errors import SteelyardWarning, UnsupportedModelError


class Layered(nn.Module):
    """A layer, a function that cannot be compiled, and the same layer's result again."""

    def __init__(self, function):
        super().__init__()
        self.layer = nn.Linear(32, 16)
        self.function = function

    def forward(self, x):
        return self.function(self.layer(x))


@torch.library.custom_op("steelyard_tests::double_in_place", mutates_args=("x",))
def double_in_place(x: torch.Tensor) -> None:
    x.mul_(2)


@torch.library.custom_op("steelyard_tests::without_shape", mutates_args=())
def without_shape(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def use_uint16(y):
    return y + y.detach().abs().to(torch.uint16).float()


def use_complex_number(y):
    return (y.to(torch.complex64) * 1j).abs()


def use_cond(y):
    return torch.cond(y.sum() > 0, lambda a: a + 1, lambda a: a - 1, (y,))


def use_effect(y):
    y = y.clone()
    double_in_place(y)
    return y


UNSUPPORTED = {use_uint16: "uint16", use_complex_number: "aten.mul.Tensor", use_cond: "cond", use_effect: "effect|auto"}


@pytest.mark.parametrize("function", UNSUPPORTED, ids=lambda function: function.__name__)
def test_torch_runs_the_graph(function):
    model, x = Layered(function), torch.randn(5, 32)
    net = steelyard.compile(model, "mxfp8")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = net(x)
        result.sum().backward()
        found = [parameter.grad.clone() for parameter in model.parameters()]
    expected = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    # The results are torch's own.
    assert torch.equal(result, model(x))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    (warning,) = [one for one in caught if issubclass(one.category, SteelyardWarning)]
    lines, first = inspect.getsourcelines(function)
    assert re.search(UNSUPPORTED[function], str(warning.message))
    (line,) = re.findall(rf"{re.escape(__file__)}:(\d+)", str(warning.message))
    assert first < int(line) < first + len(lines)
    assert "@torch.compiler.disable" in str(warning.message)
    rows = net.explain().rows
    assert [(row.layer, row.kind, row.M, row.N, row.K) for row in rows] == [
        ("layer", "fprop", "5", "16", "32"),
        ("layer", "wgrad", "16", "32", "5"),
    ]
    assert not any(row.is_quantized for row in rows)
    assert all("torch runs its graph" in row.reason for row in rows)


class Branches(nn.Module):
    """A layer in each branch of a condition."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(32, 16), nn.Linear(32, 16)

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda a: self.left(a), lambda a: self.right(a) * 2, (x,))


def test_branches_of_a_condition_have_rows():
    model = Branches()
    net = steelyard.compile(model, "mxfp8")
    with pytest.warns(SteelyardWarning, match="cond"), torch.no_grad():
        net(torch.ones(5, 32))
    with torch.no_grad():
        assert all(torch.equal(net(x), model(x)) for x in (torch.ones(5, 32), -torch.ones(5, 32)))
    assert [(row.kind, row.M, row.N, row.K) for row in net.explain().rows] == [("fprop", "5", "16", "32")] * 2


def test_one_warning_for_all_sizes():
    net = steelyard.compile(Layered(use_uint16), "mxfp8")
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        for size in (2, 3, 5):
            net(torch.randn(size, 32))
    assert sum(issubclass(one.category, SteelyardWarning) for one in caught) == 1


def test_remedy_keeps_the_rest_quantized():
    """What the warning tells users to do."""
    model, x = Layered(torch.compiler.disable(use_uint16)), torch.randn(5, 32)
    net = steelyard.compile(model, "mxfp8")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error", SteelyardWarning)
        net(x)
    assert [(row.layer, row.is_quantized) for row in net.explain().rows] == [("layer", True)]


def test_arguments_that_do_not_fit():
    net = steelyard.compile(Layered(torch.relu), "mxfp8")
    with pytest.raises(UnsupportedModelError, match=r"layer 'layer' at .*\.py:\d+: .*31.*32") as error:
        net(torch.randn(5, 31))
    assert "Traceback" not in str(error.value)
    assert error.value.__cause__ is None


def test_op_without_a_shape_function():
    net = steelyard.compile(Layered(without_shape), "mxfp8")
    with pytest.raises(UnsupportedModelError, match=rf"{re.escape(__file__)}:\d+: .*no fake impl.*@torch.compiler.dis"):
        net(torch.randn(5, 32))


def test_errors_of_the_model_stay_as_they_are():
    def fail(y):
        raise LookupError("the model's own")

    with pytest.raises(LookupError, match="the model's own"):
        steelyard.compile(Layered(fail), "mxfp8")(torch.randn(5, 32))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn, torch.uint32])
def test_kept_for_the_backward_in_any_dtype(dtype):
    def use(y):
        if dtype.is_complex:
            z = y.to(dtype)
            return (z * z.exp()).abs()
        z = y.to(dtype) if dtype.is_floating_point else y.detach().abs().to(dtype)
        return y * z.float()

    net = steelyard.compile(Layered(use), "mxfp8")
    net(torch.randn(5, 32)).sum().backward()
    assert [(row.kind, row.is_quantized) for row in net.explain().rows] == [("fprop", True), ("wgrad", True)]
