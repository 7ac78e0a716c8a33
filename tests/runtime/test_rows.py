"""Norms, sums, means and softmax of rows, and rows found by number: against float64 and torch, on odd shapes."""

import math

import pytest
import torch

from steelyard import reference
from steelyard.errors import ConstraintError
from steelyard.runtime import _cpu
from steelyard.runtime.cpu import producers
from steelyard.runtime.cpu.arguments import ROW_FUNCTIONS
from steelyard.runtime.cpu.tensor_reader import TENSORS

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
HALF_UNITS = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, 2).contiguous().transpose(0, 2),
    "every second": lambda x: torch.stack([x, x], 3)[..., 0],
    "part of more": lambda x: torch.nn.functional.pad(x, (3, 2, 1, 1))[:, 1:-1, 3:-2],
    "one row": lambda x: x[:1, :1].expand_as(x),
}
SHAPES = [(1, 1, 1), (2, 3, 7), (1, 2, 33), (3, 1, 512), (2, 2, 1300), (40, 3, 65)]


def values(*shape, seed=0, dtype=torch.float32):
    return (3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) + 0.5).to(dtype)


def rows(function, x, dtype=None):
    shape = x.shape if function == "softmax" else x.shape[:-1]
    out = torch.empty(shape, dtype=dtype or x.dtype)
    _cpu.bound_rows(TENSORS, ROW_FUNCTIONS[function], 0, 1)(x, out)
    return out


def norm(kind, x, *vectors, epsilon=1e-5):
    out = torch.empty(x.shape, dtype=x.dtype)
    producer = producers.describe(kind, 0, epsilon, vectors=len(vectors))
    _cpu.bound_produce(TENSORS, producer, 1 + len(vectors))(x, *vectors, out)
    return out


def is_within(found, exact, bound):
    """Whether values are within a bound of float64 ones, beside their own rounding."""
    exact = exact.double()
    rounding = HALF_UNITS[found.dtype] * exact.abs() + (2.0**-25 if found.dtype is torch.float16 else 2.0**-149)
    return ((found.double() - exact).abs() <= rounding + bound).all()


