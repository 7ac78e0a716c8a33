from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import DTYPES, assert_same_copy, matrices, operands, pair_name, same_values, scheme_pairs

from steelyard import reference
from steelyard.formats.schemes import Scheme
from steelyard.runtime import cpu

PAIRS = scheme_pairs()
TRANSPOSABLE = [pair for pair in PAIRS if pair[0].is_transposable and pair[0] == pair[1]]


@pytest.mark.parametrize("name", cpu.instruction_sets())
@settings(max_examples=80, deadline=None)
@given(
    x=matrices(),
    pair=st.sampled_from(PAIRS),
    columnwise=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    threads=st.sampled_from((1, 2, 5)),
)
def test_dequantize_equals_the_reference(name, x, pair, columnwise, dtype, threads):
    torch.set_num_threads(threads)
    cpu.set_isa(name)
    copy = reference.quantize(x, *pair, **operands(*pair))[columnwise]
    assert same_values(cpu.dequantize(copy, dtype), reference.dequantize(copy, dtype))


@pytest.mark.parametrize(
    ("element", "dtype"), [("f8E4M3FN", torch.float8_e4m3fn), ("f8E5M2", torch.float8_e5m2)], ids=["e4m3", "e5m2"]
)
def test_every_code_decodes_as_torch_does(isa, element, dtype):
    x = torch.zeros(2, 256)
    copy, _ = cpu.quantize(x, Scheme(element, "tensor", "f32"), None)
    copy.codes.copy_(torch.arange(256, dtype=torch.uint8))
    assert same_values(cpu.dequantize(copy), copy.codes.view(dtype).float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_outputs_round_to_nearest_even(isa, dtype):
    scheme = Scheme("f8E4M3FN", "1x128", "f32")
    copy, _ = cpu.quantize(torch.ones(512, 128), scheme, None)
    copy.codes.random_(0, 127)
    copy.scales.copy_(torch.exp2(torch.randn(512, 1) * 12))
    exact = copy.codes.view(torch.float8_e4m3fn).double() * copy.scales.double()
    assert same_values(cpu.dequantize(copy, dtype), exact.float().to(dtype))


@pytest.mark.parametrize("pair", PAIRS[::4], ids=pair_name)
def test_dequantize_into_given_memory(pair):
    for copy in cpu.quantize(torch.randn(50, 70), *pair, **operands(*pair)):
        out = torch.full((50, 70), float("nan"), dtype=torch.bfloat16)
        before = out._version
        assert cpu.dequantize(copy, torch.bfloat16, out=out) is out
        assert out._version > before
        assert same_values(out, reference.dequantize(copy, torch.bfloat16))


def test_kernels_run_in_inference_mode():
    scheme = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU")
    x = torch.randn(40, 64)
    with torch.inference_mode():
        copy, _ = cpu.quantize(x, scheme, None)
        cpu.quantize_into(x, copy, None)
        values = cpu.dequantize(copy)
    assert same_values(values, reference.dequantize(reference.quantize(x, scheme, None)[0]))


@settings(max_examples=60, deadline=None)
@given(x=matrices(), pair=st.sampled_from(TRANSPOSABLE), columnwise=st.booleans(), threads=st.sampled_from((1, 2)))
def test_transpose_equals_the_other_copy(x, pair, columnwise, threads):
    torch.set_num_threads(threads)
    copies = reference.quantize(x, *pair, **operands(*pair))
    copy = copies[columnwise]
    if pair[0].rounding == "nearest":
        assert_same_copy(cpu.transpose(copy), copies[not columnwise])
    assert_same_copy(cpu.transpose(cpu.transpose(copy)), copy)


@cache
def copies_of_many_tiles(pair):
    """Each copy with its transpose, which is the same for every instruction set."""
    x = torch.randn(301, 515, generator=torch.Generator().manual_seed(0))
    return [(copy, reference.transpose(copy)) for copy in reference.quantize(x, *pair, **operands(*pair))]


@pytest.mark.parametrize("pair", TRANSPOSABLE, ids=pair_name)
def test_transpose_of_many_tiles(isa, pair):
    torch.set_num_threads(2)
    for copy, expected in copies_of_many_tiles(pair):
        assert_same_copy(cpu.transpose(copy), expected)
