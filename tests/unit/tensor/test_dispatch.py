"""Torch operations on quantized tensors: in high precision, in place, and those that keep codes."""

import pytest
import torch

from steelyard.tensor import (
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    Float8RowQuantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
    QuantizedTensor,
)

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def same_parts(one, other) -> bool:
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in one.PARTS)


@pytest.mark.parametrize(
    "operation",
    [
        lambda t: t + 1,
        lambda t: torch.relu(t) @ t.t(),
        lambda t: torch.nn.functional.linear(torch.ones(2, t.shape[1]), t),
        lambda t: torch.cat([t, torch.zeros(1, t.shape[1])]),
        lambda t: t.sum(0),
        lambda t: t[torch.tensor([3, 1])],
        lambda t: torch.zeros_like(t),
        lambda t: t > 0,
        lambda t: t.double(),
        lambda t: t.bfloat16(),
        lambda t: t.half(),
        lambda t: t.float(),
        lambda t: torch.stack(torch._foreach_mul([t, t], 2.0)),
    ],
)
def test_other_operations_run_on_the_decoded_values(quantizer, operation):
    quantized = quantizer(torch.randn(32, 48))
    found, expected = operation(quantized), operation(quantized.dequantize())
    assert type(found) is torch.Tensor
    assert found.dtype == expected.dtype
    # Two layouts of one product may round differently.
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(
    "operation",
    [
        lambda t: t.mul_(3),
        lambda t: t.add_(torch.ones(48), alpha=2),
        lambda t: t.zero_(),
        lambda t: t.addcmul_(torch.ones(32, 48), torch.full((32, 48), 0.5)),
        lambda t: torch.add(t, 1, out=t),
        lambda t: (torch._foreach_add_([t], 1.0), t)[1],
        lambda t: (t.__setitem__(slice(3, 5), 7.0), t)[1],
        lambda t: t.index_fill_(0, torch.tensor([1, 2]), -1.0),
    ],
)
def test_operations_in_place_quantize_again(quantizer, operation):
    quantized = quantizer(torch.randn(32, 48))
    dense = quantized.dequantize()
    alias, version = quantized.detach(), quantized._version
    pointers = [getattr(quantized, name).data_ptr() for name in quantized.PARTS]
    found = operation(quantized)
    operation(dense)
    assert found is quantized
    assert same_parts(quantized, quantizer(dense))
    assert pointers == [getattr(quantized, name).data_ptr() for name in quantized.PARTS]
    assert torch.equal(alias.dequantize(), quantized.dequantize())
    assert quantized._version > version


def test_writes_that_grow_with_autograd_are_refused():
    quantized = MXFP8Quantizer(E4M3)(torch.ones(2, 2)).requires_grad_()
    with pytest.raises(RuntimeError, match="leaf"):
        quantized.mul_(2)
    with pytest.raises(RuntimeError, match="no_grad"):
        quantized[0] = 1.0


def test_delayed_scaling_records_the_amax_of_what_is_written():
    quantizer = Float8Quantizer(torch.tensor(1.0), torch.zeros(()), E4M3)
    quantized = quantizer(torch.full((2, 2), 3.0))
    quantized.mul_(2)
    assert quantizer.amax == 6
    quantized.new_zeros(4, 4)
    quantized.clone()
    assert quantizer.amax == 6


@pytest.mark.parametrize(
    "alias", [lambda t: t, torch.nn.Parameter, lambda t: t.view(-1).view(32, 48), lambda t: t[:32]]
)
def test_copies_that_were_derived_are_written_too(alias):
    quantizer = Float8CurrentScalingQuantizer(E4M3, columnwise=False)
    quantized = alias(quantizer(torch.randn(32, 48)))
    quantized.update_usage(columnwise_usage=True)
    with torch.no_grad():
        quantized.mul_(torch.randn(32, 48))
    assert torch.equal(quantized._transpose, quantized._data.t())


def test_copy_between_tensors_of_one_format_copies_codes(quantizer):
    source, target = quantizer(torch.randn(32, 48)), quantizer(torch.zeros(32, 48))
    pointers = [getattr(target, name).data_ptr() for name in target.PARTS]
    target.copy_(source)
    assert same_parts(target, source)
    assert pointers == [getattr(target, name).data_ptr() for name in target.PARTS]


def test_copy_between_formats_and_dense_tensors(quantizer):
    dense, target = torch.randn(32, 48), quantizer(torch.zeros(32, 48))
    target.copy_(dense)
    assert same_parts(target, quantizer(dense))
    other = MXFP8Quantizer(E5M2, columnwise=False)(torch.randn(32, 48))
    target.copy_(other)
    assert same_parts(target, quantizer(other.dequantize()))
    target.copy_(torch.arange(48))
    assert same_parts(target, quantizer(torch.arange(48.0).expand(32, 48)))
    plain = torch.empty(32, 48, dtype=torch.float64)
    plain.copy_(target)
    assert torch.equal(plain, target.dequantize().double())


def test_copy_into_part_of_a_tensor_keeps_the_rest():
    quantizer = Float8CurrentScalingQuantizer(E4M3)
    x = torch.randn(8, 8)
    target, source = quantizer(x), quantizer(torch.full((4, 8), 100.0))
    expected = target.dequantize()
    expected[:4] = source.dequantize()
    target[:4].copy_(source)
    assert same_parts(target, quantizer(expected))