@pytest.mark.every(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sums_and_means(isa, layout, shape, dtype):
    x = LAYOUTS[layout](values(*shape, dtype=dtype))
    size = shape[-1]
    # See test_sums.py: at most 64 additions, and those of the lanes.
    bound = 80 * 2.0**-24 * x.double().abs().sum(-1)
    assert is_within(rows("sum", x), x.double().sum(-1), bound)
    assert is_within(rows("mean", x), x.double().mean(-1), bound / size)
    assert is_within(rows("mean", x, torch.float32), x.double().mean(-1), bound / size)
    assert is_within(rows("sum", x), reference.row_sum(x, torch.float32), bound + 2.0**-24 * x.double().sum(-1).abs())


@pytest.mark.every(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_softmax(isa, layout, shape, dtype):
    x = LAYOUTS[layout](values(*shape, dtype=dtype))
    exact = torch.softmax(x.double(), -1)
    # The difference to the largest is rounded once, which its power multiplies by it; powers, sums and shares follow.
    distance = (x.double().amax(-1, keepdim=True) - x.double()).abs()
    found = rows("softmax", x)
    assert is_within(found, exact, exact * (distance + 24) * 2.0**-24)
    assert is_within(found, reference.softmax(x), exact * (distance + 24 + 2.0**24 * HALF_UNITS[dtype]) * 2.0**-24)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_softmax_of_special_values(isa, dtype):
    inf = math.inf
    cases = [[0.0, -inf, 0.0], [-inf, -inf, -inf], [inf, 0.0, 1.0], [math.nan, 1.0, 2.0], [0.0, -0.0, 0.0]]
    cases += [[60000.0, -60000.0, 59000.0], [-60000.0, -60000.0, -60000.0]]
    x = torch.tensor(cases, dtype=dtype)
    found, expected = rows("softmax", x), torch.softmax(x.double(), -1).to(dtype)
    assert torch.allclose(found, expected, rtol=1e-6, atol=0, equal_nan=True)


def test_sums_of_special_values(isa):
    inf = math.inf
    x = torch.tensor([[inf, 1.0], [inf, -inf], [math.nan, 0.0], [-0.0, -0.0], [3e38, 3e38], [-inf, 5.0]])
    expected = x.double().sum(-1).float()
    assert torch.allclose(rows("sum", x), expected, equal_nan=True)
    # The sum is rounded before it is divided, as torch's.
    assert torch.equal(rows("mean", x[4:5]), torch.tensor([inf]))


@pytest.mark.every(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_norms(isa, layout, shape, dtype):
    x = LAYOUTS[layout](values(*shape, dtype=dtype))
    weight, bias = values(shape[-1], seed=1, dtype=dtype), values(2 * shape[-1], seed=2)[::2]
    for vectors in ([], [weight], [weight, bias]):
        full = [*vectors, None, None][:2]
        exact = reference.layer_norm(x.double(), *full, 1e-5)
        # Values around the mean keep the error of the mean, which is that of a sum.
        spread = 17 * 2.0**-24 * x.double().abs().mean(-1, keepdim=True)
        spread = spread / (x.double().var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
        spread = spread * weight.double().abs() if vectors else spread
        magnitude = exact.abs() + (0 if len(vectors) < 2 else bias.double().abs())
        assert is_within(norm("layer_norm", x, *vectors), exact, magnitude * 24 * 2.0**-24 + spread)
    for vectors in ([], [weight]):
        exact = reference.rms_norm(x.double(), *([*vectors, None][:1]), 1e-5)
        assert is_within(norm("rms_norm", x, *vectors), exact, exact.abs() * 24 * 2.0**-24)


def test_norms_of_special_values(isa):
    x = torch.tensor([[0.0, 0.0, 0.0], [math.inf, 1.0, 2.0], [math.nan, 1.0, 2.0], [1e-30, -1e-30, 0.0]])
    for kind, exact in (("rms_norm", reference.rms_norm(x, None, 1e-5)),):
        assert torch.allclose(norm(kind, x), exact, equal_nan=True)
    found = norm("layer_norm", x)
    assert torch.equal(found.isnan(), torch.tensor([[False] * 3, [True] * 3, [True] * 3, [False] * 3]))
    assert torch.allclose(found[[0, 3]], reference.layer_norm(x[[0, 3]], None, None, 1e-5))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_nothing(threads):
    x = values(301, 517)
    torch.set_num_threads(1)
    expected = [rows(function, x) for function in ROW_FUNCTIONS]
    torch.set_num_threads(threads)
    assert all(map(torch.equal, [rows(function, x) for function in ROW_FUNCTIONS], expected))


def test_nothing_to_do():
    assert rows("softmax", values(0, 4)).shape == (0, 4)
    assert rows("softmax", values(4, 0)).shape == (4, 0)
    assert torch.equal(rows("sum", values(4, 0)), torch.zeros(4))
    assert rows("mean", values(2, 0)).isnan().all()


def lookup(table, indices):
    out = torch.empty((*indices.shape, table.shape[1]), dtype=table.dtype)
    _cpu.bound_lookup(TENSORS, 0, 1, 2)(table, indices, out)
    return out


def write_rows(target, indices, entries, dim):
    out = torch.empty(target.shape, dtype=target.dtype)
    _cpu.bound_write_rows(TENSORS, 0, 1, 2, 3, dim)(target, indices, entries, out)
    return out


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64, torch.uint8, torch.int64], ids=str)
@pytest.mark.parametrize("kind", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (0, 4), (40, 9)], ids=str)
def test_lookups(shape, kind, dtype):
    table = values(11, 7).to(dtype)
    indices = torch.randint(0, 11, shape, generator=torch.Generator().manual_seed(0)).to(kind)
    for read in (table, table[::2].repeat(2, 1)[:11], table.t().contiguous().t(), values(11, 14).to(dtype)[:, ::2]):
        assert torch.equal(lookup(read, indices), torch.nn.functional.embedding(indices, read))
        assert torch.equal(lookup(read, indices), reference.lookup(read, indices))
    turned = torch.randint(0, 11, (3, 5)).to(kind).t()
    assert torch.equal(lookup(table, turned), table[turned.long()])


@pytest.mark.parametrize("index", [-1, 11, 2**40, -(2**62)])
def test_indices_out_of_range(index):
    with pytest.raises(IndexError, match=f"index {index} is out of range: it must be that of one of 11 rows"):
        lookup(values(11, 7), torch.tensor([3, index]))
    with pytest.raises(IndexError, match="one of 11 rows"):
        write_rows(values(11, 7), torch.tensor([index]), values(1, 7), 0)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.uint8, torch.bool], ids=str)
