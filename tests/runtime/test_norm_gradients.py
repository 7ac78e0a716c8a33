"""Layer norms in training: what they keep of each row, and their gradients, within a bound of float64."""

import math

import pytest
import torch

from steelyard import reference
from steelyard.errors import ConstraintError
from steelyard.runtime import _cpu
from steelyard.runtime.cpu import producers
from steelyard.runtime.cpu.tensor_reader import TENSORS

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
HALF_UNITS = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
SMALLEST = {torch.float32: 2.0**-149, torch.bfloat16: 2.0**-133, torch.float16: 2.0**-24}
UNIT = 2.0**-24
LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, 2).contiguous().transpose(0, 2),
    "every second": lambda x: torch.stack([x, x], 3)[..., 0],
    "part of more": lambda x: torch.nn.functional.pad(x, (3, 2, 1, 1))[:, 1:-1, 3:-2],
    "one row": lambda x: x[:1, :1].expand_as(x),
}
# Around the lanes, the chunks of rows, the rows that float32 sums, and those of tasks.
SHAPES = [(1, 1, 1), (2, 3, 7), (1, 2, 33), (3, 1, 512), (2, 2, 1300), (40, 3, 65), (2, 33, 32)]
EPSILON = 1e-5


def values(*shape, seed=0, dtype=torch.float32):
    return (3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) + 0.5).to(dtype)


def norm(x, *vectors, dtype=torch.float32):
    """The norm, and mean and rstd of each row."""
    out, ones = torch.empty(x.shape, dtype=x.dtype), (*x.shape[:-1], 1)
    mean, rstd = torch.empty(ones, dtype=dtype), torch.empty(ones, dtype=dtype)
    count = 1 + len(vectors)
    producer = producers.describe("layer_norm", 0, EPSILON, vectors=len(vectors))
    _cpu.bound_layer_norm(TENSORS, producer, count, count + 1, count + 2)(x, *vectors, out, mean, rstd)
    return out, mean, rstd


def backward(grad, x, mean, rstd, weight=None, wanted=(True, True, True)):
    """The gradients that are wanted."""
    shapes = x.shape, x.shape[-1:], x.shape[-1:]
    made = [torch.empty(shape, dtype=x.dtype) for shape, one in zip(shapes, wanted, strict=True) if one]
    given = [grad, x, mean, rstd, *([] if weight is None else [weight])]
    numbers = iter(range(len(given), len(given) + len(made)))
    places = [next(numbers) if one else -1 for one in wanted]
    _cpu.bound_norm_backward(TENSORS, 0, 1, 2, 3, -1 if weight is None else 4, *places)(*given, *made)
    return made


def is_within(found, exact, bound):
    """Whether values are within a bound of float64 ones, beside their own rounding."""
    rounding = HALF_UNITS[found.dtype] * (exact.abs() + bound) + SMALLEST[found.dtype]
    return ((found.double() - exact).abs() <= rounding + bound).all()


def assert_gradients(found, grad, x, mean, rstd, weight):
    exact = reference.layer_norm_backward(grad, x, mean, rstd, weight)
    given, scale = grad.double().abs(), rstd.double().abs()
    normal = (x.double() - mean.double()).abs() * scale
    scaled = given if weight is None else given * weight.double().abs()
    means = scaled.mean(-1, keepdim=True), (scaled * normal).mean(-1, keepdim=True)
    # Of each term: at most 16 additions in float32, those around them in float64, and a few roundings.
    bounds = [
        scale * (8 * scaled + 28 * means[0] + 36 * normal * means[1]) * UNIT,
        # 32 additions in float32, and the roundings of a term.
        (given * normal).sum((0, 1)) * 36 * UNIT,
        given.sum((0, 1)) * 33 * UNIT,
    ]
    assert all(is_within(*each) for each in zip(found, exact, bounds, strict=True))


