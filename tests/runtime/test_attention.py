"""Attention of the CPU against float64 and torch: sizes, strides, dtypes, masks, special values, threads."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch

from steelyard import reference
from steelyard.errors import ConstraintError
from steelyard.runtime import _cpu, cpu
from steelyard.runtime.cpu.tensor_reader import TENSORS
from steelyard.tensor.cached_rows import encode_rows

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
INFINITY = float("inf")
flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def heads(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def tensors(batch, query_heads, key_heads, queries, keys, size, dtype=torch.float32):
    shapes = ((query_heads, queries), (key_heads, keys), (key_heads, keys))
    return [heads(batch, *shape, size, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes)]


def check(query, key, value, mask=None, **options):
    """The kernel's results, within the bounds of the reference."""
    out, logsumexp = cpu.attention(query, key, value, mask, **options)
    expected = reference.attention(query, key, value, mask, **options)
    assert (out.shape, out.dtype) == (query.shape, query.dtype)
    assert (logsumexp.shape, logsumexp.dtype) == (query.shape[:3], torch.float32)
    assert (np.abs(out.double().numpy() - expected.out) <= expected.out_bound).all()
    assert (np.abs(logsumexp.double().numpy() - expected.logsumexp) <= expected.logsumexp_bound).all()
    return out, logsumexp


