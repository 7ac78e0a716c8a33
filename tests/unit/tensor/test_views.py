"""Views keep codes where the scheme allows, show the values of the view, and write through."""

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from steelyard.tensor import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
    QuantizedTensor,
)

E4M3 = torch.float8_e4m3fn


def spans(size: int):
    return st.tuples(st.integers(0, size), st.integers(0, size)).map(sorted)


@st.composite
def view_operations(draw, shape):
    """A view of a tensor of this shape, as a function of the tensor."""
    dim = draw(st.integers(-len(shape), len(shape) - 1))
    start, stop = draw(spans(shape[dim]))
    align = draw(st.sampled_from([1, 16, 32]))
    start, stop = start // align * align, stop // align * align
    size = max(stop - start, 1)
    rows = shape[0]
    return draw(
        st.sampled_from(
            [
                lambda t: t.narrow(dim, start, stop - start),
                lambda t: t.select(dim, min(start, shape[dim] - 1)),
                lambda t: t.transpose(0, -1),
                lambda t: t.view(-1),
                lambda t: t.view(*shape[:-1], 2, shape[-1] // 2),
                lambda t: t.reshape(-1, shape[-1]),
                lambda t: t.unsqueeze(0),
                lambda t: t.split(size, dim)[-1],
                lambda t: t.chunk(2, dim)[0],
                lambda t: t.unbind(dim)[0],
                lambda t: t[..., ::2],
                lambda t: t.flatten(),
                lambda t: t.as_strided((rows // 2, shape[-1]), (shape[-1], 1), shape[-1]),
                lambda t: t.as_strided((shape[-1], rows), (1, shape[-1])),
                lambda t: t.expand(2, *shape),
                lambda t: t.permute(*reversed(range(len(shape)))),
                lambda t: t.detach(),
            ]
        )
    )


@given(data=st.data(), shape=st.sampled_from([(64, 64), (48, 32), (30, 34), (4, 16, 32)]))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_views_show_what_views_of_the_values_show(quantizer, data, shape):
    quantized = quantizer(torch.randn(shape))
    dense = quantized.dequantize()
    view, expected = quantized, dense
    for _ in range(data.draw(st.integers(1, 3))):
        assume(expected.dim() > 0 and all(size > 1 for size in expected.shape))
        operation = data.draw(view_operations(tuple(expected.shape)))
        try:
            expected = operation(expected)
        except RuntimeError:
            # A view that torch refuses for a dense tensor (across strides), it refuses for a quantized one.
            if isinstance(view, QuantizedTensor):
                with pytest.raises(RuntimeError):
                    operation(view)
            return
        view = operation(view)
        if type(view) is torch.Tensor:
            # It cuts through blocks, so it is a copy; further views are plain torch.
            break
    assert (view.shape, view.dtype) == (expected.shape, expected.dtype)
    values = view.dequantize() if isinstance(view, QuantizedTensor) else view
    assert torch.equal(values, expected)
    assert view.stride() == expected.stride()
    if isinstance(view, QuantizedTensor):
        assert view.storage_offset() == expected.storage_offset()


def shares_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("quantizer", "view"),
    [
        (Float8CurrentScalingQuantizer(E4M3), lambda t: t[3:5, 7:9]),
        (Float8CurrentScalingQuantizer(E4M3), lambda t: t[:, 5]),
        (Float8CurrentScalingQuantizer(E4M3), lambda t: t[::3, ::2]),
        (Float8BlockQuantizer(E4M3, block_scaling_dim=1), lambda t: t[3:5]),
        (Float8BlockQuantizer(E4M3, block_scaling_dim=1), lambda t: t[:, 128:]),
        (Float8BlockQuantizer(E4M3), lambda t: t[128:, 128:]),
        (MXFP8Quantizer(E4M3), lambda t: t[7]),
        (MXFP8Quantizer(E4M3), lambda t: t[:, 32:96]),
        (MXFP8Quantizer(E4M3, with_2d_quantization=True), lambda t: t[32:64, 64:]),
        (NVFP4Quantizer(), lambda t: t[5:9, 16:48]),
        (NVFP4Quantizer(row_scaled=True), lambda t: t[5:9, 16:48]),
        (NVFP4Quantizer(with_2d_quantization=True), lambda t: t[16:48]),
        (NVFP4Quantizer(with_rht=True), lambda t: t[16:]),
    ],
)
def test_codes_stay_codes_and_share_memory(quantizer, view):
    quantized = quantizer(torch.randn(200, 256))
    shown = view(quantized)
    assert type(shown) is type(quantized)
    codes = quantized.ROWWISE.codes
    assert shares_memory(getattr(shown, codes), getattr(quantized, codes))
    assert torch.equal(shown.dequantize(), view(quantized.dequantize()))


@pytest.mark.parametrize(
    ("quantizer", "view"),
    [
        (Float8BlockQuantizer(E4M3), lambda t: t[3:5]),
        (Float8BlockQuantizer(E4M3, block_scaling_dim=1), lambda t: t[:, 1:]),
        (MXFP8Quantizer(E4M3), lambda t: t[:, 3:35]),
        (MXFP8Quantizer(E4M3), lambda t: t[:, 5]),
        (NVFP4Quantizer(), lambda t: t[:, 8:]),
        (NVFP4Quantizer(with_2d_quantization=True), lambda t: t[8:]),
    ],
)
def test_a_view_that_cuts_blocks_decodes(quantizer, view):
    quantized = quantizer(torch.randn(200, 256))
    assert type(view(quantized)) is torch.Tensor
    assert torch.equal(view(quantized), view(quantized.dequantize()))


def test_a_transpose_swaps_the_copies_without_work(quantizer):
    quantized = quantizer(torch.randn(32, 48))
    transposed = quantized.t()
    assert transposed.shape == (48, 32)
    row, col = quantized.ROWWISE.codes, quantized.COLUMNWISE.codes
    assert shares_memory(getattr(transposed, row), getattr(quantized, col))
    assert shares_memory(getattr(transposed, col), getattr(quantized, row))
    assert torch.equal(transposed.dequantize(), quantized.dequantize().t())
    again = transposed.t()
    assert torch.equal(again.dequantize(), quantized.dequantize())
    rowwise, other = quantized.detach(), transposed.detach()
    rowwise.update_usage(rowwise_usage=False)
    other.update_usage(columnwise_usage=False)
    assert torch.equal(other.dequantize(), rowwise.dequantize().t())


def test_a_reshaped_tensor_keeps_both_copies(quantizer):
    quantized = quantizer(torch.randn(48, 40))
    flat = quantized.view(-1)
    assert type(flat) is type(quantized)
    assert flat.get_usages() == {"rowwise": True, "columnwise": True}
    assert torch.equal(flat.dequantize(), quantized.dequantize().view(-1))
    assert torch.equal(flat.view(48, 40).dequantize(), quantized.dequantize())
    assert torch.equal(flat[40:120].dequantize(), quantized.dequantize().view(-1)[40:120])


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t[32:64],
        lambda t: t[:, 32:64],
        lambda t: t.t()[:32],
        lambda t: t.view(2, 64, 64)[1],
        lambda t: t.detach().view(-1),
        lambda t: t.t(),
    ],
    ids=["rows", "columns", "transposed", "batch", "flat", "whole-transposed"],
)
def test_writing_to_a_view_writes_to_the_tensor(quantizer, view):
    x = torch.randn(128, 64)
    quantized = quantizer(x)
    before = quantized.dequantize()
    shown = view(quantized)
    shown.mul_(3)
    if type(shown) is torch.Tensor:
        # It cuts through blocks, so it is a copy.
        assert torch.equal(quantized.dequantize(), before)
        return
    expected = before.clone()
    view(expected).mul_(3)
    # A scale may span more than the view, so the whole is quantized again from its new values.
    again = quantizer(expected)
    assert torch.equal(quantized.dequantize(), again.dequantize())
    assert torch.equal(shown.dequantize(), view(again.dequantize()))
    assert torch.equal(getattr(quantized, quantized.COLUMNWISE.codes), getattr(again, quantized.COLUMNWISE.codes))


def test_writing_to_a_view_bumps_the_version_of_the_tensor():
    quantized = MXFP8Quantizer(E4M3)(torch.randn(64, 64))
    before = quantized._version
    quantized[:32].zero_()
    assert quantized._version == before + 1


def test_a_decoded_copy_lies_in_memory_as_the_view_would(quantizer):
    quantized = quantizer(torch.randn(64, 48))
    dense = quantized.dequantize()
    column, expected = quantized.t()[5], dense.t()[5]
    assert column.stride() == expected.stride() == (48,)
    rows = (32, 48), (48, 1), 48
    assert torch.equal(column.as_strided(*rows).float(), expected.as_strided(*rows))