@pytest.mark.parametrize("dim", [0, 1, 2, 3])
def test_written_rows(dim, dtype):
    target = values(3, 4, 5, 6).to(dtype)
    indices = torch.randperm(target.shape[dim], generator=torch.Generator().manual_seed(0))[:2]
    shape = [2 if i == dim else size for i, size in enumerate(target.shape)]
    entries = values(*shape, seed=1).to(dtype)
    turned = entries.transpose(0, 3).contiguous().transpose(0, 3)
    expected = target.index_copy(dim, indices, entries)
    for rows_ in (entries, turned):
        assert torch.equal(write_rows(target, indices, rows_, dim), expected)
        assert torch.equal(reference.write_rows(target, indices, rows_, dim), expected)
        made = target.clone()
        _cpu.bound_write_rows(TENSORS, 0, 1, 2, 3, dim)(made, indices, rows_, made)
        assert torch.equal(made, expected)
        assert torch.equal(
            write_rows(target, indices.int()[:1], rows_.narrow(dim, 0, 1), dim).select(dim, indices[0]),
            expected.select(dim, indices[0]),
        )


def test_entries_that_do_not_fit_are_refused():
    target = values(4, 6)
    for entries, indices in ((values(1, 5), [0]), (values(2, 6), [0]), (values(1, 6), [0, 1]), (values(6), [0])):
        with pytest.raises(ConstraintError, match="entries must have"):
            write_rows(target, torch.tensor(indices), entries, 0)
    with pytest.raises(ConstraintError, match="a table must have rows"):
        _cpu.bound_lookup(TENSORS, 0, 1, 2)(target, torch.tensor([0]), torch.empty(1, 5))
    with pytest.raises(ConstraintError, match="each row must have its place"):
        _cpu.bound_rows(TENSORS, 0, 0, 1)(target, torch.empty(3))
    with pytest.raises(ConstraintError, match="the elements of a result must lie one after the other"):
        _cpu.bound_rows(TENSORS, 0, 0, 1)(target, torch.empty(8)[::2])


def concatenate(parts, out):
    _cpu.bound_concatenate(TENSORS, len(parts), 0)(*parts, out)


def test_other_dtypes_are_refused():
    x, double, first = values(4, 6), values(4, 6).double(), torch.tensor([0])
    memory = torch.zeros(48, dtype=torch.float16)
    with pytest.raises(ConstraintError, match="a result must have the dtype of its table"):
        _cpu.bound_lookup(TENSORS, 0, 1, 2)(x, first, memory[:6].view(1, 6))
    assert not memory.any()
    for target, entries, out in ((x, double, x), (x, x, double), (double, x, x)):
        with pytest.raises(ConstraintError, match="entries must have the dtype"):
            _cpu.bound_write_rows(TENSORS, 0, 1, 2, 3, 0)(target, first, entries[:1], torch.empty_like(out))
    for parts in ([double], [x, double]):
        with pytest.raises(ConstraintError, match="parts must have the dtype of the whole"):
            concatenate(parts, torch.empty(4 * len(parts), 6))


def test_rows_are_looked_up_into_contiguous_memory_only():
    memory = torch.zeros(24)
    for out in (memory[:6].view(1, 6).expand(3, 6), memory[:18].view(6, 3).t()):
        with pytest.raises(ConstraintError, match="the elements of a result must lie one after the other"):
            _cpu.bound_lookup(TENSORS, 0, 1, 2)(values(4, 6), torch.tensor([0, 1, 2]), out)
    assert not memory.any()


def test_norms_that_do_not_fit_are_refused():
    x = values(3, 4)
    for kind, vectors in (("rms_norm", (3,)), ("rms_norm", (5,)), ("layer_norm", (4, 1))):
        with pytest.raises(ConstraintError, match="a vector must be as long as the rows"):
            norm(kind, x, *map(torch.ones, vectors))
    for out, message in (
        (torch.empty(2, 4), "what is produced must be as large as what it is made of"),
        (torch.empty(3, 8)[:, ::2], "the elements of a result must lie one after the other"),
    ):
        with pytest.raises(ConstraintError, match=message):
            _cpu.bound_produce(TENSORS, producers.describe("rms_norm", 0, 1e-5, vectors=0), 1)(x, out)
