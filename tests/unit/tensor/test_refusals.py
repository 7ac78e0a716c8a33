"""What the tensor layer refuses, and that the error says what must hold."""

import pytest
import torch

from steelyard.errors import ConstraintError, RecipeError
from steelyard.tensor import MXFP8Quantizer
from steelyard.tensor.reference import CurrentScalingQuantizerRef


def _freed(tensor: torch.Tensor) -> torch.Tensor:
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch._efficientzerotensor((4, 32)),
        lambda: _freed(torch.randn(4, 32)),
        lambda: _freed(torch.randn(8, 32)[4:]),
        lambda: _freed(torch.randn(8, 4, 32).transpose(0, 1)),
    ],
    ids=["zero", "freed", "freed-view", "freed-strided"],
)
def test_tensors_without_memory_are_refused(quantizer, make):
    with pytest.raises((RecipeError, ConstraintError), match="memory"):
        quantizer(make())


@pytest.mark.parametrize("part", ["_rowwise_data", "_rowwise_scale_inv"])
def test_a_tensor_whose_parts_were_freed_is_not_decoded(part):
    quantized = MXFP8Quantizer()(torch.randn(64, 32))
    _freed(getattr(quantized, part))
    with pytest.raises(RecipeError, match="must be in memory"):
        quantized.dequantize()


def test_an_empty_tensor_needs_no_memory(quantizer):
    assert quantizer(torch.empty(0, 32)).dequantize().shape == (0, 32)


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: torch.func.functionalize(f)(x),
        lambda f, x: torch.vmap(f)(x),
        lambda f, x: torch.func.jvp(f, (x,), (x,)),
        lambda f, x: torch.func.grad(lambda a: f(a).sum())(x),
    ],
    ids=["functionalize", "vmap", "jvp", "grad"],
)
def test_transforms_of_torch_func_are_refused(quantizer, transform):
    with pytest.raises(RecipeError, match=r"outside of the transform"):
        transform(lambda a: quantizer(a).dequantize(), torch.randn(4, 32))


@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: tensor.t_(),
        lambda tensor: tensor.transpose_(0, 1),
        lambda tensor: tensor.swapaxes_(0, 1),
        lambda tensor: tensor.unsqueeze_(0),
        lambda tensor: tensor.squeeze_(0),
        lambda tensor: tensor.as_strided_((2, 2), (1, 1)),
        lambda tensor: tensor.resize_(4, 4),
        lambda tensor: tensor.resize_as_(torch.ones(4, 4)),
        lambda tensor: tensor.set_(),
        lambda tensor: tensor.set_(torch.ones(4)),
        lambda tensor: tensor.set_(torch.ones(4).untyped_storage()),
    ],
)
def test_changing_the_shape_in_place_is_refused_untouched(quantizer, change):
    quantized = quantizer(torch.randn(64, 32))
    values = quantized.dequantize()
    with pytest.raises(RecipeError, match="must keep its shape and memory"):
        change(quantized)
    assert (quantized.shape, quantized.stride()) == ((64, 32), (32, 1))
    assert torch.equal(quantized.dequantize(), values)


def test_a_plain_tensor_takes_the_shape_of_a_quantized_one(quantizer):
    assert torch.ones(2).resize_as_(quantizer(torch.randn(64, 32))).shape == (64, 32)


def test_a_dtype_that_is_not_high_precision_is_refused(quantizer):
    for make in (
        lambda dtype: quantizer(torch.randn(4, 32), dtype=dtype),
        lambda dtype: quantizer.make_empty((4, 32), dtype=dtype),
        lambda dtype: CurrentScalingQuantizerRef()(torch.randn(4, 32), dtype=dtype),
    ):
        with pytest.raises(RecipeError, match=r"dtype must be float32, bfloat16 or float16, got torch.float64"):
            make(torch.float64)


@pytest.mark.parametrize("make", [MXFP8Quantizer, CurrentScalingQuantizerRef])
def test_a_dtype_beside_out_is_refused(make):
    out = make()(torch.randn(4, 32))
    with pytest.raises(RecipeError, match=r"got dtype=torch.bfloat16 beside it"):
        make().quantize(torch.randn(4, 32), out=out, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    "convert", [torch.nn.Module.double, torch.nn.Module.half, lambda module: module.to(torch.double)]
)
def test_a_module_that_would_change_the_dtype_of_codes_is_refused(quantizer, convert):
    module = torch.nn.Linear(32, 64, bias=False)
    module.weight = torch.nn.Parameter(quantizer(torch.randn(64, 32)))
    values = module.weight.dequantize()
    with pytest.raises(RecipeError, match=r"dequantize\(\)"):
        convert(module)
    assert torch.equal(module.weight.dequantize(), values)
