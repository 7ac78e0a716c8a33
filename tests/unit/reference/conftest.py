"""The schemes that the recipes make, as (rowwise, columnwise) pairs."""

import pytest

from steelyard.formats.schemes import Scheme
from steelyard.recipes import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    Float8RowScaling,
    MXFP4BlockScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)

_PLAIN_FP4 = {"weight_tiles": False, "rht": False, "stochastic_rounding": False}
_WIDE_FP4 = Scheme("f4E2M1FN", "1x32", "f8E4M3FN", second_level="tensor")
_PAIRS = {
    "delayed": DelayedScaling().schemes("input"),
    "current-e4m3": Float8CurrentScaling().schemes("input"),
    "current-e5m2": Float8CurrentScaling().schemes("grad_output"),
    "current-power-of-two": Float8CurrentScaling(power_of_two=True, epsilon=1e-3).schemes("input"),
    "row": Float8RowScaling().schemes("input"),
    "row-e5m2-power-of-two": Float8RowScaling(power_of_two=True, epsilon=1e-3).schemes("grad_output"),
    "1x128": Float8BlockScaling().schemes("input"),
    "1x128-e5m2-f32": Float8BlockScaling(fp8_format="HYBRID", power_of_two=False).schemes("grad_output"),
    "128x128": Float8BlockScaling().schemes("weight"),
    **{
        f"mx-{rule}": MXFP8BlockScaling(scale_rule=rule).schemes("input") for rule in ("rceil", "floor", "ceil", "even")
    },
    "mx-e5m2": MXFP8BlockScaling(fp8_format="HYBRID").schemes("grad_output"),
    "mx-tiles": MXFP8BlockScaling(weight_tiles=True).schemes("weight"),
    **{f"mxfp4-{rule}": MXFP4BlockScaling(scale_rule=rule).schemes("input") for rule in ("rceil", "floor", "even")},
    "nvfp4-input": NVFP4BlockScaling().schemes("input"),
    "nvfp4-tiles": NVFP4BlockScaling().schemes("weight"),
    "nvfp4-gradient": NVFP4BlockScaling().schemes("grad_output"),
    "nvfp4-1x32": (_WIDE_FP4, _WIDE_FP4),
    "nvfp4-row-scaled": NVFP4BlockScaling(row_scaled=True, **_PLAIN_FP4).schemes("input"),
    "nvfp4-4over6": NVFP4BlockScaling(four_over_six="all", **_PLAIN_FP4).schemes("input"),
    "nvfp4-4over6-tiles": NVFP4BlockScaling(four_over_six="weights", four_over_six_error="mse").schemes("weight"),
}


@pytest.fixture(scope="session", params=_PAIRS.values(), ids=_PAIRS.keys())
def pair(request):
    return request.param
