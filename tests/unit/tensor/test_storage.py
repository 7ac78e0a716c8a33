"""Storages: their parts, usages, saving for backward, and what their constructors refuse."""

import pytest
import torch

from steelyard.errors import RecipeError
from steelyard.tensor import (
    Float8BlockwiseQTensor,
    Float8CurrentScalingQuantizer,
    Float8Tensor,
    Float8TensorStorage,
    MXFP8Quantizer,
    MXFP8Tensor,
    NVFP4Quantizer,
    NVFP4Tensor,
    prepare_for_saving,
    restore_from_saved,
)
from steelyard.tensor.nvfp4 import _fp4_e2m1_vals

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def test_float8_tensor_from_its_parts():
    data = torch.tensor([[0x38, 0x40], [0xC4, 0x00]], dtype=torch.uint8)
    tensor = Float8Tensor(data=data, fp8_dtype=E4M3, fp8_scale_inv=torch.tensor([0.5]), dtype=torch.bfloat16)
    assert tensor.dtype == torch.bfloat16
    assert tensor.dequantize().tolist() == [[0.5, 1.0], [-1.5, 0.0]]
    same = Float8Tensor(data=data.view(E4M3), fp8_dtype=E4M3, fp8_scale_inv=0.5, dtype=torch.float32)
    assert same.dequantize().tolist() == [[0.5, 1.0], [-1.5, 0.0]]
    transposed = Float8Tensor(data_transpose=data, fp8_dtype=E4M3, fp8_scale_inv=0.5, dtype=torch.float32)
    assert transposed.dequantize().tolist() == [[0.5, -1.5], [1.0, 0.0]]


def test_other_tensors_from_their_parts():
    codes = torch.tensor([[0x38, 0x40]], dtype=torch.uint8)
    blockwise = Float8BlockwiseQTensor(
        fp8_dtype=E4M3, rowwise_data=codes, rowwise_scale_inv=torch.tensor([[4.0]]), is_2D_scaled=True
    )
    assert blockwise.dequantize().tolist() == [[4.0, 8.0]]
    mx = MXFP8Tensor(
        fp8_dtype=E4M3, columnwise_data=codes, columnwise_scale_inv=torch.tensor([[126, 129]], dtype=torch.uint8)
    )
    assert mx.dequantize().tolist() == [[0.5, 8.0]]
    # 0x38 is the E4M3 scale 1, so a code c decodes to value(c) * amax / 2688.
    fp4 = NVFP4Tensor(
        rowwise_data=torch.tensor([[0xF2]], dtype=torch.uint8),
        rowwise_scale_inv=torch.tensor([[0x38]], dtype=torch.uint8),
        amax_rowwise=torch.tensor(2688.0),
    )
    assert fp4.dequantize().tolist() == [[1.0, -6.0]]


def test_nvfp4_decodes_from_the_columnwise_copy_alone():
    fp4 = NVFP4Tensor(
        columnwise_data=torch.tensor([[0xF2], [0x47]], dtype=torch.uint8),
        columnwise_scale_inv=torch.tensor([[0x38], [0x40]], dtype=torch.uint8),
        amax_columnwise=torch.tensor(2688.0),
        shape=(2, 2),
    )
    assert fp4.dequantize().tolist() == [[1.0, 12.0], [-6.0, 4.0]]


def test_the_transform_is_undone_when_only_its_copy_is_left():
    x = torch.randn(48, 32)
    quantized = NVFP4Quantizer(with_rht=True)(x)
    quantized.update_usage(rowwise_usage=False)
    error = (quantized.dequantize() - x).norm() / x.norm()
    assert 0.05 < error < 0.15


def test_fp4_values():
    values = _fp4_e2m1_vals("cpu", torch.float32)
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert values.tolist() == positive + [-value for value in positive]
    assert torch.signbit(values[8])
    assert _fp4_e2m1_vals("cpu", torch.bfloat16).dtype == torch.bfloat16


def test_fp4_values_are_the_callers_own():
    _fp4_e2m1_vals("cpu", torch.float32).zero_()
    assert _fp4_e2m1_vals("cpu", torch.float32)[7] == 6


def test_codes_may_come_in_the_dtype_they_mean():
    codes = torch.tensor([[0x38, 0xB8]], dtype=torch.uint8)  # 1 and -1 in E4M3
    for data in (codes, codes.view(torch.int8), codes.view(E4M3)):
        assert Float8Tensor(data=data, fp8_dtype=E4M3, fp8_scale_inv=2.0).dequantize().tolist() == [[2.0, -2.0]]


def test_metadata_makes_the_tensor_again(quantizer):
    quantized = quantizer(torch.randn(3, 32, 16).bfloat16())
    again = type(quantized)(**quantized.get_metadata())
    assert (again.shape, again.dtype) == (quantized.shape, quantized.dtype)
    for name in quantized.PARTS:
        assert getattr(again, name).data_ptr() == getattr(quantized, name).data_ptr()
    assert torch.equal(again.dequantize(), quantized.dequantize())


