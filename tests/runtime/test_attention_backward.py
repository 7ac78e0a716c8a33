"""The gradients of attention on the CPU against float64 and torch: sizes, strides, dtypes, masks, threads."""

import numpy as np
import pytest
import torch

from steelyard import reference
from steelyard.errors import ConstraintError
from steelyard.runtime import cpu

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def heads(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def tensors(batch, query_heads, key_heads, queries, keys, size, dtype=torch.float32):
    """Query, key, value and the gradient of the result."""
    shapes = ((query_heads, queries), (key_heads, keys), (key_heads, keys), (query_heads, queries))
    return [heads(batch, *shape, size, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes)]


def check(query, key, value, grad_out, mask=None, **options):
    """The kernel's gradients, within the bounds of the reference."""
    out, logsumexp = cpu.attention(query, key, value, mask, **options)
    given = (grad_out, query, key, value, out, logsumexp, mask)
    found = cpu.attention_backward(*given, **options)
    expected = reference.attention_backward(*given, **options)
    for own, tensor, wanted, bound in zip(found, (query, key, value), expected.gradients, expected.bounds, strict=True):
        assert (own.shape, own.dtype) == (tensor.shape, tensor.dtype)
        assert (np.abs(own.double().numpy() - wanted) <= bound).all()
    return found, expected


SIZES = [
    # batch, heads, key heads, queries, keys, head size
    (1, 1, 1, 1, 1, 1),
    (2, 4, 2, 1, 70, 64),
    (1, 3, 1, 2, 66, 33),
    (2, 2, 2, 5, 7, 8),
    (1, 6, 2, 40, 100, 64),
    (1, 2, 1, 65, 130, 80),
    (1, 1, 1, 130, 97, 129),
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes(isa, sizes, causal):
    check(*tensors(*sizes), causal=causal)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_errors_are_those_of_float32(isa, dtype):
    """The bound holds for any rounding; sums that round well are far closer."""
    found, expected = check(*tensors(1, 2, 2, 150, 150, 64, dtype), causal=True)
    limit = {torch.float32: 7e-7, torch.bfloat16: 3e-3, torch.float16: 4e-4}[dtype]
    for own, wanted in zip(found, expected.gradients, strict=True):
        assert np.linalg.norm(own.double().numpy() - wanted) < limit * np.linalg.norm(wanted)


@pytest.mark.parametrize("shape", [(70, 90), (2, 1, 70, 90), (1, 4, 1, 90)], ids=str)
def test_masks(isa, shape):
    query, key, value, grad_out = tensors(2, 4, 2, 70, 90, 16)
    mask = heads(*shape, seed=5)
    check(query, key, value, grad_out, mask)
    hidden = torch.where(mask > 0.5, -torch.inf, 0.0)
    check(query, key, value, grad_out, hidden, causal=True)


@pytest.mark.parametrize("queries", [9, 70])
def test_autograd_in_float64_gives_the_same(isa, queries):
    """Of the whole function, its own forward included."""
    query, key, value, grad_out = tensors(2, 6, 2, queries, queries, 24)
    out, logsumexp = cpu.attention(query, key, value, causal=True, scale=0.3)
    found = cpu.attention_backward(grad_out, query, key, value, out, logsumexp, causal=True, scale=0.3)
    doubles = [x.double().requires_grad_() for x in (query, key, value)]
    options = {"is_causal": True, "scale": 0.3, "enable_gqa": True}
    torch.nn.functional.scaled_dot_product_attention(*doubles, **options).backward(grad_out.double())
    for own, wanted in zip(found, doubles, strict=True):
        torch.testing.assert_close(own.double(), wanted.grad, rtol=0, atol=1e-5)


def test_the_results_of_torch_are_read(isa):
    """Either of forward and backward may be torch's."""
    query, key, value, grad_out = tensors(2, 3, 3, 40, 40, 16)
    out, logsumexp = flash(query, key, value, 0.0, True)
    found = cpu.attention_backward(grad_out, query, key, value, out, logsumexp, causal=True)
    theirs = flash_backward(grad_out, query, key, value, out, logsumexp, 0.0, True)
    for own, wanted in zip(found, theirs, strict=True):
        torch.testing.assert_close(own, wanted, rtol=0, atol=1e-5)
        assert own.stride() == wanted.stride()


LAYOUTS = {
    "tokens first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "columns first": lambda x: x.transpose(1, 3).contiguous().transpose(1, 3),
    "gaps": lambda x: torch.stack([x, x], dim=-1).flatten(3)[..., ::2],
    "one for all": lambda x: x[:, :1].expand(x.shape),
    "negated": lambda x: torch.complex(x, -x).conj().imag,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_change_nothing(isa, layout):
    given = [LAYOUTS[layout](x) for x in tensors(2, 3, 3, 37, 70, 16)]
    copies = [x.clone(memory_format=torch.contiguous_format).resolve_neg() for x in given]
    results = []
    for query, key, value, grad_out in (given, copies):
        out, logsumexp = cpu.attention(query, key, value)
        results.append(cpu.attention_backward(grad_out, query, key, value, out, logsumexp))
    for found, wanted in zip(*results, strict=True):
        assert torch.equal(found, wanted)


def test_huge_scores(isa):
    """One key has all the weight of a query: its value gets the gradient."""
    query, key, value, grad_out = tensors(1, 1, 1, 30, 100, 8)
    out, logsumexp = cpu.attention(query * 1e10, key * 1e4, value)
    found = cpu.attention_backward(grad_out, query * 1e10, key * 1e4, value, out, logsumexp)
    chosen = (query[0, 0].double() @ key[0, 0].double().T).argmax(dim=1)
    wanted = torch.zeros(100, 8, dtype=torch.float64).index_add(0, chosen, grad_out[0, 0].double())
    torch.testing.assert_close(found[2][0, 0].double(), wanted, rtol=1e-5, atol=1e-5)


def test_weights_are_never_above_1(isa):
    """Logarithms that are too small, as they are where scores round by much, do not overflow."""
    query, key, value, grad_out = tensors(1, 1, 1, 30, 100, 8)
    out, logsumexp = cpu.attention(query, key, value)
    found = cpu.attention_backward(grad_out, query, key, value, out, logsumexp - 200)
    torch.testing.assert_close(found[2][0, 0], grad_out[0, 0].sum(0).expand(100, 8), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "sizes",
    [(0, 2, 2, 3, 4, 8), (1, 0, 0, 3, 4, 8), (1, 2, 2, 0, 4, 8), (1, 2, 1, 3, 0, 8), (2, 2, 1, 3, 4, 0)],
    ids=str,
)
def test_nothing_to_attend(isa, sizes):
    found, _ = check(*tensors(*sizes))
    # Keys that nobody asks for, and queries of no keys, have gradients of 0.
    if sizes[3] == 0 or sizes[4] == 0:
        assert all(torch.equal(one, torch.zeros_like(one)) for one in found)


def test_threads_change_nothing(isa):
    query, key, value, grad_out = tensors(2, 6, 3, 100, 100, 32)
    out, logsumexp = cpu.attention(query, key, value, causal=True)
    results = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        results.append(cpu.attention_backward(grad_out, query, key, value, out, logsumexp, causal=True))
    for found in results[1:]:
        assert all(torch.equal(one, wanted) for one, wanted in zip(found, results[0], strict=True))


@pytest.mark.parametrize(
    ("changes", "constraint"),
    [
        ({"query": torch.zeros(2, 3, 4)}, "attention_heads"),
        ({"value": torch.zeros(1, 2, 6, 8)}, "attention_sizes"),
        ({"mask": torch.zeros(3, 4)}, "attention_mask"),
        ({"grad_out": torch.zeros(1, 4, 3, 8, dtype=torch.float16)}, "attention_gradients"),
        ({"out": torch.zeros(1, 4, 3, 9)}, "attention_gradients"),
        ({"logsumexp": torch.zeros(1, 3, 4)}, "attention_gradients"),
    ],
)
def test_what_does_not_fit_is_refused(changes, constraint):
    query, key, value, grad_out = tensors(1, 4, 2, 3, 5, 8)
    given = {"query": query, "key": key, "value": value, "grad_out": grad_out, "out": query}
    with pytest.raises(ConstraintError) as caught:
        cpu.attention_backward(**(given | {"logsumexp": torch.zeros(1, 4, 3)} | changes))
    assert caught.value.constraint == constraint


@pytest.mark.parametrize("queries", [5, 70, 130])
def test_a_causal_mask_has_the_same_bits_as_a_tensor(isa, queries):
    """Whether a model is captured as a whole or in blocks decides which of the two torch makes of it."""
    query, key, value, grad_out = tensors(1, 2, 2, queries, queries, 32)
    out, logsumexp = cpu.attention(query, key, value, causal=True)
    mask = torch.full((queries, queries), -torch.inf).triu(1)
    given = (grad_out, query, key, value, out, logsumexp)
    for found, expected in zip(
        cpu.attention_backward(*given, causal=True), cpu.attention_backward(*given, mask), strict=True
    ):
        assert torch.equal(found, expected)
