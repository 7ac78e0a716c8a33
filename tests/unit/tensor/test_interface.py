"""What quantized tensors and storages offer besides the operations of torch."""

import pickle

import pytest
import torch

from steelyard.errors import RecipeError
from steelyard.tensor import (
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
    QuantizedTensor,
)
from steelyard.tensor.nvfp4 import _FromNVFP4Func
from steelyard.tensor.packed import PackedNVFP4Tensor
from steelyard.tensor.reference import CurrentScalingQuantizerRef, CurrentScalingTensorRef

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def test_to_dtype_shares_the_codes(make_quantizer):
    for internal in (False, True):
        source = make_quantizer(internal=internal)(torch.randn(64, 48))
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            presented = source.to_dtype(dtype)
            assert (type(presented), presented.dtype, presented.shape) == (type(source), dtype, source.shape)
            assert presented.dequantize().dtype == dtype
            assert torch.equal(presented.dequantize(), source.dequantize(dtype=dtype))
            assert all(getattr(presented, name) is getattr(source, name) for name in source.PARTS)
        with pytest.raises(RecipeError, match=r"dtype must be float32, bfloat16, float16 or float64, got torch.int32"):
            source.to_dtype(torch.int32)


def test_make_like_shares_the_codes(quantizer):
    parameter = torch.nn.Parameter(quantizer(torch.randn(64, 48)))
    like = type(parameter).make_like(parameter)
    assert (type(like), like.shape, like.dtype, like.requires_grad) == (type(parameter), (64, 48), torch.float32, False)
    other = QuantizedTensor.make_like(parameter, shape=(2, 32, 48), dtype=torch.bfloat16, requires_grad=True)
    assert (other.shape, other.dtype, other.requires_grad, other.is_leaf) == ((2, 32, 48), torch.bfloat16, True, True)
    like.fill_(2)
    expected = quantizer(torch.full((64, 48), 2.0)).dequantize()
    assert torch.equal(parameter.detach().dequantize(), expected)
    assert torch.equal(other.detach().dequantize(), expected.bfloat16().view(2, 32, 48))
    with pytest.raises(RecipeError, match="must be a QuantizedTensor, got Tensor; quantize it first"):
        QuantizedTensor.make_like(torch.ones(2))


def test_data_tensors_are_the_codes(make_quantizer):
    for internal in (False, True):
        source = make_quantizer(internal=internal)(torch.randn(64, 48))
        row, col = source.get_data_tensors()
        assert row is getattr(source, source.ROWWISE.codes)
        assert col is getattr(source, source.COLUMNWISE.codes)
        assert source.get_data_tensors(columnwise_data=False) is row
        assert source.get_data_tensors(rowwise_data=False) is col
        with pytest.raises(RecipeError, match="got False for both"):
            source.get_data_tensors(rowwise_data=False, columnwise_data=False)
        source.update_usage(columnwise_usage=False)
        assert source.get_data_tensors() == (row, None)


def test_a_subclass_is_kept(quantizer):
    tensor = quantizer(torch.randn(64, 48))
    derived = type(f"Derived{type(tensor).__name__}", (type(tensor),), {})
    tensor.__class__ = derived
    detached = tensor.detach()
    assert type(detached) is type(torch.nn.Parameter(tensor)) is type(tensor.to_dtype(torch.bfloat16)) is derived
    assert all(one is two for one, two in zip(detached.get_data_tensors(), tensor.get_data_tensors(), strict=True))
    quantizer.update_quantized(torch.zeros(64, 48), tensor)
    assert torch.equal(tensor.dequantize(), torch.zeros(64, 48))
    tensor.data = quantizer(torch.ones(3, 16))
    assert (type(tensor), tensor.shape) == (derived, (3, 16))


@pytest.mark.parametrize("shape", [(2, 32, 48), (-1, 48), (8, -1), (3072,), (64, 48)])
def test_storages_have_views(make_quantizer, shape):
    storage = make_quantizer(internal=True)(torch.randn(64, 48))
    for view in (storage.view(shape), storage.view(*shape), storage.view(torch.Size(shape))):
        expected = storage.dequantize().view(shape)
        assert type(view) is type(storage)
        assert view.shape == view.size() == expected.shape
        assert torch.equal(view.dequantize(), expected)
    assert len(pickle.dumps(view)) < 1.1 * len(pickle.dumps(storage))
    view.quantize_(torch.zeros(view.shape))
    assert torch.equal(storage.dequantize(), torch.zeros(64, 48))
    with pytest.raises(RecipeError, match=r"the shape of a view must hold 3072 elements, got \(5, 5\)"):
        storage.view(5, 5)


