from functools import cache

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    DTYPES,
    SPECIAL_VALUES,
    assert_same_copy,
    matrices,
    nvfp4,
    operands,
    pair_name,
    same_bytes,
    same_values,
    scheme_pairs,
)

from steelyard import reference
from steelyard.formats.schemes import Scheme
from steelyard.runtime import cpu

E4M3, E5M2 = "f8E4M3FN", "f8E5M2"
PAIRS = scheme_pairs()


def assert_same_copies(x, row, col, **given_operands):
    assert_copies(cpu.quantize(x, row, col, **given_operands), reference.quantize(x, row, col, **given_operands))


def assert_copies(found, expected):
    for copy, expected_copy in zip(found, expected, strict=True):
        if expected_copy is None:
            assert copy is None
        else:
            assert_same_copy(copy, expected_copy)


@pytest.mark.parametrize("name", cpu.instruction_sets())
@settings(max_examples=120, deadline=None)
@given(x=matrices(), pair=st.sampled_from(PAIRS), threads=st.sampled_from((1, 2, 5)))
def test_both_copies_equal_the_reference(name, x, pair, threads):
    torch.set_num_threads(threads)
    cpu.set_isa(name)
    assert_same_copies(x, *pair, **operands(*pair))


@settings(max_examples=60, deadline=None)
@given(x=matrices(), pair=st.sampled_from(PAIRS), columnwise=st.booleans())
def test_one_copy_equals_the_reference(x, pair, columnwise):
    row, col = (None, pair[1]) if columnwise else (pair[0], None)
    assert_same_copies(x, row, col, **operands(*pair))


# The reference does not depend on the instruction set: it is computed once for all of them.
@cache
def special_matrices():
    base = torch.randn(130, 130, generator=torch.Generator().manual_seed(1))
    return [base.clone().fill_diagonal_(value) for value in SPECIAL_VALUES]


@cache
def expected_of_special_matrices(pair):
    return [reference.quantize(x, *pair, **operands(*pair)) for x in special_matrices()]


@pytest.mark.parametrize("pair", PAIRS, ids=pair_name)
def test_special_values_in_every_lane(isa, pair):
    for x, expected in zip(special_matrices(), expected_of_special_matrices(pair), strict=True):
        assert_copies(cpu.quantize(x, *pair, **operands(*pair)), expected)


@cache
def wide_matrix():
    return torch.randn(37, 4500, generator=torch.Generator().manual_seed(2)).bfloat16()


@cache
def expected_of_wide_matrix(row, col):
    return reference.quantize(wide_matrix(), row, col, **operands(*filter(None, (row, col))))


@pytest.mark.every(7)
@pytest.mark.parametrize("pair", PAIRS, ids=pair_name)
def test_wide_rows_and_many_tiles(isa, pair):
    torch.set_num_threads(2)
    for row, col in (pair, (pair[0], None)):
        found = cpu.quantize(wide_matrix(), row, col, **operands(*filter(None, (row, col))))
        assert_copies(found, expected_of_wide_matrix(row, col))


LARGE_PAIRS = [
    (Scheme(E4M3, "tensor", "f32"),) * 2,
    (Scheme(E4M3, "128x128", "f32", power_of_two=True),) * 2,
    (Scheme(E4M3, "1x32", "f8E8M0FNU"), Scheme(E4M3, "32x1", "f8E8M0FNU")),
    (nvfp4(),) * 2,
    (nvfp4("16x16"),) * 2,
]


@pytest.mark.every(3)
@pytest.mark.parametrize("pair", LARGE_PAIRS, ids=pair_name)
@pytest.mark.parametrize(("dtype", "shape"), [(torch.float32, (1696, 2336)), (torch.bfloat16, (3008, 2368))])
def test_results_too_large_for_the_caches(pair, dtype, shape):
    # More than 16 MB read and written: results are streamed if their rows are aligned.
    x = torch.randn(shape, generator=torch.Generator().manual_seed(4)).to(dtype)
    torch.set_num_threads(2)
    assert_same_copies(x, *pair)
    assert_same_copies(x, pair[0], None)


@pytest.mark.parametrize("pair", PAIRS[::5], ids=pair_name)
def test_leading_dims_are_flattened(pair):
    x = torch.randn(3, 5, 40).transpose(0, 1)
    assert_same_copies(x, *pair, **operands(*pair))
    assert_same_copies(x[0, 0], *pair, **operands(*pair))


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair[0].second_level != "row"], ids=pair_name)
def test_given_amax_is_used_and_kept(pair):
    x = torch.randn(50, 70)
    assert_same_copies(x, *pair, **operands(*pair), amax=(torch.tensor(9.5), torch.tensor(11.0)))


def test_given_amax_per_row():
    x = torch.randn(20, 33)
    assert_same_copies(x, nvfp4(second_level="row"), None, amax=torch.linspace(1, 5, 20))


def test_given_scale_of_a_current_scheme():
    scheme = Scheme(E4M3, "tensor", "f32")
    assert_same_copies(torch.randn(20, 33), scheme, scheme, scale=torch.tensor(3.5))


