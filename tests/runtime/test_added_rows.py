"""Rows added where their numbers say: torch's bits, which are those of one addition after the other."""

import math

import pytest
import torch

from steelyard import reference
from steelyard.errors import ConstraintError
from steelyard.runtime import _cpu
from steelyard.runtime.cpu.tensor_reader import TENSORS

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t().contiguous().t(),
    "every second": lambda x: torch.stack([x, x], 2)[..., 0],
    "part of more": lambda x: torch.nn.functional.pad(x, (3, 2, 1, 1))[1:-1, 3:-2],
    "one row": lambda x: x[:1].expand_as(x),
}


def values(*shape, seed=0, dtype=torch.float32):
    return (3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) + 0.5).to(dtype)


def numbers(count, *shape):
    return torch.randint(0, count, shape, generator=torch.Generator().manual_seed(0))


def add_rows(rows, indices, count, padding=-1):
    out = torch.full((count, rows.shape[-1]), math.nan, dtype=rows.dtype)
    _cpu.bound_add_rows(TENSORS, 0, 1, 2, padding)(rows, indices, out)
    return out


def torchs(rows, indices, count, padding=-1):
    return torch.ops.aten.embedding_dense_backward(rows, indices, count, padding, False)


@pytest.mark.every(3)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (60, 128), (33, 300)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_torchs_bits(isa, layout, shape, dtype):
    rows, count = LAYOUTS[layout](values(*shape, dtype=dtype)), 6
    indices = numbers(count, shape[0])
    for padding in (-1, 2):
        expected = torchs(rows, indices, count, padding)
        assert torch.equal(add_rows(rows, indices, count, padding), expected)
        assert torch.equal(reference.add_rows(rows, indices, count, padding), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bound(isa, dtype):
    """As many roundings as additions."""
    rows, indices = values(40, 9, dtype=dtype), numbers(3, 40)
    half_unit = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[dtype]
    exact, size = (torch.zeros(3, 9).double().index_add(0, indices, x.double()) for x in (rows, rows.abs()))
    error = (add_rows(rows, indices, 3).double() - exact).abs()
    assert (error <= 41 * half_unit * size).all()


def test_indices_of_other_shapes(isa):
    rows, indices = values(2, 3, 5, 8), numbers(7, 2, 3, 5)
    expected = torchs(rows, indices, 7)
    assert torch.equal(add_rows(rows, indices, 7), expected)
    assert torch.equal(add_rows(rows, indices.int(), 7), expected)
    turned = rows.transpose(0, 1), indices.transpose(0, 1)
    assert torch.equal(add_rows(*turned, 7), torchs(*(one.contiguous() for one in turned), 7))
    assert torch.equal(add_rows(rows[0, 0, 0], indices[0, 0, 0], 7), torchs(rows[0, 0, :1], indices[0, 0, :1], 7))


def test_special_values(isa):
    inf, nan = math.inf, math.nan
    tiny = 2.0**-149
    rows = torch.tensor([[inf, -0.0, tiny, 3e38, nan], [-inf, -0.0, tiny, 3e38, 0.0], [1.0, -0.0, 0.0, 2.0, 5.0]])
    found = add_rows(rows, torch.tensor([1, 1, 0]), 3)
    expected = torch.tensor([[1.0, 0.0, 0.0, 2.0, 5.0], [nan, 0.0, 2 * tiny, inf, nan], [0.0] * 5])
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert not found[:, 1].signbit().any()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_nothing(threads):
    rows, indices = values(999, 517), numbers(300, 999)
    expected = reference.add_rows(rows, indices, 300)
    torch.set_num_threads(threads)
    assert torch.equal(add_rows(rows, indices, 300), expected)


def test_nothing_to_do():
    assert torch.equal(add_rows(values(0, 4), numbers(3, 0), 3), torch.zeros(3, 4))
    assert add_rows(values(5, 0), numbers(3, 5), 3).shape == (3, 0)


def test_what_does_not_fit_is_refused():
    with pytest.raises(IndexError, match="index 7 is out of range: it must be that of one of 7 rows"):
        add_rows(values(1, 4), torch.tensor([7]), 7)
    with pytest.raises(ConstraintError, match="each row must have an index"):
        add_rows(values(2, 4), torch.tensor([0]), 7)
    with pytest.raises(ConstraintError, match="a table must have rows like those that are added"):
        _cpu.bound_add_rows(TENSORS, 0, 1, 2, -1)(values(1, 4), torch.tensor([0]), torch.empty(7, 5))
    with pytest.raises(ConstraintError, match="a table must have rows like those that are added"):
        _cpu.bound_add_rows(TENSORS, 0, 1, 2, -1)(values(1, 4), torch.tensor([0]), torch.empty(7, 4).half())
    with pytest.raises(ConstraintError, match="the elements of a result must lie one after the other"):
        _cpu.bound_add_rows(TENSORS, 0, 1, 2, -1)(values(1, 4), torch.tensor([0]), torch.empty(7, 8)[:, ::2])
    with pytest.raises(ConstraintError, match="indices must be integers of 32 or 64 bits"):
        add_rows(values(1, 4), torch.tensor([0.0]), 7)
