"""Quantizers of users that implement `quantize` itself or `quantize_impl`, anew or over a built-in format."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import steelyard
from steelyard.errors import RecipeError
from steelyard.recipes import CustomRecipe, MXFP8BlockScaling
from steelyard.tensor import Float8CurrentScalingQuantizer, MXFP8Quantizer, QuantizedTensorStorage, Quantizer


@dataclass(eq=False)
class Rounded(QuantizedTensorStorage):
    """Values rounded to integers."""

    PARTS: ClassVar = ("values",)

    values: torch.Tensor
    dtype: torch.dtype = torch.float32

    def dequantize(self, *, dtype=None):
        return self.values.to(dtype or self.dtype)


class ByQuantize(Quantizer):
    """Implements `quantize` itself, with a constructor of its own."""

    def __init__(self, dtype: torch.dtype = torch.int8, rowwise: bool = True, columnwise: bool = True):
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.internal = True
        self.dtype = dtype

    def quantize(self, tensor, **options):
        return Rounded(tensor.float().round(), tensor.dtype)


class ByImplementation(Quantizer):
    """Implements `quantize_impl` only."""

    def quantize_impl(self, tensor):
        return Rounded(tensor.float().round(), tensor.dtype)


X = torch.tensor([[0.4, -1.6, 2.5], [3.1, 4.9, -5.0]])
ROUNDED = [[0.0, -2.0, 2.0], [3.0, 5.0, -5.0]]


@pytest.fixture(params=[ByQuantize, ByImplementation])
def own(request):
    return request.param()


def test_either_method_is_enough(own):
    made = own(X)
    assert type(made) is Rounded
    assert own.quantize(X).values.tolist() == made.values.tolist() == ROUNDED
    assert own.update_quantized(2 * X, made) is made
    assert made.values.tolist() == (2 * X).round().tolist()
    assert own.update_quantized(X, made, noop_flag=torch.ones(1)).values.tolist() == (2 * X).round().tolist()
    assert own.make_empty((2, 3)).values.tolist() == [[0.0] * 3] * 2
    assert own.copy()(X.bfloat16()).dequantize().dtype == torch.bfloat16
    own.rowwise_usage = False
    assert own.get_usages() == {"rowwise": False, "columnwise": True}


@torch.no_grad()
@pytest.mark.parametrize(
    "recipe",
    [CustomRecipe, lambda factory: MXFP8BlockScaling().set_quantizer_factory(factory)],
    ids=["custom", "set_quantizer_factory"],
)
def test_either_method_runs_in_a_compiled_model(own, recipe):
    layer = torch.nn.Linear(16, 4)
    layer.weight.mul_(20)
    x = torch.randn(5, 16) * 4
    net = steelyard.compile(layer, recipe(lambda role: own))
    expected = x.round().double() @ layer.weight.round().double().T + layer.bias.double()
    torch.testing.assert_close(net(x).double(), expected, rtol=1e-6, atol=1e-5)
    assert net.explain().rows[0].kernel == f"{type(own).__name__}.qgemm"


def test_neither_method_is_refused():
    class Neither(Quantizer):
        pass

    with pytest.raises(TypeError, match="Neither must implement quantize_impl, or quantize itself, got neither"):
        Neither()


class Doubled(MXFP8Quantizer):
    def quantize(self, tensor, **options):
        return super().quantize(2 * tensor, **options)


class DoubledImplementation(Float8CurrentScalingQuantizer):
    def quantize_impl(self, tensor):
        return super().quantize_impl(2 * tensor)


DOUBLED = {
    "quantize": (Doubled, MXFP8Quantizer),
    "quantize_impl": (DoubledImplementation, Float8CurrentScalingQuantizer),
}


@pytest.fixture(params=DOUBLED)
def doubled(request):
    """A quantizer that doubles, and the built-in one of the same format."""
    return [each(torch.float8_e4m3fn) for each in DOUBLED[request.param]]


def test_a_built_in_format_is_made_in_another_way(doubled):
    quantizer, plain = doubled
    x, values = torch.randn(64, 32), torch.randn(64, 32)
    made, expected = quantizer(x), plain(2 * x)
    assert torch.equal(made.dequantize(), expected.dequantize())
    assert quantizer.quantize(x, dtype=torch.bfloat16).dtype == torch.bfloat16
    for write in (
        lambda tensor: tensor.copy_(values),
        lambda tensor: tensor.quantize_(values),
        lambda tensor: quantizer.update_quantized(values, tensor),
        lambda tensor: tensor.view(32, 64).copy_(values.view(32, 64)),
    ):
        written = quantizer(x)
        write(written)
        assert torch.equal(written.dequantize(), plain(2 * values).dequantize())
        written.update_usage(rowwise_usage=False)
        write(written)
        assert torch.equal(
            written.dequantize(), plain.__class__(plain.fp8_dtype, rowwise=False)(2 * values).dequantize()
        )
    x.requires_grad_()
    quantizer(x).dequantize().sum().backward()
    assert x.grad is not None


@torch.no_grad()
def test_a_built_in_format_that_is_made_in_another_way_compiles(doubled):
    quantizer, plain = doubled
    layer, x = torch.nn.Linear(64, 32, bias=False), torch.randn(8, 64)
    net = steelyard.compile(layer, CustomRecipe(lambda role: quantizer))
    expected = plain(2 * x).dequantize().double() @ plain(2 * layer.weight).dequantize().double().T
    torch.testing.assert_close(net(x).double(), expected, rtol=1e-5, atol=1e-5)


def test_a_factory_must_be_callable():
    with pytest.raises(RecipeError, match=r"CustomRecipe.factory must be a callable"):
        MXFP8BlockScaling().set_quantizer_factory(None)


def test_a_recipe_with_a_factory_keeps_its_backward_and_the_old_recipe_is_unchanged():
    recipe = MXFP8BlockScaling(backward="high_precision")
    made = recipe.set_quantizer_factory(lambda role: ByQuantize())
    assert type(made) is CustomRecipe
    assert made.backward == "high_precision"
    assert made.schemes("grad_output") == (None, None)
    assert made.schemes("weight")[0].custom == "ByQuantize"
    assert recipe == MXFP8BlockScaling(backward="high_precision")
    again = made.set_quantizer_factory(lambda role: None)
    assert again.schemes("weight") == (None, None)
    assert again.backward == "high_precision"