@pytest.mark.parametrize(("element", "dtype"), [(E4M3, ml_dtypes.float8_e4m3fn), (E5M2, ml_dtypes.float8_e5m2)])
def test_cast_of_every_bf16_value(isa, element, dtype):
    x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).reshape(256, 256)
    scheme = Scheme(element, "tensor", "f32", source="delayed")
    copy, _ = cpu.quantize(x, scheme, None, scale=torch.tensor(1.0))
    values = x.float().numpy()
    limit = float(ml_dtypes.finfo(dtype).max)
    expected = np.clip(np.nan_to_num(values), -limit, limit).astype(dtype).view(np.uint8)
    expected = np.where(np.isnan(values), 0x7F, expected)
    assert np.array_equal(copy.codes.numpy(), expected)


def test_e2m1_ties_go_to_even(isa):
    # An amax of 6 * 448 makes S_enc 1; the first block's own amax of 6 then makes its byte 1.0 and its factor 1.
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5.0, -0.1]
    x = torch.tensor([ties])
    copy, _ = cpu.quantize(x, nvfp4(), None, amax=torch.tensor(6 * 448.0))
    codes = torch.stack((copy.codes[0] & 15, copy.codes[0] >> 4), dim=1).flatten().tolist()
    assert copy.scales.tolist() == [[0x38]]
    assert codes == [0, 2, 2, 4, 4, 6, 6, 7, 8, 10, 10, 12, 12, 14, 14, 8]


@pytest.mark.parametrize("exponent", [-130, -20, 0, 17, 119])
def test_mx_byte_of_the_largest_code(isa, exponent):
    x = torch.full((1, 32), 448.0 * 2.0**exponent)
    copy, _ = cpu.quantize(x, Scheme(E4M3, "1x32", "f8E8M0FNU"), None)
    assert copy.scales.tolist() == [[max(127 + exponent, 0)]]
    if exponent >= -127:
        assert copy.codes.unique().tolist() == [0x7E]


@pytest.mark.parametrize("pair", PAIRS, ids=pair_name)
def test_bytes_do_not_depend_on_threads(pair):
    x = torch.randn(700, 390, generator=torch.Generator().manual_seed(3))
    torch.set_num_threads(1)
    alone = cpu.quantize(x, *pair, **operands(*pair))
    for threads in (2, 5):
        torch.set_num_threads(threads)
        for copy, expected in zip(cpu.quantize(x, *pair, **operands(*pair)), alone, strict=True):
            assert_same_copy(copy, expected)


@pytest.mark.parametrize("pair", PAIRS[::4], ids=pair_name)
def test_into_overwrites_and_counts_a_new_version(pair):
    x = torch.randn(45, 77)
    copies = cpu.quantize(torch.randn(45, 77), *pair, **operands(*pair))
    before = copies[0].codes._version
    pointers = [copy.codes.data_ptr() for copy in copies]
    cpu.quantize_into(x, *copies, **operands(*pair))
    assert [copy.codes.data_ptr() for copy in copies] == pointers
    assert copies[0].codes._version > before
    for copy, expected in zip(copies, reference.quantize(x, *pair, **operands(*pair)), strict=True):
        assert_same_copy(copy, expected)


def test_stochastic_mean_is_nearer_than_nearest():
    # amax 6 * 448 and a block amax of 6 make the factor 1; 2.4 lies between the codes 2 and 3.
    x = torch.full((512, 16), 2.4)
    x[:, 0] = 6.0
    amax = torch.tensor(6 * 448.0)
    copy, _ = cpu.quantize(x, nvfp4(rounding="stochastic"), None, amax=amax, rng=(11, 0))
    drawn = cpu.dequantize(copy)[:, 1:]
    assert set(drawn.unique().tolist()) == {2.0, 3.0}
    assert abs(drawn.mean().item() - 2.4) < 0.05
    other, _ = cpu.quantize(x, nvfp4(rounding="stochastic"), None, amax=amax, rng=(11, 1))
    assert not torch.equal(other.codes, copy.codes)


def test_flush_to_zero_mode_does_not_change_bytes():
    x = torch.full((64, 64), 1e-40)
    row, col = Scheme(E4M3, "1x32", "f8E8M0FNU"), Scheme(E4M3, "32x1", "f8E8M0FNU")
    expected = reference.quantize(x, row, col)
    torch.set_flush_denormal(True)
    try:
        found = cpu.quantize(x, row, col)
    finally:
        torch.set_flush_denormal(False)
    for copy, expected_copy in zip(found, expected, strict=True):
        assert_same_copy(copy, expected_copy)


@pytest.mark.parametrize("name", cpu.instruction_sets())
@settings(max_examples=60, deadline=None)
@given(x=matrices(), threads=st.sampled_from((1, 2, 5)))
def test_amax(name, x, threads):
    torch.set_num_threads(threads)
    cpu.set_isa(name)
    values = x.double().abs()
    total = values.max() if values.numel() else torch.zeros(())
    rows = values.amax(dim=1) if values.shape[1] else torch.zeros(x.shape[0])
    assert same_values(cpu.amax(x), total.float())
    assert same_values(cpu.amax(x, per_row=True), rows.float())
    assert same_bytes(cpu.amax(x, rht=True), reference.amax(x, rht=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_amax_finds_a_nan_in_every_lane(isa, dtype):
    for lane in range(70):
        x = torch.ones(1, 70, dtype=dtype)
        x[0, lane] = float("nan")
        assert cpu.amax(x).isnan()
        x[0, lane] = -3.0
        assert cpu.amax(x) == 3.0
