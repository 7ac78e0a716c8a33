"""Bytes against the quantizers of other projects: equal where the rules are, and how they differ elsewhere."""

import pytest
import torch

from steelyard.tensor import (
    Float8RowQuantizer,
    Float8RowTensor,
    MXFP4Quantizer,
    MXFP4Tensor,
    NVFP4Quantizer,
    NVFP4Tensor,
)

E4M3 = torch.float8_e4m3fn
FORMATS = {
    "FP8_DYNAMIC": "float-quantized",
    "MXFP4": "mxfp4-pack-quantized",
    "NVFP4": "nvfp4-pack-quantized",
}


def compress(preset: str, weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The tensors that compressed-tensors stores for a weight, and what it decodes them to."""
    # Slow to import, so only where these tests run.
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import preset_name_to_scheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    scheme = preset_name_to_scheme(preset, ["Linear"])
    blocks = weight.reshape(weight.shape[0], -1, scheme.weights.group_size or weight.shape[1])
    parts = {"weight": weight}
    if preset == "NVFP4":
        parts["weight_global_scale"] = generate_gparam(weight.min(), weight.max())
    parts["weight_scale"], _ = calculate_qparams(
        blocks.amin(-1), blocks.amax(-1), scheme.weights, parts.get("weight_global_scale")
    )
    compressor = BaseCompressor.get_value_from_registry(FORMATS[preset])
    compressed = compressor.compress(parts, scheme)
    return compressed, compressor.decompress(compressed, scheme)["weight"]


def make_weight(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows of many magnitudes, a block of zeros, and all that a power of two can round to."""
    weight = torch.randn(48, 128) * torch.exp2(torch.randint(-20, 20, (48, 1)))
    weight[1, :32] = 0
    weight[2, :32] = torch.linspace(0, 1, 32)
    weight[3:19, :32] *= 0.01
    weight[3:19, 0] = torch.exp2(torch.arange(16.0)) * torch.arange(16, 32) / 16
    return weight.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mxfp4_by_the_rule_even_writes_the_bytes_of_compressed_tensors(dtype):
    weight = make_weight(dtype)
    theirs, decoded = compress("MXFP4", weight)
    ours = MXFP4Quantizer(scale_rule="even", columnwise=False)(weight)
    assert torch.equal(ours._rowwise_scale_inv, theirs["weight_scale"])
    assert torch.equal(ours._rowwise_data, theirs["weight_packed"])
    loaded = MXFP4Tensor(rowwise_data=theirs["weight_packed"], rowwise_scale_inv=theirs["weight_scale"])
    assert torch.equal(loaded.dequantize(), decoded.float())


def of_compressed_tensors(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    theirs, _ = compress("FP8_DYNAMIC", weight)
    return theirs["weight"], theirs["weight_scale"]


def of_torchao(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    torchao = pytest.importorskip("torchao.quantization.quant_primitives")
    scale = torchao._choose_scale_float8(weight, [1, weight.shape[1]])
    return torchao._quantize_affine_float8(weight, scale), scale


@pytest.mark.parametrize("quantize", [of_compressed_tensors, of_torchao], ids=lambda quantize: quantize.__name__)
def test_fp8_rows_write_the_bytes_of_others_where_scales_are_exact(quantize):
    weight = make_weight()
    # 448 / 7 = 64, so that amax / 448 and 1 / (448 / amax) are the same power of two.
    weight[:, 5] = 7 * weight.abs().amax(1).log2().ceil().exp2()
    codes, scales = quantize(weight)
    ours = Float8RowQuantizer(columnwise=False)(weight)
    assert torch.equal(ours._rowwise_scale_inv, scales)
    assert torch.equal(ours._rowwise_data, codes.view(torch.uint8))


def test_fp8_rows_differ_from_compressed_tensors_by_a_rounding_of_the_scale():
    # Ours rounds 448 / amax, multiplies, and stores the reciprocal; theirs rounds amax / 448, and divides.
    weight = torch.tensor([[1.0, -11.0]])
    theirs, _ = compress("FP8_DYNAMIC", weight)
    ours = Float8RowQuantizer(columnwise=False)(weight)
    assert theirs["weight_scale"].view(torch.int32).item() == 0x3CC92492
    assert ours._rowwise_scale_inv.view(torch.int32).item() == 0x3CC92493
    assert ours._rowwise_data.tolist() == theirs["weight"].view(torch.uint8).tolist() == [[0x62, 0xFE]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fp8_rows_of_compressed_tensors_decode_to_the_same_bits(dtype):
    theirs, decoded = compress("FP8_DYNAMIC", make_weight(dtype))
    assert theirs["weight_scale"].dtype == dtype
    loaded = Float8RowTensor(
        fp8_dtype=E4M3, rowwise_data=theirs["weight"], rowwise_scale_inv=theirs["weight_scale"].float(), dtype=dtype
    )
    assert torch.equal(loaded.dequantize(), decoded)


def test_nvfp4_differs_from_compressed_tensors_in_zeros_alone_where_scales_are_exact():
    weight = torch.randint(-6, 7, (16, 64)).float()
    weight[:, ::16], weight[0, 0], weight[1, :16] = 6.0, 2688.0, 0
    theirs, decoded = compress("NVFP4", weight)
    ours = NVFP4Quantizer(columnwise=False)(weight)
    # The amax is 2688, so that the second level is 1, and blocks with the amax 6 have the scale 1.
    assert theirs["weight_global_scale"] == 1
    assert torch.equal(ours._rowwise_data, theirs["weight_packed"])
    differing = ours._rowwise_scale_inv != theirs["weight_scale"].view(torch.uint8)
    assert differing.nonzero().tolist() == [[1, 0]]
    # A block of zeros has the scale 0 here, and 0.125 there.
    assert (ours._rowwise_scale_inv[1, 0], theirs["weight_scale"][1, 0].float()) == (0, 0.125)
    assert torch.equal(ours.dequantize(), decoded.float())


def nvfp4_parts(rows: int, blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of E4M3: any but negative ones, which nobody writes."""
    scales = torch.randint(0, 0x7F, (rows, blocks), dtype=torch.uint8)
    scales[0, 0], scales[0, 1], scales[0, 2] = 0, 1, 0x7E
    return torch.randint(256, (rows, blocks * 8), dtype=torch.uint8), scales.view(E4M3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("level", [3.7, 11264.0 / 3, 2688 / 0.0173, 1e-3, 2.0**-126, 3e38])
def test_nvfp4_of_compressed_tensors_decodes_to_the_same_bits(level, dtype):
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import preset_name_to_scheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    codes, scales, divisor = *nvfp4_parts(37, 5), torch.tensor([level])
    decoded = dequantize(
        unpack_fp4_from_uint8(codes, 37, 80, dtype=dtype),
        scales.to(dtype),
        args=preset_name_to_scheme("NVFP4", ["Linear"]).weights,
        dtype=dtype,
        global_scale=divisor,
    )
    loaded = NVFP4Tensor(rowwise_data=codes, rowwise_scale_inv=scales, tensor_scale=divisor, dtype=dtype)
    assert torch.equal(loaded._tensor_scale, divisor.reshape(()))
    assert decoded.dtype == dtype
    torch.testing.assert_close(loaded.dequantize(), decoded, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nvfp4_that_compressed_tensors_writes_is_read_back_as_it_reads_it(dtype):
    theirs, decoded = compress("NVFP4", make_weight(dtype))
    loaded = NVFP4Tensor(
        rowwise_data=theirs["weight_packed"],
        rowwise_scale_inv=theirs["weight_scale"],
        tensor_scale=theirs["weight_global_scale"],
        dtype=decoded.dtype,
    )
    assert torch.equal(loaded.dequantize(), decoded)


@pytest.mark.parametrize("rule", ["rceil", "floor", "ceil", "even"])
def test_mxfp4_writes_the_bytes_of_torchao(rule):
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    weight = make_weight()
    scales, codes = mx.to_mx(weight, torch.float4_e2m1fn_x2, 32, mx.ScaleCalculationMode[rule.upper()])
    ours = MXFP4Quantizer(scale_rule=rule, columnwise=False)(weight)
    assert torch.equal(ours._rowwise_scale_inv, scales.view(torch.uint8))
    assert torch.equal(ours._rowwise_data, codes.view(torch.uint8))
