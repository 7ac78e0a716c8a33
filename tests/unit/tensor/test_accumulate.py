"""Where a GEMM rounds when it adds to an accumulator: once, after the addition."""

import pytest
import torch

from steelyard.tensor import Float8Quantizer, NVFP4Quantizer, Quantizer
from steelyard.tensor.reference import CurrentScalingQuantizerRef

E4M3 = torch.float8_e4m3fn


class Decoded(CurrentScalingQuantizerRef):
    """Multiplies as the base class does."""

    qgemm = Quantizer.qgemm


QUANTIZERS = {
    "kernel": lambda: Float8Quantizer(torch.ones(()), torch.zeros(()), E4M3),
    "example": CurrentScalingQuantizerRef,
    "base": Decoded,
}


@pytest.fixture(params=QUANTIZERS)
def quantizer(request):
    return QUANTIZERS[request.param]()


def operands(quantizer):
    """Two vectors whose product is 1 + 2^-8, exactly. 448 is a code of every scale that is a power of two."""
    x, w = torch.tensor([[1.0, 2.0**-4, 448.0]]), torch.tensor([[1.0, 2.0**-4, 0.0]])
    return quantizer(x), quantizer(torch.cat([w, torch.tensor([[0.0, 0.0, 448.0]])]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_sum_is_rounded_once(quantizer, dtype):
    x, w = operands(quantizer)
    product = quantizer.qgemm(x, w)[0, 0]
    assert product == 1 + 2**-8
    # Alone, the product is a tie between two bfloat16 values, and rounds to the even one.
    assert quantizer.qgemm(x, w, out_dtype=torch.bfloat16)[0, 0] == 1
    addend = torch.tensor([[2.0**-8, 0.0]], dtype=dtype)
    for added in ({"accumulate": addend}, {"bias": addend[0]}):
        found = quantizer.qgemm(x, w, out_dtype=torch.bfloat16, **added)
        assert found.dtype == torch.bfloat16
        assert found[0, 0] == 1 + 2**-7
        assert torch.tensor(1.0).bfloat16() + addend[0, 0].bfloat16() == 1


def test_both_addends_are_added_before_the_rounding(quantizer):
    x, w = operands(quantizer)
    bias, accumulate = torch.full((2,), 2.0**-9).bfloat16(), torch.full((1, 2), 2.0**-9).bfloat16()
    found = quantizer.qgemm(x, w, bias=bias, accumulate=accumulate, out_dtype=torch.bfloat16)
    assert found[0, 0] == 1 + 2**-7


def test_a_narrow_accumulator_stops_where_a_wide_one_does_not():
    quantizer = NVFP4Quantizer()
    # 2^-5 * 2^-5, and an accumulator that steps by 2^-7.
    x = quantizer(torch.tensor([[2.0**-5]]))
    narrow, wide = torch.ones(1, 1).bfloat16(), torch.ones(1, 1)
    for _ in range(64):
        narrow = quantizer.qgemm(x, x, accumulate=narrow, out_dtype=torch.bfloat16)
        wide = quantizer.qgemm(x, x, accumulate=wide)
    assert narrow.item() == 1
    assert wide.item() == pytest.approx(1 + 64 * 2.0**-10, rel=1e-6)
