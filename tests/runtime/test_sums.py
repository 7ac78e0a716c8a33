"""Sums and means of rows and of columns: torch's bits of contiguous tensors, and a bound from float64."""

import pytest
import torch

from steelyard import reference
from steelyard.errors import ConstraintError
from steelyard.runtime import _cpu
from steelyard.runtime.cpu.arguments import ROW_FUNCTIONS
from steelyard.runtime.cpu.tensor_reader import TENSORS

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
HALF_UNITS = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
# Around the widths of vectors, of four of them, of tasks, and the lengths from which sums have more levels.
SHAPES = [(1, 1), (2, 3), (3, 7), (5, 8), (9, 15), (17, 16), (31, 33), (64, 129), (7, 300), (300, 5), (1040, 70)]
SHAPES += [(70, 1040), (5000, 9), (9, 5000), (512, 130)]
LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t().contiguous().t(),
    "every second": lambda x: torch.stack([x, x], 2)[..., 0],
    "part of more": lambda x: torch.nn.functional.pad(x, (3, 2, 1, 1))[1:-1, 3:-2],
    "one row": lambda x: x[:1].expand_as(x),
    "one column": lambda x: x[:, :1].expand_as(x),
}


def values(*shape, seed=0, dtype=torch.float32):
    return (3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) + 0.5).to(dtype)


def columns(function, x, dims=1, dtype=None):
    out = torch.empty(x.shape[dims:], dtype=dtype or x.dtype)
    _cpu.bound_columns(TENSORS, function == "mean", dims, 0, 1)(x, out)
    return out


def rows(function, x, dtype=None):
    out = torch.empty(x.shape[:-1], dtype=dtype or x.dtype)
    _cpu.bound_rows(TENSORS, ROW_FUNCTIONS[function], 0, 1)(x, out)
    return out


@pytest.fixture
def one_thread():
    """A sum of all that a tensor has is cut by torch into as many parts as it has threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.every(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_torchs_bits(isa, one_thread, layout, shape, dtype):
    x = LAYOUTS[layout](values(*shape, dtype=dtype))
    whole = x.contiguous()
    for made in (dtype, torch.float32):
        assert torch.equal(columns("sum", x, dtype=made), whole.sum(0, dtype=made))
        assert torch.equal(columns("mean", x, dtype=made), whole.mean(0, dtype=made))
        assert torch.equal(rows("sum", x, made), whole.sum(1, dtype=made))
        assert torch.equal(rows("mean", x, made), whole.mean(1, dtype=made))


def test_more_than_a_million_numbers(isa, one_thread):
    """From 2^20 numbers on, 32 of them are added one after the other."""
    x = values(1100000, 2)
    assert torch.equal(columns("sum", x), x.sum(0))
    assert torch.equal(rows("sum", x.t().contiguous()), x.t().contiguous().sum(1))


@pytest.mark.every(3)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bound(isa, shape, dtype):
    x = values(*shape, dtype=dtype)
    # Four levels of at least 16 terms, the rest of each, and the lanes: numbers pass through so many additions.
    additions = 4 * max(16, 2 * shape[0] ** 0.25) + 16
    exact = reference.column_sum(x, 1, torch.float32).double()
    bound = additions * 2.0**-24 * x.double().abs().sum(0) + 2.0**-24 * exact.abs()
    assert ((columns("sum", x, dtype=torch.float32).double() - exact).abs() <= bound).all()
    exact = reference.column_mean(x, 1, torch.float32).double()
    bound = bound / shape[0] + HALF_UNITS[dtype] * exact.abs() + 2.0**-25
    assert ((columns("mean", x).double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_nothing(threads):
    x = values(301, 1517)
    expected = x.sum(0), x.sum(1)
    torch.set_num_threads(threads)
    assert torch.equal(columns("sum", x), expected[0])
    assert torch.equal(rows("sum", x), expected[1])


def test_dims_together(isa):
    x = values(3, 4, 5, 6)
    assert torch.equal(columns("sum", x, 1), x.sum(0))
    assert torch.equal(columns("sum", x, 2), x.sum((0, 1)))
    assert torch.equal(columns("mean", x, 3), x.mean((0, 1, 2)))
    # Dims that are not one in memory are copied into one.
    turned = x.transpose(0, 1)
    assert torch.equal(columns("sum", turned, 2), turned.contiguous().sum((0, 1)))
    assert torch.equal(columns("sum", x.transpose(2, 3), 2), x.transpose(2, 3).contiguous().sum((0, 1)))


def test_special_values(isa):
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([[inf, inf, nan, -0.0, 3e38, 1e-45], [1.0, -inf, 0.0, -0.0, 3e38, 1e-45]])
    torch.testing.assert_close(columns("sum", x), x.sum(0), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(rows("sum", x.t().contiguous()), x.sum(0), rtol=0, atol=0, equal_nan=True)


def test_nothing_to_do():
    assert torch.equal(columns("sum", values(0, 4)), torch.zeros(4))
    assert columns("mean", values(0, 4)).isnan().all()
    assert columns("sum", values(4, 0)).shape == (0,)


def test_results_that_do_not_fit_are_refused():
    with pytest.raises(ConstraintError, match="each column must have its place"):
        _cpu.bound_columns(TENSORS, False, 1, 0, 1)(values(3, 4), torch.empty(3))
    with pytest.raises(ConstraintError, match="the elements of a result must lie one after the other"):
        _cpu.bound_columns(TENSORS, False, 1, 0, 1)(values(3, 4), torch.empty(8)[::2])
    with pytest.raises(ConstraintError, match="columns must be of dims of their tensor"):
        _cpu.bound_columns(TENSORS, False, 3, 0, 1)(values(3, 4), torch.empty(1))
    with pytest.raises(ConstraintError, match="columns must be of at least one dim"):
        _cpu.bound_columns(TENSORS, False, 0, 0, 1)
