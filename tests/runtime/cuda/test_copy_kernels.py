"""Dequantize, transpose, swizzle and the state of delayed scaling: executed PTX against the reference."""

import itertools
import math

import pytest
import torch
from kernel_cases import DTYPES, assert_same_copy, operands, pair_name, same_bytes, same_values, scheme_pairs
from simulation import simulated

from steelyard import reference
from steelyard.formats.schemes import FP8_ELEMENTS, Scheme
from steelyard.targets.architectures import TARGETS

E4M3 = "f8E4M3FN"
PAIRS = scheme_pairs()
COPIES = sorted({(scheme, columnwise) for pair in PAIRS for columnwise, scheme in enumerate(pair)}, key=str)
# Schemes that decode alike are tried once: how a scale was computed does not matter here.
DECODED = {(s.element, s.block, s.rht, s.second_level, s.four_over_six != "none", c): (s, c) for s, c in COPIES}


def copy_of(scheme, columnwise, shape, dtype=torch.float32):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    x = (x * torch.exp2(torch.randn(shape, generator=torch.Generator().manual_seed(6)) * 3)).to(dtype)
    x[0, 1] = float("nan")
    schemes = (None, scheme) if columnwise else (scheme, None)
    return reference.quantize(x, *schemes, **operands(scheme))[columnwise]


@pytest.mark.every(3)
@pytest.mark.parametrize("index", range(len(DECODED)), ids=[f"{pair_name((s,))}-{c}" for s, c in DECODED.values()])
def test_dequantize(index):
    # Targets with and without conversions for block formats alternate; the slow sweep runs all on all.
    check_dequantize(("sm_90a", "sm_100a")[index % 2], *list(DECODED.values())[index], DTYPES[index % 3])


def check_dequantize(target, scheme, columnwise, dtype):
    kernels = simulated(target)
    for shape in ((39, 77), (48, 80), (20, 60)):
        copy = copy_of(scheme, columnwise, shape)
        assert same_values(kernels.dequantize(copy, dtype), reference.dequantize(copy, dtype))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_dequantize_on_every_target(target):
    for index, (scheme, columnwise) in enumerate(DECODED.values()):
        check_dequantize(target, scheme, columnwise, DTYPES[index % 3])


@pytest.mark.parametrize(
    ("element", "dtype"), [(E4M3, torch.float8_e4m3fn), ("f8E5M2", torch.float8_e5m2)], ids=["e4m3", "e5m2"]
)
def test_every_code_decodes_as_torch_does(element, dtype):
    copy = copy_of(Scheme(element, "tensor", "f32"), False, (2, 256))
    copy.scales.fill_(1.0)
    copy.codes.copy_(torch.arange(256, dtype=torch.uint8))
    assert same_values(simulated("sm_89").dequantize(copy), copy.codes.view(dtype).float())


TILED = {(s.family, s.block, c): (s, c) for s, c in COPIES if s.is_transposable and s.rounding == "nearest"}


@pytest.mark.parametrize("key", TILED, ids=str)
@pytest.mark.parametrize("shape", [(39, 77), (144, 80)], ids=str)
def test_transpose(key, shape):
    check_transpose("sm_90a", key, shape)


def check_transpose(target, key, shape):
    copy = copy_of(*TILED[key], shape)
    assert_same_copy(simulated(target).transpose(copy), reference.transpose(copy))


@pytest.mark.parametrize("shape", [(39, 77), (144, 80)], ids=str)
def test_transpose_of_bytes(shape):
    check_transpose_of_bytes("sm_90a", shape)


def check_transpose_of_bytes(target, shape):
    codes = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert same_bytes(simulated(target).transpose_codes(codes), codes.t().contiguous())


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_transposes_on_every_target(target):
    for shape in ((39, 77), (144, 80)):
        check_transpose_of_bytes(target, shape)
        for key in TILED:
            check_transpose(target, key, shape)