def test_usages_follow_from_the_codes_or_are_refused(make_quantizer):
    x = torch.randn(48, 32)
    both, rowwise = make_quantizer()(x), make_quantizer(columnwise=False)(x)
    if not rowwise._quantizer.row_scheme.is_transposable:
        with pytest.raises(RecipeError, match="the columnwise copy must follow from the codes"):
            rowwise.update_usage(columnwise_usage=True)
        return
    rowwise.update_usage(rowwise_usage=False, columnwise_usage=True)
    assert rowwise.get_usages() == {"rowwise": False, "columnwise": True}
    for name in both.COLUMNWISE:
        if name is not None:
            assert torch.equal(getattr(rowwise, name), getattr(both, name)), name
    rowwise.update_usage(rowwise_usage=True)
    assert torch.equal(getattr(rowwise, both.ROWWISE.codes), getattr(both, both.ROWWISE.codes))


def test_cleared_tensors_say_so(quantizer):
    quantized = quantizer(torch.ones(2, 2))
    quantized.clear()
    assert quantized.get_usages() == {"rowwise": False, "columnwise": False}
    assert "cleared" in repr(quantized)
    with pytest.raises(RecipeError, match="it was cleared"):
        quantized.dequantize()


def test_storages_are_taken_apart_and_put_together(make_quantizer):
    storage = make_quantizer(internal=True)(torch.randn(32, 16))
    expected = storage.dequantize()
    tensors, skeleton = storage.prepare_for_saving()
    assert all(type(tensor) is torch.Tensor for tensor in tensors)
    assert skeleton.get_usages() == {"rowwise": False, "columnwise": False}
    assert torch.equal(storage.dequantize(), expected)
    extra = torch.ones(1)
    assert skeleton.restore_from_saved([*tensors, extra]) == [extra]
    assert torch.equal(skeleton.dequantize(), expected)
    with pytest.raises(RecipeError, match="saved tensors, got 0"):
        storage.restore_from_saved([])


def test_tensors_are_taken_apart_and_put_together(quantizer):
    quantized = quantizer(torch.randn(32, 16))
    tensors, skeleton = quantized.prepare_for_saving()
    assert type(skeleton) is type(quantized)
    assert skeleton.restore_from_saved(tensors) == []
    assert torch.equal(skeleton.dequantize(), quantized.dequantize())


class SaveEverything(torch.autograd.Function):
    """Saves a mix of operands for backward; the gradient is the sum of their decoded values."""

    @staticmethod
    def forward(ctx, x, storages, order):
        saved, ctx.objects = prepare_for_saving(storages[0], None, x, storages[1], storages[2])
        ctx.save_for_backward(*saved)
        ctx.order = order
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        pair = (ctx.saved_tensors, ctx.objects)
        first, nothing, x, tensor, last = restore_from_saved(*(pair if ctx.order == "saved" else pair[::-1]))
        assert nothing is None
        return grad * (first.dequantize() + x + tensor.dequantize() + last.dequantize()), None, None


@pytest.mark.parametrize("order", ["saved", "objects"])
def test_any_mix_is_saved_for_backward(order):
    first = MXFP8Quantizer(E4M3, internal=True)(torch.ones(4, 4))
    tensor = Float8CurrentScalingQuantizer(E4M3)(torch.full((4, 4), 2.0))
    last = NVFP4Quantizer(internal=True, columnwise=False)(torch.full((4, 4), 4.0))
    x = torch.full((4, 4), 8.0, requires_grad=True)
    SaveEverything.apply(x, (first, tensor, last), order).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((4, 4), 15.0))
    assert torch.equal(first.dequantize(), torch.ones(4, 4))


def test_saving_nothing_but_plain_tensors():
    one, two = torch.ones(1), torch.zeros(2)
    restored = restore_from_saved(*prepare_for_saving(one, None, two))
    assert restored[0] is one
    assert restored[1] is None
    assert restored[2] is two