def test_storages_of_packed_codes_have_views_and_data_tensors():
    quantizer = NVFP4Quantizer(columnwise=False)
    compact = quantizer(torch.randn(32, 48))
    (data,) = compact.weight_parts(quantizer.row_scheme, is_transposed=False, layout="packed")
    packed = PackedNVFP4Tensor(packed_data=data, shape=(32, 48), quantizer=quantizer)
    assert torch.equal(packed.get_data_tensors()[0], compact._rowwise_data)
    assert torch.equal(packed._as_storage().view(4, 8, 48).dequantize(), compact.dequantize().view(4, 8, 48))


def test_a_quantizer_is_exchanged():
    amax = torch.zeros(1)
    tensor = Float8CurrentScalingQuantizer(E4M3)(torch.randn(4, 8))
    values = tensor.dequantize()
    tensor.update_quantizer(Float8Quantizer(torch.tensor(2.0), amax, E4M3))
    assert torch.equal(tensor.dequantize(), values)
    tensor.fill_(3)
    # 3 * 2 has exponent 2 + 7 and mantissa 0.5.
    assert tensor._data.unique().tolist() == [0x4C]
    assert amax.item() == 3
    nvfp4 = NVFP4Quantizer()(torch.randn(4, 32))
    values = nvfp4.t().dequantize()
    view = nvfp4.t()
    view.update_quantizer(NVFP4Quantizer(stochastic_rounding=True))
    assert torch.equal(view.dequantize(), values)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (MXFP8Quantizer(E4M3), MXFP8Quantizer(E5M2)),
        (MXFP8Quantizer(), NVFP4Quantizer()),
        (NVFP4Quantizer(), NVFP4Quantizer(four_over_six="mae")),
        (NVFP4Quantizer(), NVFP4Quantizer(row_scaled=True)),
        (NVFP4Quantizer(), CurrentScalingQuantizerRef()),
        (NVFP4Quantizer(), None),
    ],
)
def test_a_quantizer_of_another_format_is_refused(one, other):
    tensor = one(torch.randn(32, 32))
    values = tensor.dequantize()
    with pytest.raises(RecipeError, match="the quantizer must make codes like those of"):
        tensor.update_quantizer(other)
    assert torch.equal(tensor.dequantize(), values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nvfp4_is_decoded_with_a_gradient(dtype):
    parameter = torch.nn.Parameter(NVFP4Quantizer()(torch.randn(16, 32)))
    decoded = _FromNVFP4Func.apply(parameter, dtype)
    assert torch.equal(decoded, parameter.dequantize(dtype=dtype))
    decoded.backward(torch.full((16, 32), 0.5, dtype=dtype))
    assert torch.equal(parameter.grad, torch.full((16, 32), 0.5))
    storage = NVFP4Quantizer(internal=True)(torch.randn(16, 32))
    assert torch.equal(_FromNVFP4Func.forward(None, storage, dtype), storage.dequantize(dtype=dtype))


def test_the_example_tensor_from_its_parts():
    data = torch.tensor([[1.0, -2.0]]).to(E4M3)
    tensor = CurrentScalingTensorRef(data, torch.tensor([0.5]))
    assert tensor.dequantize().tolist() == [[0.5, -1.0]]
    assert (tensor.scale.item(), tensor.scale_inv.item(), tensor.quant_dtype, tensor.shape) == (0.5, 0.5, E4M3, (1, 2))
    assert tensor.size(1) == 2
    columnwise = CurrentScalingTensorRef(
        data_t=data.T, scale_t=torch.tensor(2.0), dtype=torch.bfloat16, original_shape=(1, 1, 2)
    )
    assert columnwise.dequantize().tolist() == [[[2.0, -4.0]]]
    assert columnwise.dequantize().dtype == torch.bfloat16
    columnwise.update_usage(rowwise_usage=True, columnwise_usage=False)
    assert (columnwise.scale.item(), columnwise.scale_t) == (2.0, None)
    assert columnwise.dequantize().tolist() == [[[2.0, -4.0]]]
    with pytest.raises(RecipeError, match="needs data and scale, or data_t and scale_t, got neither"):
        CurrentScalingTensorRef(data)


def test_the_example_quantizer_gives_the_scale_it_multiplies_with():
    made = CurrentScalingQuantizerRef(E4M3)(torch.tensor([[448.0, -1.0]]) * 3)
    assert made.scale.item() == made.scale_t.item() == torch.tensor(1.0).div(torch.tensor(448.0) / 1344).item()
