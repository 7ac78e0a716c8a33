"""Architectures of transformers and diffusers, each compared with an eager model that rounds the operands of GEMMs."""

import copy
import itertools

import pytest
import torch
from architectures import ARCHITECTURES
from fake_quantization import FAKES, FakeQuantizedGemms
from torch.utils._pytree import tree_leaves

import steelyard

# The last bits of a sum may flip a code, and that code others: a tenth of what quantization changes is allowed.
ALLOWED_SHARE = 0.1
FLOAT32_ERROR = 1e-5
# Where a scale is about to double, last bits change more than that. Then models are tried whose parameters differ so:
NUDGE, NUDGES = 1e-7, 4
# Relative to the norm of the output. With random weights, nothing but the residual stream keeps errors small.
ALLOWED_ERROR = {"fp8-current": 0.25, "mxfp8": 0.25, "nvfp4": 0.7}

# Each architecture with one recipe; they take turns.
CASES = [
    pytest.param(name, recipe, id=f"{name}, {recipe}")
    for name, recipe in zip(ARCHITECTURES, itertools.cycle(FAKES), strict=False)
]


def outputs(result) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def nudged(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    """A model whose parameters differ in their last bits."""
    torch.manual_seed(seed)
    model = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.mul_(1 + NUDGE * torch.randn_like(parameter))
    return model


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return (found.double() - expected.double()).norm().item()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "recipe"), CASES)
@torch.no_grad()
def test_architecture_computes_what_an_eager_model_with_rounded_operands_does(name, recipe):
    model, arguments = ARCHITECTURES[name].make()
    exact = outputs(model(**arguments))
    net = steelyard.compile(model, recipe)
    found = outputs(net(**arguments))
    rows = net.explain().rows
    quantized = {(row.layer, row.N, row.K) for row in rows if row.is_quantized}
    with FakeQuantizedGemms(model, recipe, quantized) as gemms:
        rounded = outputs(model(**arguments))

    # Every GEMM of a parameter has a row, and every row of a quantized GEMM is a GEMM of the model.
    assert gemms.found <= {(row.layer, row.N, row.K) for row in rows}
    assert gemms.layers <= {row.layer for row in rows}
    assert quantized <= gemms.found
    assert quantized
    assert [x.shape for x in found] == [x.shape for x in exact]

    def is_near(rounded: list[torch.Tensor]) -> bool:
        pairs = zip(found, rounded, exact, strict=True)
        return all(
            distance(got, expected)
            <= ALLOWED_SHARE * distance(expected, reference) + FLOAT32_ERROR * distance(reference, 0 * reference)
            for got, expected, reference in pairs
        )

    def rounded_again(seed: int) -> list[torch.Tensor]:
        other = nudged(model, seed)
        with FakeQuantizedGemms(other, recipe, quantized):
            return outputs(other(**arguments))

    assert is_near(rounded) or any(is_near(rounded_again(seed)) for seed in range(NUDGES))
    for got, reference in zip(found, exact, strict=True):
        assert distance(got, reference) <= ALLOWED_ERROR[recipe] * distance(reference, 0 * reference)
    assert any(distance(expected, reference) > 0 for expected, reference in zip(rounded, exact, strict=True))