@pytest.mark.parametrize(
    "make_swizzled",
    [lambda **o: MXFP8Quantizer(E4M3, **o), lambda **o: NVFP4Quantizer(**o)],
    ids=["mxfp8", "nvfp4"],
)
def test_swizzled_scales_are_marked_and_decode_the_same(make_swizzled):
    x = torch.randn(130, 160)
    compact, swizzled = make_swizzled()(x), make_swizzled(optimize_for_gemm=True)(x)
    assert not compact._with_gemm_swizzled_scales
    assert swizzled._with_gemm_swizzled_scales
    assert torch.equal(swizzled.dequantize(), compact.dequantize())
    # Row 33 of the first column of scales lies in byte (33 % 32) * 16 + 33 // 32 * 4 of the first 512.
    assert swizzled._rowwise_scale_inv.flatten()[20] == compact._rowwise_scale_inv[33, 0]
    for each in (compact, swizzled):
        each.update_usage(rowwise_usage=False)
    assert torch.equal(swizzled.dequantize(), compact.dequantize())
    swizzled.quantize_(x * 4)
    compact.quantize_(x * 4)
    assert torch.equal(swizzled.dequantize(), compact.dequantize())
    again = type(swizzled)(**swizzled.get_metadata())
    assert torch.equal(again.dequantize(), compact.dequantize())


@pytest.mark.parametrize("dim", [1, 2])
def test_swizzled_block_scales_decode_the_same(dim):
    from steelyard.tensor import Float8BlockQuantizer

    x = torch.randn(130, 300)
    compact = Float8BlockQuantizer(E4M3, block_scaling_dim=dim)(x)
    swizzled = Float8BlockQuantizer(E4M3, block_scaling_dim=dim, optimize_for_gemm=True)(x)
    assert swizzled._rowwise_scale_inv.shape == ((3, 132) if dim == 1 else (2, 4))
    assert torch.equal(swizzled.dequantize(), compact.dequantize())
    assert torch.equal(swizzled[:, :128].dequantize(), compact.dequantize()[:, :128])


CODES = torch.zeros(2, 4, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Float8Tensor(fp8_dtype=E4M3, fp8_scale_inv=1.0), "codes and scales of at least one copy, got none"),
        (lambda: Float8Tensor(data=CODES, fp8_dtype=E4M3, fp8_scale_inv=torch.ones(2)), "must be one value"),
        (
            lambda: Float8Tensor(data=CODES.float(), fp8_dtype=E4M3, fp8_scale_inv=1.0),
            "data must be uint8, int8 or torch.float8_e4m3fn, got torch.float32",
        ),
        (
            lambda: Float8Tensor(data=CODES.view(E5M2), fp8_dtype=E4M3, fp8_scale_inv=1.0),
            "data must be uint8, int8 or torch.float8_e4m3fn, got torch.float8_e5m2",
        ),
        (
            lambda: Float8Tensor(data_transpose=CODES.bool(), fp8_dtype=E4M3, fp8_scale_inv=1.0),
            "data_transpose must be .* got torch.bool",
        ),
        (
            lambda: MXFP8Tensor(fp8_dtype=E5M2, rowwise_data=CODES.view(E4M3), rowwise_scale_inv=CODES[:, :1]),
            "rowwise_data must be .* got torch.float8_e4m3fn",
        ),
        (
            lambda: MXFP8Tensor(fp8_dtype=E4M3, rowwise_data=CODES, rowwise_scale_inv=CODES[:, :1].view(E4M3)),
            "rowwise_scale_inv must be uint8, int8 or torch.float8_e8m0fnu, got torch.float8_e4m3fn",
        ),
        (
            lambda: NVFP4Tensor(rowwise_data=CODES.view(E4M3), rowwise_scale_inv=CODES[:, :1]),
            "rowwise_data must be uint8, int8 or torch.float4_e2m1fn_x2, got torch.float8_e4m3fn",
        ),
        (
            lambda: Float8Tensor(data=[1, 2], fp8_dtype=E4M3, fp8_scale_inv=1.0),
            "data must be a tensor, got list",
        ),
        (
            lambda: Float8Tensor(data=CODES, fp8_dtype=E4M3, fp8_scale_inv=1.0, shape=(3, 4)),
            r"_data of a tensor of shape \(3, 4\) must hold 3x4 codes, got shape \(2, 4\)",
        ),
        (
            lambda: Float8TensorStorage(data=CODES, fp8_dtype=E4M3, fp8_scale_inv=1.0, dtype=torch.int8),
            "dtype must be float32, bfloat16, float16 or float64, got torch.int8",
        ),
        (
            lambda: Float8Tensor(
                data=CODES, fp8_dtype=E4M3, fp8_scale_inv=1.0, quantizer=Float8CurrentScalingQuantizer(E5M2)
            ),
            "fp8_dtype must be the quantizer's",
        ),
        (
            lambda: MXFP8Tensor(fp8_dtype=E4M3, rowwise_data=CODES, rowwise_scale_inv=CODES),
            r"_rowwise_scale_inv must be torch.uint8 of shape \(2, 1\), got torch.uint8 of shape \(2, 4\)",
        ),
        (
            lambda: NVFP4Tensor(rowwise_data=CODES, rowwise_scale_inv=CODES[:, :1]),
            r"_amax_rowwise must be torch.float32 of shape \(\), got None",
        ),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(make, message):
    with pytest.raises(RecipeError, match=message):
        make()