SIZES = [
    # batch, heads, key heads, queries, keys, head size
    (1, 1, 1, 1, 1, 1),
    (2, 4, 2, 1, 700, 64),
    (1, 8, 1, 1, 129, 20),
    (1, 22, 1, 3, 530, 24),
    (1, 65, 1, 1, 70, 8),
    (1, 3, 1, 2, 66, 33),
    (2, 2, 2, 5, 7, 8),
    (1, 3, 3, 40, 100, 64),
    (1, 2, 1, 65, 200, 80),
    (1, 1, 1, 130, 97, 129),
    (1, 2, 2, 13, 300, 5),
    (1, 2, 1, 155, 170, 20),
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes(isa, sizes, causal):
    check(*tensors(*sizes), causal=causal)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("queries", [1, 50])
def test_errors_are_those_of_float32(isa, queries, dtype):
    """The bound holds for any rounding; sums that round well are far closer."""
    query, key, value = tensors(1, 2, 2, queries, 600, 64, dtype)
    out, logsumexp = check(query, key, value)
    expected = reference.attention(query, key, value)
    limit = {torch.float32: 7e-7, torch.bfloat16: 3e-3, torch.float16: 4e-4}[dtype]
    assert np.linalg.norm(out.double().numpy() - expected.out) < limit * np.linalg.norm(expected.out)
    assert np.abs(logsumexp.double().numpy() - expected.logsumexp).max() < 2e-6


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries", [1, 70])
def test_torch_gives_the_same(isa, queries, causal):
    query, key, value = tensors(2, 6, 2, queries, 90, 24)
    out, logsumexp = cpu.attention(query, key, value, causal=causal, scale=0.3)
    theirs, their_logsumexp = flash(query, key, value, 0.0, causal, scale=0.3)
    torch.testing.assert_close(out, theirs, rtol=0, atol=2e-6)
    torch.testing.assert_close(logsumexp, their_logsumexp, rtol=0, atol=4e-6)
    assert (out.stride(), logsumexp.stride()) == (theirs.stride(), their_logsumexp.stride())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("queries", [1, 40])
@pytest.mark.parametrize(("cached", "added"), [(0, 3), (64, 1), (600, 1), (511, 130), (5, 0)])
def test_a_cache_and_new_tokens_are_as_one(isa, cached, added, queries, dtype):
    query, key, value = tensors(2, 4, 2, queries, cached + added, 24, dtype)
    mask = heads(queries, cached + added, seed=5)
    wanted = cpu.attention(query, key, value, mask)
    run = _cpu.bound_attention(TENSORS, 0, 1, 2, -1, -1, 3, 4, 5, 6, 7, None, False)
    made = torch.empty(2, queries, 4, 24, dtype=dtype).transpose(1, 2), torch.empty(2, queries, 4).transpose(1, 2)
    # The new ones are laid out as a projection makes them.
    new_key, new_value = (LAYOUTS["tokens first"](x[:, :, cached:]) for x in (key, value))
    run(query, key[:, :, :cached], value[:, :, :cached], new_key, new_value, mask, *made)
    for found, expected in zip(made, wanted, strict=True):
        assert torch.equal(found, expected)


def spread(x):
    """The same values with gaps between tokens, heads and columns."""
    batch, count, tokens, size = x.shape
    memory = torch.full((batch, tokens + 1, count + 2, size + 3, 2), INFINITY, dtype=x.dtype)
    memory[:, :tokens, 1:-1, 1 : size + 1, 1] = x.transpose(1, 2)
    return memory[:, :tokens, 1:-1, 1 : size + 1, 1].transpose(1, 2)


LAYOUTS = {
    "tokens first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "columns first": lambda x: x.transpose(1, 3).contiguous().transpose(1, 3),
    "gaps": spread,
    "one for all": lambda x: x[:, :1].expand(x.shape),
    "negated": lambda x: torch.complex(x, -x).conj().imag if x.dtype == torch.float32 else x,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("queries", [2, 37])
def test_strides_change_nothing(isa, queries, dtype, layout):
    given = [LAYOUTS[layout](x) for x in tensors(2, 3, 3, queries, 70, 16, dtype)]
    copies = [x.clone(memory_format=torch.contiguous_format).resolve_neg() for x in given]
    expected = cpu.attention(*copies, causal=queries > 2)
    for found, wanted in zip(cpu.attention(*given, causal=queries > 2), expected, strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("shape", [(9, 130), (1, 130), (2, 1, 9, 130), (1, 4, 9, 1), (2, 4, 1, 130)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masks_are_added(isa, dtype, shape):
    query, key, value = tensors(2, 4, 2, 9, 130, 16, dtype)
    for mask in (heads(*shape, seed=5), heads(*shape, seed=5, dtype=dtype)):
        check(query, key, value, mask)
        check(query, key, value, mask, causal=True)
        check(query[:, :, -1:], key, value, mask[..., -1:, :])


@pytest.mark.parametrize("queries", [1, 30])
@pytest.mark.parametrize("filler", [-INFINITY, torch.finfo(torch.float32).min])
def test_masks_hide_keys_as_torch_hides_them(isa, queries, filler):
    """A row of -inf gives zeros; a row of the smallest float gives the mean of all values."""
    query, key, value = tensors(1, 2, 2, queries, 150, 16)
    mask = torch.where(heads(1, 2, queries, 150, seed=7) > 0, 0.0, filler)
    mask[0, 1, 0] = filler
    out, logsumexp = cpu.attention(query, key, value, mask)
    theirs, their_logsumexp = flash(query, key, value, 0.0, False, attn_mask=mask)
    torch.testing.assert_close(out, theirs, rtol=0, atol=2e-6)
    torch.testing.assert_close(logsumexp, their_logsumexp, rtol=1e-6, atol=4e-6)
    if filler == -INFINITY:
        hidden, _ = cpu.attention(query, key, torch.full_like(value, INFINITY), mask)
        assert torch.equal(hidden[0, 1, 0], torch.zeros(16))
    first = torch.zeros(16) if filler == -INFINITY else value[0, 1].mean(dim=0)
    torch.testing.assert_close(out[0, 1, 0], first, rtol=0, atol=1e-6)


@pytest.mark.parametrize("queries", [1, 20])
def test_a_late_maximum_and_huge_scores(isa, queries):
    """Scores that grow along the keys, so that every block multiplies down what came before."""
    query, key, value = tensors(1, 1, 1, queries, 700, 8)
    query[..., 0], key[..., 0] = 50.0, torch.linspace(-30, 30, 700)
    check(query, key, value)
    check(query, key.flip(2), value)
    out, _ = cpu.attention(query * 1e17, key * 1e17, value)
    largest = (query[0, 0].double() @ key[0, 0].double().T).argmax(dim=1)
    assert torch.equal(out[0, 0], value[0, 0, largest])


@pytest.mark.parametrize("special", [INFINITY, -INFINITY, math.nan])
@pytest.mark.parametrize("queries", [1, 30])
def test_special_values_reach_who_sees_them(isa, queries, special):
    for position in (0, 5, 63, 64, 129):
        query, key, value = tensors(1, 2, 2, queries, 130, 8)
        expected, expected_logsumexp = cpu.attention(query, key, value)
        query[0, 0, queries - 1, 3] = special
        out, logsumexp = cpu.attention(query, key, value)
        assert out[0, 0, -1].isnan().all()
        assert logsumexp[0, 0, -1].isnan()
        assert torch.equal(out[0, 0, :-1], expected[0, 0, :-1])
        assert torch.equal(out[0, 1], expected[0, 1])
        assert torch.equal(logsumexp[0, 1], expected_logsumexp[0, 1])

        query, key, value = tensors(1, 2, 2, queries, 130, 8)
        value[0, 0, position, 2] = special
        out, _ = cpu.attention(query, key, value)
        torch.testing.assert_close(out[0, 0, :, 2], torch.full((queries,), special), equal_nan=True)
        assert torch.equal(out[..., 3:], expected[..., 3:])


@pytest.mark.parametrize("special", [INFINITY, math.nan])
@pytest.mark.parametrize("queries", [2, 16, 17, 170])
def test_what_a_causal_mask_hides_is_never_read(isa, queries, special):
    for first in (1, 7, 15, 33, 64, 100, 146, 170):
        query, key, value = tensors(1, 3, 1, queries, 200, 8)
        expected, expected_logsumexp = cpu.attention(query, key, value, causal=True)
        key[0, 0, first:] = value[0, 0, first:] = special
        out, logsumexp = cpu.attention(query, key, value, causal=True)
        assert torch.equal(out[0, :, :first], expected[0, :, :first])
        assert torch.equal(logsumexp[0, :, :first], expected_logsumexp[0, :, :first])
        assert out[0, :, first:].isnan().all()


@pytest.mark.parametrize(
    "sizes", [(0, 2, 2, 3, 4, 8), (1, 0, 0, 3, 4, 8), (1, 2, 2, 0, 4, 8), (2, 2, 1, 3, 4, 0)], ids=str
)
@pytest.mark.parametrize("causal", [False, True])
def test_nothing_to_attend(isa, sizes, causal):
    check(*tensors(*sizes), causal=causal)


@pytest.mark.parametrize("queries", [1, 30])
def test_no_keys_give_zeros(isa, queries):
    query, key, value = tensors(1, 2, 1, queries, 0, 8)
    for mask in (None, torch.zeros(queries, 0)):
        out, logsumexp = cpu.attention(query, key, value, mask)
        assert torch.equal(out, torch.zeros_like(query))
        assert torch.equal(logsumexp, torch.zeros(1, 2, queries))


@pytest.mark.parametrize("sizes", [(1, 6, 2, 1, 5000, 32), (2, 3, 3, 300, 300, 32)], ids=str)
def test_threads_change_nothing(isa, sizes):
    given = tensors(*sizes)
    torch.set_num_threads(1)
    expected = cpu.attention(*given, causal=sizes[3] > 1)
    for threads in (2, 3, 5):
        torch.set_num_threads(threads)
        for found, wanted in zip(cpu.attention(*given, causal=sizes[3] > 1), expected, strict=True):
            assert torch.equal(found, wanted)


def test_torch_differentiates_through_the_results():
    """torch's backward, given our results, finds the gradients that float64 has."""
    query, key, value = tensors(1, 4, 4, 40, 40, 16)
    out, logsumexp = cpu.attention(query, key, value, causal=True)
    grad_out = heads(*out.shape, seed=9)
    found = flash_backward(grad_out, query, key, value, out, logsumexp, 0.0, True)
    doubles = [x.double().requires_grad_() for x in (query, key, value)]
    torch.nn.functional.scaled_dot_product_attention(*doubles, is_causal=True).backward(grad_out.double())
    for gradient, wanted in zip(found, doubles, strict=True):
        torch.testing.assert_close(gradient.double(), wanted.grad, rtol=0, atol=5e-6)


@pytest.mark.parametrize(
    ("changes", "constraint"),
    [
        ({"query": torch.zeros(2, 3, 4)}, "attention_heads"),
        ({"key": torch.zeros(1, 2, 5, 8, dtype=torch.float16)}, "attention_heads"),
        ({"value": torch.zeros(1, 2, 5, 8, device="meta")}, "cpu_tensor"),
        ({"query": torch.zeros(1, 4, 3, 8, dtype=torch.float64)}, "attention_heads"),
        ({"value": torch.zeros(1, 2, 6, 8)}, "attention_sizes"),
        ({"query": torch.zeros(1, 3, 3, 8)}, "attention_sizes"),
        ({"mask": torch.zeros(5)}, "attention_mask"),
        ({"mask": torch.zeros(3, 5, dtype=torch.bool)}, "attention_mask"),
        ({"mask": torch.zeros(3, 4)}, "attention_mask"),
    ],
)
def test_what_does_not_fit_is_refused(changes, constraint):
    given = dict(zip(("query", "key", "value"), tensors(1, 4, 2, 3, 5, 8), strict=True))
    with pytest.raises(ConstraintError) as caught:
        cpu.attention(**(given | changes))
    assert caught.value.constraint == constraint


@pytest.mark.parametrize("queries", [1, 5, 16, 17, 70, 130])
def test_a_causal_mask_has_the_same_bits_as_a_tensor(isa, queries):
    """Whether a model is captured as a whole or in blocks decides which of the two torch makes of it."""
    generator = torch.Generator().manual_seed(queries)
    query, key, value = torch.randn(3, 2, 2, queries, 32, generator=generator)
    mask = torch.full((queries, queries), -torch.inf).triu(1)
    for found, expected in zip(
        cpu.attention(query, key, value, causal=True), cpu.attention(query, key, value, mask), strict=True
    ):
        assert torch.equal(found, expected)


def check_codes(query, key, value, mask=None, *, causal=False, key_scales=None, value_scales=None):
    """What the kernel makes of codes, within the bounds of the reference."""
    given = {"causal": causal, "key_scales": key_scales, "value_scales": value_scales}
    out, logsumexp = cpu.attention(query, key, value, mask, **given)
    expected = reference.attention(query, key, value, mask, **given)
    assert out.dtype == query.dtype
    assert (np.abs(out.double().numpy() - expected.out) <= expected.out_bound).all()
    assert (np.abs(logsumexp.double().numpy() - expected.logsumexp) <= expected.logsumexp_bound).all()
    return out, logsumexp


CODE_SIZES = [
    # Queries of all heads of a key head that share sums in registers, and more; rows of whole groups of codes, and not.
    (1, 1, 1, 1, 1, 64),
    (2, 2, 2, 1, 700, 64),
    (1, 4, 2, 1, 129, 128),
    (1, 6, 2, 1, 530, 64),
    (1, 8, 2, 1, 66, 64),
    (1, 10, 2, 3, 77, 64),
    (2, 4, 2, 16, 70, 32),
    (1, 3, 1, 2, 66, 33),
    (1, 2, 1, 40, 100, 64),
]


@pytest.mark.parametrize("sizes", CODE_SIZES, ids=str)
def test_codes_of_a_cache_are_read_as_they_are(isa, sizes):
    query, key, value = tensors(*sizes)
    (key, key_scales), (value, value_scales) = encode_rows(key * 30), encode_rows(value * 0.01)
    scales = {"key_scales": key_scales, "value_scales": value_scales}
    out, _ = check_codes(query * 0.05, key, value, **scales)
    expected = reference.attention(query * 0.05, key, value, **scales).out
    assert np.linalg.norm(out.double().numpy() - expected) < 1e-6 * np.linalg.norm(expected)
    mask = heads(1, 1, *(sizes[3], sizes[4]), seed=8)
    check_codes((query * 0.05).bfloat16(), key, value, mask, causal=True, **scales)


@pytest.mark.parametrize("group", [1, 6])
def test_every_code_is_decoded(isa, group):
    """All 254 numbers, each in each place of a group, by keys of which one value is not 0."""
    table = torch.arange(256, dtype=torch.uint8)
    table = table[table % 128 != 127]
    values = torch.from_numpy(table.numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float32))
    for column in range(0, 64, 7):
        key = torch.zeros(1, 1, len(table), 64, dtype=torch.uint8)
        key[0, 0, :, column] = table
        one = torch.ones(())
        query = torch.full((1, group, 1, 64), 2.0**-6)
        # One key alone: the logarithm of the sum is its score, and the result is its value.
        for k in range(0, len(table), 11):
            own = key[:, :, k : k + 1]
            out, logsumexp = cpu.attention(query, own, own, scale=1.0, key_scales=one, value_scales=3 * one)
            assert torch.equal(logsumexp[0, :, 0], (values[k] * 2.0**-6).expand(group))
            wanted = torch.zeros(group, 64)
            wanted[:, column] = 3 * values[k]
            assert torch.equal(out[0, :, 0], wanted)


@pytest.mark.parametrize("exponents", [(-120, -120), (-60, 100), (40, -140), (60, 110), (100, -20)], ids=str)
def test_scales_of_any_size(isa, exponents):
    """Scales far from 1, with queries that bring scores back to size, and values that differ by much."""
    query, key, value = tensors(1, 2, 1, 1, 130, 64)
    (key, key_scales), (value, value_scales) = encode_rows(key), encode_rows(value)
    key_exponent, value_exponent = exponents
    key_scales = key_scales * 2.0**key_exponent
    value_scales = value_scales * 2.0**value_exponent
    value_scales[0, 0, ::3] *= 2.0**-30
    half = key_exponent // 2
    query = query * 2.0**-half * 2.0 ** (half - key_exponent)
    check_codes(query, key, value, key_scales=key_scales, value_scales=value_scales)


@pytest.mark.parametrize("group", [1, 3, 6])
def test_nan_codes_reach_who_sees_them(isa, group):
    query, key, value = tensors(1, group, 1, 1, 130, 64)
    (key, key_scales), (value, value_scales) = encode_rows(key), encode_rows(value)
    scales = {"key_scales": key_scales, "value_scales": value_scales}
    expected, _ = cpu.attention(query, key, value, **scales)
    for position, column, code in ((0, 0, 0x7F), (63, 5, 0xFF), (64, 63, 0x7F), (129, 33, 0xFF)):
        bad = key.clone()
        bad[0, 0, position, column] = code
        out, logsumexp = cpu.attention(query, bad, value, **scales)
        assert out.isnan().all()
        assert logsumexp.isnan().all()
        bad = value.clone()
        bad[0, 0, position, column] = code
        out, _ = cpu.attention(query, key, bad, **scales)
        assert out[..., column].isnan().all()
        rest = torch.arange(64) != column
        assert torch.equal(out[..., rest], expected[..., rest])


@pytest.mark.parametrize("queries", [2, 16, 17, 170])
@pytest.mark.parametrize("size", [8, 64])
def test_codes_that_a_causal_mask_hides_are_never_read(isa, size, queries):
    """NaN among codes and scales, and infinite scales, in rows of whole groups of codes and not."""
    query, key, value = tensors(1, 3, 1, queries, 200, size)
    encoded = (*encode_rows(key), *encode_rows(value * 2.0**20))
    for first in (1, 7, 15, 64, 146):
        for hidden in ((0x7F, 1.0), (0, INFINITY), (0, math.nan)):
            results = []
            for codes, scale in ((0, 1.0), hidden):
                own = [x.clone() for x in encoded]
                for x, filler in zip(own, (codes, scale) * 2, strict=True):
                    x[0, 0, first:] = filler
                key, key_scales, value, value_scales = own
                scales = {"key_scales": key_scales, "value_scales": value_scales}
                results.append(cpu.attention(query, key, value, causal=True, **scales))
            (expected, expected_logsumexp), (out, logsumexp) = results
            assert torch.equal(out[0, :, :first], expected[0, :, :first])
            assert torch.equal(logsumexp[0, :, :first], expected_logsumexp[0, :, :first])
            assert out[0, :, first:].isnan().all()


def test_codes_in_any_strides(isa):
    query, key, value = tensors(2, 3, 3, 2, 70, 64)
    (key, key_scales), (value, value_scales) = encode_rows(key), encode_rows(value)
    expected = cpu.attention(query, key, value, key_scales=key_scales, value_scales=value_scales)
    for layout in ("tokens first", "columns first"):
        spread_out = [LAYOUTS[layout](x) for x in (key, value, key_scales, value_scales)]
        key_, value_, key_scales_, value_scales_ = spread_out
        found = cpu.attention(query, key_, value_, key_scales=key_scales_, value_scales=value_scales_)
        for one, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(one, wanted, rtol=0, atol=2e-6)
        if layout == "tokens first":
            assert torch.equal(found[0], expected[0])


@pytest.mark.parametrize("hidden", [slice(0, 64), slice(64, 192), slice(100, None)], ids=str)
def test_keys_that_a_mask_hides_from_all_change_nothing(isa, hidden):
    query, key, value = tensors(1, 4, 2, 2, 260, 64)
    mask = torch.zeros(1, 1, 2, 260)
    mask[..., hidden] = -INFINITY
    found, logsumexp = check(query, key, value, mask)
    seen = torch.ones(260, dtype=torch.bool)
    seen[hidden] = False
    wanted, wanted_logsumexp = cpu.attention(query, key[:, :, seen], value[:, :, seen])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
    torch.testing.assert_close(logsumexp, wanted_logsumexp, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"key_scales": None},
        {"key": torch.zeros(1, 2, 5, 8)},
        {"key_scales": torch.zeros(1, 2, 5, 1, dtype=torch.float64)},
        {"value_scales": torch.zeros(1, 2, 4, 1)},
        {"value_scales": torch.zeros(5)},
    ],
    ids=str,
)
def test_scales_that_do_not_fit_are_refused(changes):
    codes, scales = torch.zeros(1, 2, 5, 8, dtype=torch.uint8), torch.ones(1, 2, 5, 1)
    given = {"key": codes, "value": codes, "key_scales": scales, "value_scales": scales}
    with pytest.raises(ConstraintError) as caught:
        cpu.attention(torch.zeros(1, 4, 3, 8), **(given | changes))
    assert caught.value.constraint == "attention_scales"