@pytest.mark.parametrize("part", [(slice(4), slice(None)), (slice(None), slice(4))], ids=["rows", "columns"])
def test_copy_into_part_of_a_tensor_with_a_scale_per_row(part):
    quantizer = Float8RowQuantizer()
    target, source = quantizer(torch.randn(8, 8)), quantizer(torch.randn(8, 8) * 100)
    expected = target.dequantize()
    expected[part] = source[part].dequantize()
    target[part].copy_(source[part])
    assert same_parts(target, quantizer(expected))


def test_clone_has_memory_of_its_own(quantizer):
    quantized = quantizer(torch.randn(32, 48))
    clone = quantized.clone()
    assert type(clone) is type(quantized)
    assert same_parts(clone, quantized)
    before = quantized.dequantize()
    clone.zero_()
    assert torch.equal(quantized.dequantize(), before)


def test_clone_of_a_transpose(quantizer):
    quantized = quantizer(torch.randn(32, 48))
    clone = quantized.t().contiguous()
    assert clone.is_contiguous()
    assert torch.equal(clone.dequantize(), quantized.dequantize().t())
    strided = quantized.t().clone()
    assert strided.stride() == (1, 48)
    assert torch.equal(strided.as_strided((2, 48), (48, 1)), quantized.dequantize()[:2])
    clone.mul_(2)
    values = quantized.dequantize().t() * 2
    assert same_parts(clone, quantizer(values.t()).t())


def test_to_keeps_codes_for_high_precision_dtypes(quantizer):
    quantized = quantizer(torch.randn(32, 48))
    half = quantized.to(torch.bfloat16)
    assert (type(half), half.dtype) == (type(quantized), torch.bfloat16)
    assert same_parts(half, quantized)
    assert torch.equal(half.dequantize(), quantized.dequantize(dtype=torch.bfloat16))
    integers = quantized.to(torch.int32)
    assert torch.equal(integers, quantized.dequantize().to(torch.int32))
    meta = quantized.to("meta")
    assert type(meta) is type(quantized)
    assert meta.device.type == "meta"


def test_modules_convert_and_load(quantizer):
    layer = torch.nn.Linear(48, 32, bias=False)
    layer.weight = torch.nn.Parameter(quantizer(layer.weight.detach()))
    values = layer.weight.dequantize()
    layer.to(torch.bfloat16)
    assert isinstance(layer.weight, QuantizedTensor)
    assert isinstance(layer.weight, torch.nn.Parameter)
    assert layer.weight.dtype == torch.bfloat16
    assert torch.equal(layer.weight.dequantize(dtype=torch.float32), values)
    new = torch.randn(32, 48).bfloat16()
    layer.load_state_dict({"weight": new})
    assert same_parts(layer.weight, quantizer(new))
    layer.weight.data = torch.zeros(32, 48, dtype=torch.bfloat16)
    assert layer.weight.abs().sum() == 0


@pytest.mark.parametrize("make", [lambda t: t.new_zeros(16, 32), lambda t: t.new_empty((16, 32)), torch.empty_like])
def test_new_tensors_have_the_format(quantizer, make):
    quantized = quantizer(torch.randn(16, 32)).detach()
    quantized.update_usage(rowwise_usage=False)
    made = make(quantized)
    assert (type(made), made.shape, made.dtype) == (type(quantized), (16, 32), torch.float32)
    assert made.get_usages() == {"rowwise": False, "columnwise": True}
    assert not made.requires_grad
    made.copy_(torch.ones(16, 32))
    assert torch.equal(made.dequantize().sign(), torch.ones(16, 32))


def test_new_zeros_are_zero_and_other_dtypes_are_plain(quantizer):
    quantized = quantizer(torch.randn(16, 32))
    assert torch.equal(quantized.new_zeros(3, 32).dequantize(), torch.zeros(3, 32))
    for plain in (quantized.new_zeros(3, dtype=torch.int64), torch.empty_like(quantized, dtype=torch.float64)):
        assert type(plain) is torch.Tensor
    assert quantized.new_zeros(()).shape == ()


def test_empty_tensors(quantizer):
    for shape in ((0, 32), (3, 0), (0,)):
        quantized = quantizer(torch.empty(shape))
        assert quantized.shape == shape
        assert quantized.dequantize().shape == shape
        assert quantized.t().shape == shape[::-1] if len(shape) == 2 else True
        assert (quantized + 1).numel() == 0


def test_optimizers_update_quantized_parameters():
    quantizer = NVFP4Quantizer(with_2d_quantization=True)
    weight = torch.randn(32, 48)
    parameter = torch.nn.Parameter(quantizer(weight))
    plain = torch.nn.Parameter(parameter.dequantize().detach())
    gradient = torch.randn(32, 48)
    parameter.grad, plain.grad = gradient.clone(), gradient.clone()
    for each in (parameter, plain):
        torch.optim.AdamW([each], lr=0.1).step()
    assert same_parts(parameter, quantizer(plain.detach()))
