"""The schemes that the recipes make, as (rowwise, columnwise) pairs."""

import pytest

from steelyard.recipes import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)

_PLAIN_FP4 = {"weight_tiles": False, "rht": False, "stochastic_rounding": False}
_PAIRS = {
    "delayed": DelayedScaling().schemes("input"),
    "current-e4m3": Float8CurrentScaling().schemes("input"),
    "current-e5m2": Float8CurrentScaling().schemes("grad_output"),
    "current-power-of-two": Float8CurrentScaling(power_of_two=True, epsilon=1e-3).schemes("input"),
    "1x128": Float8BlockScaling().schemes("input"),
    "1x128-e5m2-f32": Float8BlockScaling(fp8_format="HYBRID", power_of_two=False).schemes("grad_output"),
    "128x128": Float8BlockScaling().schemes("weight"),
    **{
        f"mx-{rule}": MXFP8BlockScaling(scale_rule=rule).schemes("input") for rule in ("rceil", "floor", "ceil", "even")
    },
    "mx-e5m2": MXFP8BlockScaling(fp8_format="HYBRID").schemes("grad_output"),
    "mx-tiles": MXFP8BlockScaling(weight_tiles=True).schemes("weight"),
    "nvfp4-input": NVFP4BlockScaling().schemes("input"),
    "nvfp4-tiles": NVFP4BlockScaling().schemes("weight"),
    "nvfp4-gradient": NVFP4BlockScaling().schemes("grad_output"),
    "nvfp4-row-scaled": NVFP4BlockScaling(row_scaled=True, **_PLAIN_FP4).schemes("input"),
    "nvfp4-4over6": NVFP4BlockScaling(four_over_six="all", **_PLAIN_FP4).schemes("input"),
    "nvfp4-4over6-tiles": NVFP4BlockScaling(four_over_six="weights", four_over_six_error="mse").schemes("weight"),
}


@pytest.fixture(scope="session", params=_PAIRS.values(), ids=_PAIRS.keys())
def pair(request):
    return request.param
