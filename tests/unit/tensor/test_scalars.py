"""Quantized tensors without dims, beside plain ones."""

import copy
import pickle

import pytest
import torch

from steelyard.tensor import Float8Quantizer, Float8Tensor, MXFP8Quantizer, NVFP4Quantizer, QuantizedTensor
from steelyard.tensor.reference import CurrentScalingQuantizerRef

E4M3 = torch.float8_e4m3fn


def test_scalar_bytes():
    quantizer = Float8Quantizer(torch.ones([1]), torch.zeros([1]), E4M3)
    quantized = quantizer(torch.tensor(-1.5))
    # Sign 1, exponent 0 + 7, mantissa 0.5.
    assert (quantized._data.shape, quantized._data.item()) == ((), 0xBC)
    assert quantized._transpose.tolist() == [[0xBC]]
    assert (quantized.dequantize().shape, quantized.dequantize().item()) == ((), -1.5)
    assert quantizer.amax.tolist() == [1.5]
    # 1.5 / 448 lies between 2^-9 and 2^-8, so the scale is 2^-8 and the code that of 384.
    mx = MXFP8Quantizer()(torch.tensor(1.5))
    assert (mx._rowwise_data.flatten().tolist(), mx._rowwise_scale_inv.flatten().tolist()) == ([0x7C], [119])
    # The only element of its block is mapped to 6, code 7; the other half of the byte is padding.
    fp4 = NVFP4Quantizer()(torch.tensor(-3.0))
    assert fp4._rowwise_data.flatten().tolist() == [0x0F]
    assert fp4.dequantize().item() == -3.0


def test_a_scalar_is_quantized_as_a_vector_of_one(make_quantizer):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for value in (0.0, 1.25, -3e4, 1e-3):
            scalar, vector = (make_quantizer()(torch.tensor(shaped, dtype=dtype)) for shaped in (value, [value]))
            assert (scalar.shape, scalar.dim(), scalar.numel(), scalar.dtype) == ((), 0, 1, dtype)
            assert isinstance(scalar, QuantizedTensor)
            assert torch.equal(scalar.dequantize(), vector.dequantize()[0])
            assert scalar.item() == vector.dequantize().item()


def test_empty_scalars(make_quantizer):
    for quantizer in (make_quantizer(), make_quantizer(internal=True)):
        made = quantizer.make_empty(())
        assert made.shape == made.size() == ()
        assert torch.equal(made.dequantize(), torch.zeros(()))
        quantizer.update_quantized(torch.tensor(2.0), made)
        assert torch.equal(made.dequantize(), quantizer(torch.tensor(2.0)).dequantize())
    assert make_quantizer().make_empty((), dtype=torch.bfloat16, requires_grad=True).requires_grad


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "operation",
    [
        lambda t: t + 1,
        lambda t: t.clone(),
        lambda t: t.detach(),
        lambda t: t.view(1),
        lambda t: t.view(()),
        lambda t: t.reshape(1, 1),
        lambda t: t.unsqueeze(0),
        lambda t: t.squeeze(),
        lambda t: t.t(),
        lambda t: t.expand(3),
        lambda t: t.to(torch.bfloat16),
        lambda t: torch.zeros(2, 2) + t,
        lambda t: t.mul_(2),
        lambda t: t.view(1, 1).mul_(2).view(()),
        lambda t: t.fill_(3),
        lambda t: torch.stack([t, t]),
        copy.deepcopy,
        lambda t: pickle.loads(pickle.dumps(t)),
        lambda t: (setattr(t, "data", torch.tensor(4.0)), t)[1],
        lambda t: (setattr(t, "data", torch.full((2, 3), 4.0)), t)[1],
    ],
)
def test_operations_on_scalars(quantizer, operation):
    # Powers of two and their sums are exact in every format but that with a fixed scale.
    quantized, plain = quantizer(torch.tensor(2.0)), quantizer(torch.tensor(2.0)).dequantize()
    found, expected = operation(quantized), operation(plain)
    assert (found.shape, found.dtype, found.stride()) == (expected.shape, expected.dtype, expected.stride())
    values = found.dequantize() if isinstance(found, QuantizedTensor) else found
    assert torch.equal(values, expected)


def test_a_vector_takes_a_scalar_and_the_other_way_round(quantizer):
    vector, scalar = quantizer(torch.tensor([1.0])), quantizer(torch.tensor(2.0))
    vector.data = scalar
    assert vector.shape == ()
    assert vector.new_zeros(()).shape == torch.empty_like(vector).shape == ()
    assert isinstance(vector.new_empty((2, 2)), QuantizedTensor)


def test_gradients_of_scalars(quantizer):
    x = torch.tensor(2.0, requires_grad=True)
    (3 * quantizer(x).dequantize()).backward()
    assert x.grad == 3


def test_scalars_from_parts():
    tensor = Float8Tensor(data=torch.tensor(0x3C, dtype=torch.uint8), fp8_dtype=E4M3, fp8_scale_inv=2.0)
    assert (tensor.shape, tensor.item()) == ((), 3.0)
    again = type(tensor)(**tensor.get_metadata())
    assert (again.shape, again.item()) == ((), 3.0)


def test_the_example_format_takes_scalars():
    made = CurrentScalingQuantizerRef()(torch.tensor(-7.0))
    assert (made.shape, made.dequantize().shape, made.dequantize().item()) == ((), (), -7.0)
