import pytest
import torch

from steelyard.tensor import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    Float8RowQuantizer,
    MXFP4Quantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
)

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
QUANTIZERS = {
    "delayed": lambda **usage: Float8Quantizer(torch.tensor(2.5), torch.zeros(1), E4M3, **usage),
    "current": lambda **usage: Float8CurrentScalingQuantizer(E4M3, **usage),
    "current-e5m2-pow2": lambda **usage: Float8CurrentScalingQuantizer(E5M2, force_pow_2_scales=True, **usage),
    "row": lambda **usage: Float8RowQuantizer(E4M3, **usage),
    "block": lambda **usage: Float8BlockQuantizer(E4M3, block_scaling_dim=1, **usage),
    "tiles": lambda **usage: Float8BlockQuantizer(E4M3, block_scaling_dim=2, **usage),
    "mxfp8": lambda **usage: MXFP8Quantizer(E4M3, **usage),
    "mxfp8-e5m2-floor": lambda **usage: MXFP8Quantizer(E5M2, scale_rule="floor", **usage),
    "mxfp8-tiles": lambda **usage: MXFP8Quantizer(E4M3, with_2d_quantization=True, **usage),
    "mxfp4": lambda **usage: MXFP4Quantizer(scale_rule="even", **usage),
    "nvfp4": lambda **usage: NVFP4Quantizer(**usage),
    "nvfp4-rht": lambda **usage: NVFP4Quantizer(with_rht=True, **usage),
    "nvfp4-tiles": lambda **usage: NVFP4Quantizer(with_2d_quantization=True, **usage),
    "nvfp4-row": lambda **usage: NVFP4Quantizer(row_scaled=True, **usage),
    "nvfp4-32": lambda **usage: NVFP4Quantizer(block_size=32, **usage),
    "nvfp4-given": lambda **usage: NVFP4Quantizer(tensor_scale_inv=1 / 12, **usage),
    "nvfp4-divisor": lambda **usage: NVFP4Quantizer(tensor_scale=12.0, **usage),
    "nvfp4-4over6": lambda **usage: NVFP4Quantizer(four_over_six="mse", **usage),
}


@pytest.fixture(params=QUANTIZERS)
def make_quantizer(request):
    """Makes a quantizer of one of the formats, with the given usages."""
    return QUANTIZERS[request.param]


@pytest.fixture
def quantizer(make_quantizer):
    return make_quantizer()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
