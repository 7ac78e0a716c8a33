"""Quantized tensors without memory: shapes of parts only, until `to_empty` gives them some."""

import pytest
import torch

from steelyard.tensor import Float8Quantizer, MXFP8Quantizer


def _described(quantized) -> dict:
    parts = {name: getattr(quantized, name) for name in quantized.PARTS}
    return {name: (part.shape, part.dtype) for name, part in parts.items() if part is not None}


@pytest.mark.parametrize("swizzled", [False, True])
def test_meta_tensors_have_the_parts_of_real_ones(make_quantizer, swizzled):
    quantizer = make_quantizer(optimize_for_gemm=swizzled)
    real = quantizer(torch.randn(5, 40, 48))
    made = quantizer.make_empty((5, 40, 48), device="meta")
    for meta in (made, quantizer(torch.empty(5, 40, 48, device="meta")), real.to("meta")):
        assert meta.is_meta
        assert all(getattr(meta, name).is_meta for name in _described(meta))
        assert _described(meta) == _described(real)


def test_meta_tensors_show_their_size_and_compute_shapes(quantizer):
    meta = quantizer(torch.randn(64, 32)).to("meta")
    assert "size=(64, 32)" in repr(meta)
    assert "device='meta'" in repr(meta)
    assert (meta @ torch.empty(32, 8, device="meta")).shape == (64, 8)


def test_quantizing_on_meta_leaves_the_recorded_amax():
    quantizer = Float8Quantizer(torch.tensor(1.0), torch.tensor([3.0]), torch.float8_e4m3fn)
    quantizer(torch.empty(4, 32, device="meta"))
    assert quantizer.amax.tolist() == [3.0]


def test_a_module_gets_memory_by_to_empty(quantizer):
    module = torch.nn.Linear(32, 64)
    module.weight = torch.nn.Parameter(quantizer(torch.randn(64, 32)))
    module.to("meta").to_empty(device="cpu")
    assert type(module.weight) is quantizer.TENSOR
    assert not module.weight.is_meta
    values = torch.randn(64, 32)
    module.weight.quantize_(values)
    assert torch.equal(module.weight.dequantize(), quantizer(values).dequantize())


def test_a_tensor_with_freed_parts_shows_no_values():
    quantized = MXFP8Quantizer()(torch.randn(64, 32))
    quantized._columnwise_data.untyped_storage().resize_(0)
    assert repr(quantized) == "MXFP8Tensor(freed, size=(64, 32), rowwise and columnwise)"