SWIZZLED = {(s.family, s.block, c): (s, c) for s, c in COPIES if s.has_blocks and not s.rht}


@pytest.mark.parametrize("key", SWIZZLED, ids=str)
def test_swizzle(key):
    check_swizzle("sm_90a", key)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_swizzle_on_every_target(target):
    for key in SWIZZLED:
        check_swizzle(target, key)


def check_swizzle(target, key):
    kernels = simulated(target)
    for shape in ((150, 300), (5, 9)):
        copy = copy_of(*SWIZZLED[key], shape)
        assert same_bytes(kernels.swizzle(copy), reference.swizzle(copy))


HISTORIES = (
    [2.0, 7, 4],
    [0.0, 7],
    [math.nan, 3, 5],
    [math.nan, math.nan],
    [5.0],
    [math.inf, 2],
    [1e-45] * 40,
    [3.0] * 70,
)


ALGORITHMS = "max", "most_recent"
UPDATES: dict[str, tuple[dict, int]] = {
    "plain": ({}, 0),
    "power": ({"power_of_two": True}, 3),
    "eps": ({"epsilon": 1e-3}, -2),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("update", UPDATES)
def test_update_scale(algorithm, update):
    check_update_scale("sm_90a", E4M3, algorithm, update)


def check_update_scale(target, element, algorithm, update):
    options, margin = UPDATES[update]
    scheme = Scheme(element, "tensor", "f32", source="delayed", **options)
    kernels = simulated(target)
    for slots in HISTORIES:
        scale, history = torch.tensor(0.7), torch.tensor(slots)
        newest, before = history[0].clone(), history.clone()
        before[0] = 123.0  # the slot that the newest amax is recorded in
        found = kernels.update_scale(scale, before, newest, scheme, margin=margin, algorithm=algorithm)
        expected = reference.update_scale(scale, history, scheme, margin=margin, algorithm=algorithm)
        assert all(map(same_bytes, found, expected)), slots


EXPERTS = torch.tensor([[2.0, 0.0, math.nan, 5.0, 0.0], [1.0, 9.0, 3.0, math.inf, 0.0], [4.0, 8.0, 2.0, 1.0, 0.0]])
"""A column of each expert: one has no rows in this step, and one never had any."""


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_update_scale_of_each_expert(algorithm):
    scheme = Scheme(E4M3, "tensor", "f32", source="delayed")
    scales, before = torch.tensor([0.7, 3.0, 5.0, 0.25, 1.0]), EXPERTS.clone()
    before[0] = 123.0
    found = simulated("sm_90a").update_scale(scales, before, EXPERTS[0], scheme, algorithm=algorithm)
    pairs = [reference.update_scale(*own, scheme, algorithm=algorithm) for own in zip(scales, EXPERTS.T, strict=True)]
    expected = torch.stack([scale for scale, _ in pairs]), torch.stack([history for _, history in pairs], dim=1)
    assert all(map(same_bytes, found, expected))
    assert found[0][1] == 3
    assert torch.equal(found[1][:, 1], EXPERTS[:, 1])


AMAXES = 7.0, 0.0, 1e-44, math.inf, math.nan


@pytest.mark.parametrize("amax", AMAXES)
def test_compute_scale(amax):
    check_compute_scale("sm_90a", E4M3, amax)


def check_compute_scale(target, element, amax):
    scheme = Scheme(element, "tensor", "f32", power_of_two=True)
    found = simulated(target).compute_scale(torch.tensor(amax), scheme)
    expected, _ = reference.quantize(torch.zeros(1, 1), scheme, None, amax=torch.tensor(amax))
    assert same_bytes(1 / found, expected.scales)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_state_on_every_target(target):
    for element in FP8_ELEMENTS:
        for algorithm, update in itertools.product(ALGORITHMS, UPDATES):
            check_update_scale(target, element, algorithm, update)
        for amax in AMAXES:
            check_compute_scale(target, element, amax)
