"""What can be set on quantizers, under the names that users of other libraries know, too."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch

from steelyard.errors import RecipeError
from steelyard.tensor import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
)
from steelyard.tensor.reference import CurrentScalingQuantizerRef

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize(
    "show",
    [
        lambda quantizer, x: quantizer(x),
        lambda quantizer, x: quantizer.calibrate(x),
        lambda quantizer, x: quantizer.update_quantized(x, quantizer.make_empty(x.shape)),
        lambda quantizer, x: quantizer.make_empty(x.shape).copy_(x),
        lambda quantizer, x: quantizer.make_empty(x.shape).quantize_(x),
    ],
    ids=["quantize", "calibrate", "update", "copy", "quantize_"],
)
def test_the_amax_is_the_largest_until_it_is_reset(show, shape):
    amax = torch.zeros(shape)
    quantizer = Float8Quantizer(torch.ones(shape), amax, E4M3)
    tensors = [torch.randn(4, 8) * size for size in (1, 9, 3)]
    tensors[1][2, 5] = -77.0
    for tensor in tensors:
        show(quantizer, tensor)
    assert (amax.shape, amax.item()) == (shape, 77.0)
    amax.zero_()
    show(quantizer, tensors[0].bfloat16())
    assert amax.item() == tensors[0].bfloat16().float().abs().max().item()
    show(quantizer, torch.empty(0, 8))
    show(quantizer, torch.tensor([[1.0, torch.nan]]))
    show(quantizer, tensors[0])
    assert amax.isnan()


def test_calibrating_without_state_changes_nothing(make_quantizer):
    quantizer = make_quantizer()
    before = copy.deepcopy(vars(quantizer))
    if not isinstance(quantizer, Float8Quantizer):
        assert quantizer.calibrate(torch.randn(4, 32)) is None
        assert vars(quantizer) == before
    with pytest.raises(RecipeError, match="takes float32"):
        Float8Quantizer(torch.ones(()), torch.zeros(()), E4M3).calibrate(torch.ones(3, dtype=torch.int64))


def test_usages_can_be_set_by_either_name(make_quantizer):
    quantizer = make_quantizer()
    quantizer.columnwise_usage = False
    assert (quantizer.columnwise, quantizer.get_usages()) == (False, {"rowwise": True, "columnwise": False})
    assert quantizer(torch.ones(16, 16)).get_usages() == {"rowwise": True, "columnwise": False}
    quantizer.rowwise_usage, quantizer.columnwise_usage = False, True
    assert (quantizer.rowwise_usage, quantizer.columnwise_usage) == (False, True)
    assert quantizer(torch.ones(16, 16)).get_usages() == {"rowwise": False, "columnwise": True}
    assert quantizer.schemes()[0] is None
    assert pickle.loads(pickle.dumps(quantizer)).get_usages() == quantizer.get_usages()


def test_dtype_is_that_of_the_codes():
    for quantizer in (
        Float8Quantizer(torch.ones(()), torch.zeros(()), E4M3),
        Float8CurrentScalingQuantizer(E4M3),
        Float8BlockQuantizer(E4M3),
        MXFP8Quantizer(E4M3),
        CurrentScalingQuantizerRef(E4M3),
    ):
        assert quantizer.dtype == E4M3
    # 1 is mapped to the largest E5M2 code, or to 2^15.
    for quantizer, code in ((Float8CurrentScalingQuantizer(E4M3), 0x7B), (MXFP8Quantizer(E4M3), 0x78)):
        quantizer.dtype = E5M2
        assert quantizer.fp8_dtype == E5M2
        assert quantizer(torch.ones(1, 1)).get_data_tensors()[0].tolist() == [[code]]
        with pytest.raises(RecipeError, match="fp8_dtype must be"):
            quantizer.dtype = torch.float16
    assert NVFP4Quantizer().dtype == torch.float4_e2m1fn_x2
    with pytest.raises(
        RecipeError, match=r"NVFP4Quantizer.dtype must be torch.float4_e2m1fn_x2, got torch.float8_e4m3fn"
    ):
        NVFP4Quantizer().dtype = E4M3


def test_current_scaling_takes_the_device_of_new_tensors():
    assert Float8CurrentScalingQuantizer(E4M3, "meta").make_empty((2, 2)).device.type == "meta"
    quantizer = Float8CurrentScalingQuantizer(fp8_dtype=E4M3, device="meta")
    assert quantizer.make_empty((2, 2), device="cpu").device.type == "cpu"
    assert quantizer(torch.ones(2, 2)).device.type == "cpu"
    assert pickle.loads(pickle.dumps(quantizer)) == quantizer


def test_nvfp4_takes_other_spellings():
    x = torch.randn(32, 48)
    for spelled, named in (
        ({"row_scaled_nvfp4": True}, {"row_scaled": True}),
        ({"row_scaled_nvfp4": False}, {}),
        ({"nvfp4_use_4over6": True}, {"four_over_six": "mae"}),
        ({"nvfp4_use_4over6": True, "nvfp4_4over6_err_mode": "MSE"}, {"four_over_six": "mse"}),
        ({"nvfp4_use_4over6": False}, {}),
        ({"with_post_rht_amax": False, "with_random_sign_mask": False}, {}),
        ({"with_rht": True, "with_post_rht_amax": True, "with_random_sign_mask": True}, {"with_rht": True}),
    ):
        one, other = NVFP4Quantizer(columnwise=False, **spelled), NVFP4Quantizer(columnwise=False, **named)
        assert one == other
        assert (one.row_scaled_nvfp4, one.nvfp4_use_4over6) == (one.row_scaled, one.four_over_six is not None)
        assert all(getattr(one, name, wanted) == wanted for name, wanted in spelled.items())
        assert torch.equal(one(x).dequantize(), other(x).dequantize())
        assert replace(one, internal=True) == replace(other, internal=True)
    with pytest.raises(RecipeError, match="takes row_scaled or row_scaled_nvfp4, got both"):
        NVFP4Quantizer(row_scaled=True, row_scaled_nvfp4=False)
    with pytest.raises(RecipeError, match=r"with_random_sign_mask must be True with with_rht=True, got False"):
        NVFP4Quantizer(with_rht=True, with_random_sign_mask=False)
    with pytest.raises(RecipeError, match="must be True or False, got 'yes'"):
        NVFP4Quantizer(row_scaled_nvfp4="yes")