@pytest.mark.every(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients(isa, layout, shape, dtype):
    x, grad = (LAYOUTS[layout](values(*shape, seed=seed, dtype=dtype)) for seed in (0, 1))
    mean, rstd = reference.layer_norm_statistics(x, EPSILON, torch.float32)
    for weight in (None, values(shape[-1], seed=2, dtype=dtype), values(2 * shape[-1], seed=3)[::2]):
        assert_gradients(backward(grad, x, mean, rstd, weight), grad, x, mean, rstd, weight)


def test_many_rows(isa):
    """More than a task for each group of 32 rows."""
    x, grad, weight = values(1, 64 * 32 + 33, 5), values(1, 64 * 32 + 33, 5, seed=1), values(5, seed=2)
    _, mean, rstd = norm(x)
    assert_gradients(backward(grad, x, mean, rstd, weight), grad, x, mean, rstd, weight)


def test_gradients_are_those_of_autograd(isa):
    x, weight, bias = (values(*shape, seed=seed).double() for seed, shape in enumerate([(2, 5, 40), (40,), (40,)]))
    inputs = [one.requires_grad_() for one in (x, weight, bias)]
    grad = values(2, 5, 40, seed=3)
    torch.nn.functional.layer_norm(x, [40], weight, bias, EPSILON).backward(grad.double())
    found = backward(grad, x.detach().float(), *norm(x.detach().float())[1:], weight.detach().float())
    assert all(torch.allclose(one, i.grad.float(), 1e-4, 1e-5) for one, i in zip(found, inputs, strict=True))


@pytest.mark.every(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_norm_keeps(isa, layout, shape, dtype):
    x = LAYOUTS[layout](values(*shape, dtype=dtype))
    weight, bias = values(shape[-1], seed=1, dtype=dtype), values(2 * shape[-1], seed=2)[::2]
    for vectors in ([], [weight], [weight, bias]):
        plain = torch.empty(x.shape, dtype=dtype)
        producer = producers.describe("layer_norm", 0, EPSILON, vectors=len(vectors))
        _cpu.bound_produce(TENSORS, producer, 1 + len(vectors))(x, *vectors, plain)
        for kept in (torch.float32, dtype):
            out, mean, rstd = norm(x, *vectors, dtype=kept)
            # Norms in inference, and those that are quantized at once, have these bits.
            assert torch.equal(out, plain)
            exact = [one.double() for one in reference.layer_norm_statistics(x, EPSILON, torch.float64)]
            size = x.double().abs().mean(-1, keepdim=True)
            assert is_within(mean, exact[0], 18 * UNIT * size)
            # The square of each distance has the error of its distance.
            assert is_within(rstd, exact[1], exact[1] * (24 + 18 * size * exact[1]) * UNIT)


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (True, False, True), (False,) * 3])
def test_gradients_that_nobody_reads(isa, wanted):
    x, grad, weight = values(3, 4, 70), values(3, 4, 70, seed=1), values(70, seed=2)
    _, mean, rstd = norm(x, weight)
    expected = backward(grad, x, mean, rstd, weight)
    found = backward(grad, x, mean, rstd, weight, wanted)
    wanted_ones = [one for one, is_wanted in zip(expected, wanted, strict=True) if is_wanted]
    assert all(map(torch.equal, found, wanted_ones))
    assert len(found) == len(wanted_ones)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_nothing(threads):
    x, grad, weight = values(7, 301, 517), values(7, 301, 517, seed=1), values(517, seed=2)
    torch.set_num_threads(1)
    kept = norm(x, weight)
    expected = [*kept, *backward(grad, x, *kept[1:], weight)]
    torch.set_num_threads(threads)
    kept = norm(x, weight)
    assert all(map(torch.equal, [*kept, *backward(grad, x, *kept[1:], weight)], expected))


