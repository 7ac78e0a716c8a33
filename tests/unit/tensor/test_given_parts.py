"""Tensors made from parts that a user gives: one value with any dims, and padded scales."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from steelyard.driver import saving
from steelyard.errors import RecipeError
from steelyard.formats.schemes import Scheme
from steelyard.tensor import (
    Float8BlockQuantizer,
    Float8BlockwiseQTensor,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    Float8RowTensor,
    Float8Tensor,
    MXFP4Tensor,
    MXFP8Quantizer,
    MXFP8Tensor,
    NVFP4Quantizer,
    NVFP4Tensor,
)

E4M3 = torch.float8_e4m3fn
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
ONE = [(), (1,), (1, 1)]


@pytest.mark.parametrize("shape", ONE)
def test_a_scale_of_one_value(shape):
    codes = torch.tensor([[0x3C, 0x38]], dtype=torch.uint8)
    tensor = Float8Tensor(data=codes, fp8_dtype=E4M3, fp8_scale_inv=torch.full(shape, 0.5))
    assert tensor.dequantize().tolist() == [[0.75, 0.5]]
    quantizer = Float8Quantizer(torch.full(shape, 4.0), torch.zeros(shape), E4M3)
    # 1 * 4 has exponent 2 + 7.
    assert quantizer(torch.ones(1, 1))._data.tolist() == [[0x48]]


@pytest.mark.parametrize("shape", ONE)
@pytest.mark.parametrize("rows", [1, 3])
def test_an_amax_of_one_value(shape, rows):
    # Codes 6 and -1, block scale 448 (0x7E), amax 12: 6 * 448 * 12 / (6 * 448).
    codes = torch.tensor([[0xA7]], dtype=torch.uint8).expand(rows, 1)
    scales = torch.full((rows, 1), 0x7E, dtype=torch.uint8)
    amax = torch.full(shape, 12.0)
    rowwise = NVFP4Tensor(rowwise_data=codes, rowwise_scale_inv=scales, amax_rowwise=amax)
    assert rowwise.dequantize().tolist() == [[12.0, -2.0]] * rows
    assert not rowwise._quantizer.row_scaled
    columnwise = NVFP4Tensor(columnwise_data=codes, columnwise_scale_inv=scales, amax_columnwise=amax, shape=(2, rows))
    assert columnwise.dequantize().T.tolist() == [[12.0, -2.0]] * rows
    if rows == 1:
        quantizer = NVFP4Quantizer(row_scaled=True)
        by_row = NVFP4Tensor(rowwise_data=codes, rowwise_scale_inv=scales, amax_rowwise=amax, quantizer=quantizer)
        assert by_row._amax_rowwise.shape == (1,)
        assert by_row.dequantize().tolist() == [[12.0, -2.0]]


def test_an_amax_per_row():
    codes, scales = (torch.full((2, 1), code, dtype=torch.uint8) for code in (0xA7, 0x7E))
    amax = torch.tensor([12.0, 6.0])
    for options in ({}, {"row_scaled_nvfp4": True}, {"quantizer": NVFP4Quantizer(row_scaled=True)}):
        tensor = NVFP4Tensor(rowwise_data=codes, rowwise_scale_inv=scales, amax_rowwise=amax, **options)
        assert tensor.dequantize().tolist() == [[12.0, -2.0], [6.0, -1.0]]
    # Four over six maps the amax to 256 instead of 448.
    tensor = NVFP4Tensor(
        rowwise_data=codes, rowwise_scale_inv=scales, amax_rowwise=torch.tensor([256.0]), nvfp4_use_4over6=True
    )
    torch.testing.assert_close(tensor.dequantize(), torch.tensor([[448.0, -448 / 6]] * 2))
    with pytest.raises(RecipeError, match=r"row_scaled_nvfp4 must be that of the quantizer .* got True; leave it out"):
        NVFP4Tensor(
            rowwise_data=codes,
            rowwise_scale_inv=scales,
            amax_rowwise=amax,
            row_scaled_nvfp4=True,
            quantizer=NVFP4Quantizer(),
        )


@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_a_scale_per_row(shape):
    codes = torch.tensor([[0x3C, 0x38], [0x40, 0xB8]], dtype=torch.uint8)
    scales = torch.tensor([0.5, 4.0]).reshape(shape)
    tensor = Float8RowTensor(fp8_dtype=E4M3, rowwise_data=codes.view(E4M3), rowwise_scale_inv=scales)
    assert tensor.dequantize().tolist() == [[0.75, 0.5], [8.0, -4.0]]
    assert tensor._rowwise_scale_inv.shape == (2, 1)
    transposed = Float8RowTensor(fp8_dtype=E4M3, columnwise_data=codes, columnwise_scale_inv=scales)
    assert transposed.dequantize().tolist() == [[0.75, 8.0], [0.5, -4.0]]
    with pytest.raises(RecipeError, match=r"_rowwise_scale_inv must be torch.float32 of shape \(2, 1\)"):
        Float8RowTensor(fp8_dtype=E4M3, rowwise_data=codes, rowwise_scale_inv=torch.ones(3))


# Floats that do not survive being turned into an amax, 2688 times as large, and back.
LEVELS = [0x3727C5AD, 0x38D1B717, 0x3A83126F, 0x33D6BF95, 0x00000001, 0x7F000000]


@pytest.mark.parametrize("name", ["tensor_scale_inv", "tensor_scale"])
@pytest.mark.parametrize("bits", LEVELS)
def test_a_second_level_is_kept_and_decoded_as_it_came(name, bits, tmp_path):
    level = torch.tensor([bits], dtype=torch.int32).view(torch.float32)
    codes = torch.randint(256, (32, 16), dtype=torch.uint8)
    scales = torch.randint(0x30, 0x50, (32, 2), dtype=torch.uint8).view(E4M3)
    tensor = NVFP4Tensor(rowwise_data=codes, rowwise_scale_inv=scales, **{name: level})
    low, high = torch.tensor(E2M1)[codes.long() % 16], torch.tensor(E2M1)[codes.long() // 16]
    values = torch.stack([low, high], dim=-1).reshape(32, 32).numpy()
    # Both levels together are rounded to float32 first.
    with np.errstate(over="ignore", invalid="ignore"):
        both = (
            scales.float().numpy() / level.numpy() if name == "tensor_scale" else scales.float().numpy() * level.numpy()
        )
        expected = torch.from_numpy(values * np.repeat(both, 16, axis=1))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        torch.testing.assert_close(tensor.dequantize(dtype=dtype), expected.to(dtype), rtol=0, atol=0, equal_nan=True)
    torch.save({"weight": tensor}, tmp_path / "weight.pt")
    loaded = torch.load(tmp_path / "weight.pt", weights_only=True)["weight"]
    empty = NVFP4Tensor(rowwise_data=codes * 0, rowwise_scale_inv=scales, **{name: 1.0})
    with torch.no_grad():
        empty.copy_(tensor)
    for same in (tensor.clone(), copy.deepcopy(tensor), loaded, empty, tensor[:16], tensor.t().t()):
        assert torch.equal(same._rowwise_data, codes[: same.shape[0]])
        assert torch.equal(same._rowwise_scale_inv, scales.view(torch.uint8)[: same.shape[0]])
        assert getattr(same, f"_{name}").view(torch.int32).item() == bits
        assert {same._tensor_scale_inv is None, same._tensor_scale is None} == {False, True}
    flat = {"weight": tensor}
    saving.flatten(flat)
    assert flat["weight.amax"].view(torch.int32).item() == bits
    joined = saving.join(flat)["weight"]
    assert getattr(joined, f"_{name}").view(torch.int32).item() == bits
    assert joined._rowwise_data.equal(codes)


def test_a_second_level_is_given_once():
    codes, scales = torch.zeros(1, 8, dtype=torch.uint8), torch.zeros(1, 1, dtype=torch.uint8)
    parts = {"rowwise_data": codes, "rowwise_scale_inv": scales}
    with pytest.raises(RecipeError, match="has amax_rowwise or tensor_scale_inv, got both; leave one out"):
        NVFP4Tensor(**parts, amax_rowwise=torch.ones(()), tensor_scale_inv=1.0)
    with pytest.raises(RecipeError, match="has amax_rowwise or tensor_scale, got both; leave one out"):
        NVFP4Tensor(**parts, amax_rowwise=torch.ones(()), tensor_scale=1.0)
    with pytest.raises(RecipeError, match="has tensor_scale_inv or tensor_scale, got both; leave one out"):
        NVFP4Tensor(**parts, tensor_scale_inv=1.0, tensor_scale=1.0)
    with pytest.raises(RecipeError, match="the quantizer must have a tensor_scale, too"):
        NVFP4Tensor(**parts, tensor_scale=1.0, quantizer=NVFP4Quantizer(tensor_scale_inv=1.0))
    with pytest.raises(RecipeError, match="the quantizer must have a tensor_scale_inv, too"):
        NVFP4Tensor(**parts, tensor_scale_inv=1.0, quantizer=NVFP4Quantizer())
    for name in ("tensor_scale_inv", "tensor_scale"):
        with pytest.raises(RecipeError, match=rf"^{name} must be one value, got torch.float32 of shape \(2,\)"):
            NVFP4Tensor(**parts, **{name: torch.ones(2)})


def test_programs_read_a_divisor_as_it_is():
    tensor = NVFP4Tensor(
        rowwise_data=torch.full((16, 8), 0x21, dtype=torch.uint8),
        rowwise_scale_inv=torch.full((16, 1), 0x38, dtype=torch.uint8),
        tensor_scale=2688 / 7.3,
    )
    scheme = Scheme("f4E2M1FN", "1x16", "f8E4M3FN", second_level="tensor")
    parts = tensor.weight_parts(replace(scheme, source="divisor"), is_transposed=False)
    assert parts[2].item() == np.float32(2688 / 7.3)
    for source in ("static", "current"):
        assert tensor.weight_parts(replace(scheme, source=source), is_transposed=False) is None


def test_packed_codes_in_blocks_of_32():
    # Codes 1 to 4 are 0.5, 1, 1.5 and 2; the last block is ragged.
    codes = torch.tensor([[0x21] * 16 + [0x43]], dtype=torch.uint8)
    expected = torch.tensor([[0.5, 1.0] * 16 + [3.0, 4.0]])
    bytes_ = torch.tensor([[127, 128]], dtype=torch.uint8)
    for data, scales in ((codes, bytes_), (codes.view(torch.float4_e2m1fn_x2), bytes_.view(torch.float8_e8m0fnu))):
        assert torch.equal(MXFP4Tensor(rowwise_data=data, rowwise_scale_inv=scales).dequantize(), expected)
    columnwise = MXFP4Tensor(columnwise_data=codes, columnwise_scale_inv=bytes_, shape=(34, 1))
    assert torch.equal(columnwise.dequantize(), expected.T)
    # E4M3 scales 1 and 2 under an amax of 2688.
    parts = {"rowwise_scale_inv": torch.tensor([[0x38, 0x40]], dtype=torch.uint8), "amax_rowwise": torch.tensor(2688.0)}
    for options in ({"block_size": 32}, {"quantizer": NVFP4Quantizer(block_size=32)}):
        assert torch.equal(NVFP4Tensor(rowwise_data=codes, **parts, **options).dequantize(), expected)
    with pytest.raises(RecipeError, match=r"_rowwise_scale_inv must be torch.uint8 of shape \(1, 3\)"):
        NVFP4Tensor(rowwise_data=codes, **parts)
    with pytest.raises(RecipeError, match=r"block_size must be that of the quantizer .* got 32; leave it out"):
        NVFP4Tensor(rowwise_data=codes, **parts, block_size=32, quantizer=NVFP4Quantizer())


@pytest.mark.parametrize("shape", ONE)
def test_a_block_scale_of_one_value(shape):
    codes = torch.tensor([[0x3C, 0x38]], dtype=torch.uint8)
    mx = MXFP8Tensor(fp8_dtype=E4M3, rowwise_data=codes, rowwise_scale_inv=torch.full(shape, 128, dtype=torch.uint8))
    assert mx.dequantize().tolist() == [[3.0, 2.0]]
    block = Float8BlockwiseQTensor(fp8_dtype=E4M3, rowwise_data=codes, rowwise_scale_inv=torch.full(shape, 2.0))
    assert block.dequantize().tolist() == [[3.0, 2.0]]


def padded(scales: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Scales with rows and columns up to these multiples, filled with what must not be read."""
    sizes = [-(-size // multiple) * multiple for size, multiple in zip(scales.shape, (rows, columns), strict=True)]
    whole = torch.full(sizes, 0x55).to(scales.dtype)
    whole[: scales.shape[0], : scales.shape[1]] = scales
    return whole


@pytest.mark.parametrize(
    ("make", "row", "col"),
    [
        (lambda **o: MXFP8Quantizer(E4M3, **o), (128, 4), (4, 128)),
        (lambda **o: NVFP4Quantizer(**o), (128, 4), (128, 4)),
        (lambda **o: NVFP4Quantizer(with_2d_quantization=True, **o), (128, 4), (128, 4)),
        (lambda **o: Float8BlockQuantizer(E4M3, block_scaling_dim=2, **o), (1, 4), (1, 4)),
    ],
    ids=["mxfp8", "nvfp4", "nvfp4-tiles", "tiles"],
)
@pytest.mark.parametrize("shape", [(130, 160), (5, 32), (2, 65, 160), (128, 512)])
def test_padded_scales_are_taken(make, row, col, shape):
    quantized = make()(torch.randn(shape))
    given = quantized.get_metadata()
    given["rowwise_scale_inv"] = padded(given["rowwise_scale_inv"], *row)
    given["columnwise_scale_inv"] = padded(given["columnwise_scale_inv"], *col)
    tensor = type(quantized)(**given)
    for usage in ({}, {"rowwise_usage": False}):
        tensor.update_usage(**usage)
        quantized.update_usage(**usage)
        assert torch.equal(tensor.dequantize(), quantized.dequantize())
    new = torch.randn(shape)
    assert torch.equal(tensor.copy_(new).dequantize(), make(rowwise=False)(new).dequantize())


def test_other_scales_are_refused():
    quantized = MXFP8Quantizer()(torch.randn(130, 160))
    for wrong in ((256, 5), (130, 8), (8, 256), (256, 12)):
        with pytest.raises(RecipeError, match=r"_rowwise_scale_inv must be torch.uint8 of shape \(130, 5\), got"):
            MXFP8Tensor(**{**quantized.get_metadata(), "rowwise_scale_inv": torch.zeros(wrong, dtype=torch.uint8)})
    block = Float8BlockQuantizer(E4M3, block_scaling_dim=1)(torch.randn(130, 300))
    with pytest.raises(RecipeError, match="pass with_gemm_swizzled_scales=True"):
        Float8BlockwiseQTensor(**{**block.get_metadata(), "rowwise_scale_inv": torch.zeros(3, 132)})


def test_the_device_of_the_parts_may_be_named():
    given = Float8CurrentScalingQuantizer(E4M3)(torch.ones(2, 2)).get_metadata()
    assert Float8Tensor(**given, device="cpu").device.type == "cpu"
    with pytest.raises(RecipeError, match="device must be that of the parts, cpu, got 'meta'; move them first"):
        Float8Tensor(**given, device="meta")
