"""Tapes by themselves: views are torch's, memory is used again, calls overlap, wrong steps are refused."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from steelyard import reference
from steelyard.errors import ConstraintError
from steelyard.formats.schemes import Scheme
from steelyard.runtime import _cpu
from steelyard.runtime.cpu.arguments import ITEM_TYPES, scheme_bits
from steelyard.runtime.cpu.tensor_reader import TENSORS

SCHEME = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU")
VIEWS = {name: number for number, name in enumerate(_cpu.view_names())}
TENSOR, PART, NUMBER = range(3)
CONSTANT, FROM_NUMBER, DIM, ROWS = range(4)
ARENA, HEAP, CALLER = range(3)
BYTES, FLOATS = ITEM_TYPES[torch.uint8], ITEM_TYPES[torch.float32]


def quantize_kernel():
    """Quantizes value 0 into codes, value 1, and scales, value 2."""
    row = scheme_bits(SCHEME), 0.0, 1, 2, -1, False
    return _cpu.bound_quantize(TENSORS, row, None, -1, -1, None, False)


def quantized(x):
    """The copy that the kernel makes, by the reference."""
    return reference.quantize(x, SCHEME, None)[0]


def constant(value):
    return CONSTANT, value, 0


def result(register, shape, home=CALLER, place=0):
    return register, BYTES, [constant(size) for size in shape], [], home, place


def parts_of(x):
    """The shapes of the codes and scales of a matrix."""
    rows, columns = x.shape[:-1].numel(), x.shape[-1]
    return (rows, columns), (rows, -(-columns // 32))


def make_bytes(sizes, strides):
    return torch.empty_strided(sizes, strides, dtype=torch.uint8)


def make_tape(arguments, tensors, numbers=0, returned=2):
    return _cpu.Tape(TENSORS, arguments, tensors, numbers, [make_bytes] * returned)


def random_view(draw, x):
    """A view of a tensor by torch, and as a step: its name and numbers."""
    dims = x.dim()
    kinds = ["transpose", "permute", "unsqueeze", "select", "slice", "reshape", "expand", "squeeze"]
    kind = draw.choice(kinds if dims > 1 else ["unsqueeze", "slice", "reshape"])
    dim = draw.randrange(-dims, dims)
    if kind == "transpose":
        other = draw.randrange(dims)
        return x.transpose(dim, other), kind, [dim, other]
    if kind == "permute":
        order = draw.sample(range(dims), dims)
        return x.permute(order), kind, order
    if kind == "unsqueeze":
        dim = draw.randrange(dims + 1)
        return (x.unsqueeze(dim), kind, [dim]) if dims < 6 else (x, "slice", [0, 0, 2**63 - 1, 1])
    if kind == "select" and x.size(dim):
        index = draw.randrange(-x.size(dim), x.size(dim))
        return x.select(dim, index), kind, [dim, index]
    if kind == "slice" or kind == "select":
        size = x.size(dim)
        start, stop, step = draw.randrange(-size - 1, size + 1), draw.randrange(-size, size + 2), draw.choice([1, 1, 2])
        made = torch.ops.aten.slice.Tensor(x, dim, start, stop, step)
        return made, kind if kind == "slice" else "slice", [dim, start, stop, step]
    if kind == "reshape":
        sizes = draw.choice([[*x.shape[:-2], -1], [-1, x.shape[-1]] if x.shape[-1] else [0, 0], list(x.shape)])
        sizes = sizes if x.numel() else list(x.shape)
        return x.reshape(sizes), kind, sizes
    if kind == "expand":
        sizes = [draw.randrange(1, 3) if size == 1 else -1 for size in x.shape]
        return x.expand(sizes), kind, sizes
    return x.squeeze(dim), "squeeze", [dim]


@pytest.mark.parametrize("seed", range(60))
def test_views_are_torchs(seed):
    draw = random.Random(seed)
    sizes = [draw.randrange(1, 7) for _ in range(draw.randrange(1, 5))]
    x = torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))
    viewed, steps = x, []
    for _ in range(draw.randrange(1, 7)):
        viewed, *step = random_view(draw, viewed)
        steps.append(step)
    if viewed.dim() == 0:
        viewed, steps = viewed.unsqueeze(0), [*steps, ["unsqueeze", [0]]]
    tape = make_tape([(TENSOR, 0)], len(steps) + 3)
    for number, (name, numbers) in enumerate(steps):
        tape.add_view(VIEWS[name], number, number + 1, [constant(one) for one in numbers])
    last = len(steps)
    codes, scales = parts_of(viewed)
    results = [result(last + 1, codes), result(last + 2, scales, place=1)]
    tape.add_kernel(quantize_kernel(), [last, last + 1, last + 2], results)
    expected = quantized(viewed)
    made = tape(0, x)
    assert torch.equal(made[0], expected.codes)
    assert torch.equal(made[1], expected.scales)


def test_numbers_are_read_at_run_time():
    x = torch.randn(10, 64)
    tape = make_tape([(TENSOR, 0), (NUMBER, 0)], 4, numbers=1)
    tape.add_view(VIEWS["slice"], 0, 1, [constant(0), (FROM_NUMBER, 0, 0), constant(2**63 - 1), constant(1)])
    rows, columns = (DIM, 1, 0), (DIM, 1, 1)
    codes = 2, BYTES, [rows, columns], [], CALLER, 0
    scales = 3, BYTES, [(ROWS, 1, 1), constant(2)], [], CALLER, 1
    tape.add_kernel(quantize_kernel(), [1, 2, 3], [codes, scales])
    for first in (0, 3, 9):
        expected = quantized(x[first:])
        made = tape(0, x, first)
        assert torch.equal(made[0], expected.codes)
        assert torch.equal(made[1], expected.scales)


def test_results_lie_where_they_are_told():
    x = torch.randn(4, 32)
    tape = make_tape([(TENSOR, 0)], 3, returned=0)
    tape.add_kernel(quantize_kernel(), [0, 1, 2], [result(1, (4, 32), ARENA, 64), result(2, (4, 1), ARENA, 0)])
    arena = torch.zeros(192, dtype=torch.uint8)
    assert tape(arena.data_ptr(), x) == ()
    expected = quantized(x)
    assert torch.equal(arena[64:192], expected.codes.flatten())
    assert torch.equal(arena[:4], expected.scales.flatten())


def test_calls_of_many_threads_overlap():
    """Each thread has frames, heap blocks and results of its own; a reshape that copies takes heap memory."""
    tape = make_tape([(TENSOR, 0)], 5)
    tape.add_view(VIEWS["transpose"], 0, 1, [constant(0), constant(1)])
    tape.add_view(VIEWS["reshape"], 1, 2, [constant(-1), constant(96)])
    tape.add_kernel(quantize_kernel(), [2, 3, 4], [result(3, (64, 96)), result(4, (64, 3), place=1)])
    inputs = [torch.randn(96, 64, generator=torch.Generator().manual_seed(seed)) for seed in range(16)]
    expected = [quantized(x.t().reshape(-1, 96)) for x in inputs]

    def check(number):
        x, wanted = inputs[number % 16], expected[number % 16]
        codes, scales = tape(0, x)
        return torch.equal(codes, wanted.codes) and torch.equal(scales, wanted.scales)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(check, range(800)))


def test_a_failed_call_leaves_a_tape_that_works():
    x = torch.randn(4, 32)
    tape = make_tape([(TENSOR, 0)], 4)
    tape.add_view(VIEWS["select"], 0, 1, [constant(0), constant(3)])
    tape.add_kernel(quantize_kernel(), [1, 2, 3], [result(2, (1, 32)), result(3, (1, 1), place=1)])
    with pytest.raises(ConstraintError, match="an index must be one of its dim"):
        tape(0, x[:2])
    assert torch.equal(tape(0, x)[0], quantized(x[3:]).codes)


def copying_tape(makers):
    """A tape whose reshape copies a matrix of columns into memory of the heap."""
    tape = _cpu.Tape(TENSORS, [(TENSOR, 0)], 5, 0, makers)
    tape.add_view(VIEWS["transpose"], 0, 1, [constant(0), constant(1)])
    tape.add_view(VIEWS["reshape"], 1, 2, [constant(-1), constant(16)])
    rows, columns = (DIM, 2, 0), (DIM, 2, 1)
    codes = 3, BYTES, [rows, columns], [], CALLER, 0
    tape.add_kernel(quantize_kernel(), [2, 3, 4], [codes, (4, BYTES, [rows, constant(1)], [], CALLER, 1)])
    return tape


def test_a_tape_keeps_what_its_last_call_needed():
    """A block is used again unless less than half of it is needed; what the last call did not use is freed."""
    tape = copying_tape([make_bytes] * 2)
    assert tape.nbytes() == 0
    for columns, kept in ((10, 10), (1000, 1000), (500, 1000), (499, 499), (4, 4), (5, 5)):
        x = torch.randn(32, columns)
        assert torch.equal(tape(0, x)[0], quantized(x.t().reshape(-1, 16)).codes)
        assert tape.nbytes() == kept * 32 * 4


def test_memory_of_calls_that_no_longer_overlap_goes():
    x, depth = torch.randn(32, 100), []

    def make(sizes, strides):
        # A call within a call, of which each has a frame of its own.
        if len(depth) < 3:
            depth.append(1)
            tape(0, x)
        return make_bytes(sizes, strides)

    tape = copying_tape([make, make_bytes])
    tape(0, x)
    assert tape.nbytes() == 4 * x.nbytes
    for _ in range(100):
        tape(0, x)
    assert tape.nbytes() == x.nbytes


class Entered:
    """A context that says when it is entered and left."""

    def __init__(self, name, seen):
        self._name, self._seen = name, seen

    def __enter__(self):
        self._seen.append(f"enter {self._name}")

    def __exit__(self, *_):
        self._seen.append(f"exit {self._name}")


def test_records_end_where_a_kernel_fails():
    tape, seen = make_tape([(TENSOR, 0)], 6, returned=4), []
    tape.add_kernel(quantize_kernel(), [0, 2, 3], [result(2, (4, 32)), result(3, (4, 1), place=1)])
    for register in (0, 1):
        tape.add_view(VIEWS["select"], register, register + 4 if register else 1, [constant(0), constant(0)])
    tape.add_kernel(quantize_kernel(), [5, 4, 3], [result(4, (1, 32), place=2)])
    with pytest.raises(ConstraintError, match="a matrix must have at least one dim"):
        tape.recorded([Entered("first", seen), Entered("second", seen)], 0, torch.randn(4, 32))
    assert seen == ["enter first", "exit first", "enter second", "exit second"]


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda tape: tape.add_view(VIEWS["select"], 0, 9, [constant(0), constant(0)]), "must name a register"),
        (lambda tape: tape.add_view(99, 0, 1, []), "a view must be the number of one in view_names"),
        (lambda tape: tape.add_view(0, 0, 1, [(FROM_NUMBER, 3, 0)]), "a number must be that of a register"),
        (lambda tape: tape.add_free(-1), "must name a register"),
        (lambda tape: tape.add_kernel(quantize_kernel(), [0, 7, 2], []), "must name a register"),
        (lambda tape: tape.add_kernel(quantize_kernel(), [0, 1, 2], [result(1, (1,), place=5)]), "must have its maker"),
        (lambda tape: tape.add_kernel(quantize_kernel(), [0, 1, 2], [result(1, [1] * 9)]), "at most 8 dims"),
    ],
)
def test_wrong_steps_are_refused(add, message):
    with pytest.raises(ConstraintError, match=message):
        add(make_tape([(TENSOR, 0)], 3))


def test_wrong_arguments_are_refused():
    tape = make_tape([(TENSOR, 0)], 3)
    tape.add_kernel(quantize_kernel(), [0, 1, 2], [result(1, (1, 32)), result(2, (1, 1), place=1)])
    with pytest.raises(ConstraintError, match="its arena and its arguments"):
        tape(0)
    freed = torch.randn(1, 32)
    freed.untyped_storage().resize_(0)
    with pytest.raises(ConstraintError, match="memory of their own"):
        tape(0, freed)