def test_special_values(isa):
    inf, nan = math.inf, math.nan
    x = torch.tensor([[inf, 1.0, 2.0], [nan, 1.0, 2.0], [0.0, -0.0, 0.0], [1e-45, -1e-45, 0.0], [3e38, -3e38, 0.0]])
    out, mean, rstd = norm(x)
    assert torch.equal(out.isnan().any(1), torch.tensor([True, True, False, False, False]))
    assert torch.equal(mean[2:], torch.zeros(3, 1))
    assert torch.allclose(rstd[2:4], torch.full((2, 1), EPSILON**-0.5), rtol=1e-6)
    assert rstd[4] == 0
    one = torch.ones(1, 1)
    # A row that is not finite spoils its own gradients, and the sums over rows.
    grad = torch.tensor([[1.0, 2.0, 4.0]]).expand(5, 3)
    grad_x, grad_weight, grad_bias = backward(grad, x, mean, rstd)
    assert torch.equal(grad_x.isnan().any(1), torch.tensor([True, True, False, False, False]))
    assert grad_weight.isnan().all()
    assert torch.equal(grad_bias, torch.tensor([5.0, 10.0, 20.0]))
    for bad in (inf, nan):
        given = torch.tensor([[bad, 1.0, 1.0]])
        grad_x, grad_weight, grad_bias = backward(given, torch.tensor([[1.0, 2.0, 3.0]]), 2 * one, one)
        assert grad_x.isnan().all()
        assert torch.allclose(grad_weight, given[0] * torch.tensor([-1.0, 0.0, 1.0]), equal_nan=True)
        assert torch.allclose(grad_bias, given[0], equal_nan=True)
    # Subnormal gradients are not flushed.
    grad_x, _, grad_bias = backward(torch.tensor([[0.0, 2e-45, 0.0]]), torch.zeros(1, 3), 0 * one, 1000 * one)
    assert grad_bias[1] == 2.0**-149 * round(2e-45 / 2.0**-149)
    assert (grad_x[0] != 0).any()


def test_nothing_to_do():
    for shape in ((0, 4), (3, 0)):
        x = values(*shape)
        expected = torch.native_layer_norm(x, shape[1:], None, None, EPSILON)
        found = norm(x)
        for one, other in zip(found, expected, strict=True):
            assert torch.allclose(one, other, equal_nan=True)
        grad_x, *sums = backward(x, x, *found[1:], values(shape[1]))
        assert grad_x.shape == shape
        assert all(torch.equal(one, torch.zeros(shape[1])) for one in sums)


def test_what_does_not_fit_is_refused():
    x, one = values(3, 4), torch.ones(3, 1)
    with pytest.raises(ConstraintError, match="a norm and its source must have one size"):
        backward(values(3, 5), x, one, one)
    with pytest.raises(ConstraintError, match="each row must have its mean and its rstd"):
        backward(x, x, torch.ones(2, 1), one)
    with pytest.raises(ConstraintError, match="each row must have its mean and its rstd"):
        backward(x, x, one, torch.ones(3, 2))
    with pytest.raises(ConstraintError, match="a gradient must be as large as"):
        _cpu.bound_norm_backward(TENSORS, 0, 1, 2, 3, -1, 4, -1, -1)(x, x, one, one, torch.empty(3, 5))
    with pytest.raises(ConstraintError, match="a vector must be as long as the rows"):
        backward(x, x, one, one, torch.ones(3))
    producer = producers.describe("layer_norm", 0, EPSILON, vectors=0)
    with pytest.raises(ConstraintError, match="each row must have its mean and its rstd"):
        _cpu.bound_layer_norm(TENSORS, producer, 1, 2, 3)(x, x.clone(), torch.ones(2, 1), one)
    with pytest.raises(ConstraintError, match="mean and rstd must have one dtype"):
        _cpu.bound_layer_norm(TENSORS, producer, 1, 2, 3)(x, x.clone(), one.clone(), one.half())
    with pytest.raises(ConstraintError, match="what is produced must be as large as what it is made of"):
        _cpu.bound_layer_norm(TENSORS, producer, 1, 2, 3)(values(6, 4), x.clone(), one.clone(), one.clone())
    for vectors in ((torch.ones(3),), (torch.ones(4), torch.ones(5))):
        with pytest.raises(ConstraintError, match="a vector must be as long as the rows"):
            norm(x, *vectors)


def test_results_are_contiguous():
    x, one, wide = values(3, 4), torch.ones(3, 1), torch.zeros(3, 8)
    producer = producers.describe("layer_norm", 0, EPSILON, vectors=0)
    bound = _cpu.bound_norm_backward(TENSORS, 0, 1, 2, 3, -1, 4, -1, -1)
    with pytest.raises(ConstraintError, match="the elements of a result must lie one after the other"):
        bound(x, x, one, one, wide[:, ::2])
    bound = _cpu.bound_layer_norm(TENSORS, producer, 1, 2, 3)
    for out, mean in ((wide[:, ::2], one), (x.clone(), wide[:, :1])):
        with pytest.raises(ConstraintError, match="the elements of a result must lie one after the other"):
            bound(x, out, mean, one.clone())
    assert torch.equal(wide, torch.zeros(3, 8))
