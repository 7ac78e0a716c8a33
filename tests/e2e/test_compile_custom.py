"""Custom recipes compile: known quantizers become schemes, a user's own quantizers run as written."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

import steelyard
from steelyard.recipes import CustomRecipe
from steelyard.tensor import MXFP8Quantizer, QuantizedTensorStorage, Quantizer
from steelyard.tensor.reference import CurrentScalingQuantizerRef, current_scaling_ref_quantizer_factory


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 80), nn.ReLU(), nn.Linear(80, 24, bias=False)).eval()


@pytest.fixture(scope="module")
def x():
    return torch.randn(3, 5, 48, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_reference_quantizers_give_the_codes_of_current_scaling(model, x, monkeypatch, gemm_calls):
    codes = []
    quantize_own = CurrentScalingQuantizerRef.quantize_impl

    def keep_own(self, tensor):
        made = quantize_own(self, tensor)
        codes.append((made.data.view(torch.uint8), made.scale_inv))
        return made

    monkeypatch.setattr(CurrentScalingQuantizerRef, "quantize_impl", keep_own)
    # The activation between the layers is not fused into the quantize, so that both nets quantize the same values.
    layer = model[0]
    steelyard.compile(layer, CustomRecipe(current_scaling_ref_quantizer_factory))(x)
    steelyard.compile(layer, "fp8-current")(x)
    native = [(copy.codes, copy.scales) for copy in gemm_calls[0][:2]]
    assert len(codes) == len(native) == 2

    def by_size(pairs):
        return sorted(pairs, key=lambda pair: pair[0].numel())

    for own, other in zip(by_size(codes), by_size(native), strict=True):
        assert torch.equal(own[0], other[0])
        assert torch.equal(own[1], other[1])


@torch.no_grad()
def test_known_quantizers_become_schemes(model, x):
    net = steelyard.compile(model, CustomRecipe(lambda role: MXFP8Quantizer() if role.layer != "0" else None))
    named = steelyard.compile(model, "mxfp8", overrides={"0": None})
    assert torch.equal(net(x), named(x))
    rows = {row.layer: (row.lhs, row.kernel, row.reason) for row in net.explain().rows}
    assert rows["2"] == ("e4m3 1x32", "cpu mx gemm", "")
    assert rows["0"][2] == "the recipe leaves the input of fprop in high precision"


@dataclass(eq=False)
class HalfStorage(QuantizedTensorStorage):
    """Values in steps of a half."""

    PARTS: ClassVar = ("steps",)

    steps: torch.Tensor
    dtype: torch.dtype

    def dequantize(self, *, dtype=None):
        return (self.steps / 2).to(dtype or self.dtype)


@dataclass(eq=False)
class HalfQuantizer(Quantizer):
    """Rounds to steps of a half; products come from the base class, which multiplies decoded operands."""

    def quantize_impl(self, tensor):
        return HalfStorage((tensor.float() * 2).round().to(torch.int8), tensor.dtype)


@torch.no_grad()
def test_a_format_of_ones_own_runs_as_it_is_written(model, x):
    net = steelyard.compile(model, CustomRecipe(lambda role: HalfQuantizer()))

    def rounded(tensor):
        return (tensor * 2).round() / 2

    hidden = torch.relu(rounded(x) @ rounded(model[0].weight).T + model[0].bias)
    expected = rounded(hidden) @ rounded(model[2].weight).T
    torch.testing.assert_close(net(x), expected, rtol=1e-5, atol=1e-5)
    assert {row.kernel for row in net.explain().rows} == {"HalfQuantizer.qgemm"}
    assert net.memory()["quantized_weights"] == 48 * 80 + 80 * 24


@torch.no_grad()
def test_operands_that_do_not_go_together_stay_in_high_precision(model, x):
    factory = {"input": HalfQuantizer(), "weight": MXFP8Quantizer()}
    net = steelyard.compile(model, CustomRecipe(lambda role: factory[role]))
    torch.testing.assert_close(net(x), model(x))
    assert all("do not go together" in row.reason for row in net.explain().rows)
