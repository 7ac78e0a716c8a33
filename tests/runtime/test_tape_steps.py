"""Steps of tapes that training needs: each, alone on a tape, makes the bytes of the reference, in any thread."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from kernel_cases import nvfp4, same_bytes

from steelyard import reference
from steelyard.errors import ConstraintError
from steelyard.formats.parts import part_shapes
from steelyard.formats.schemes import Scheme
from steelyard.runtime import _cpu, cpu
from steelyard.runtime.cpu.arguments import ITEM_TYPES, scheme_bits
from steelyard.runtime.cpu.tensor_reader import TENSORS
from steelyard.runtime.dtypes import DTYPES

TENSOR, PART, NUMBER = range(3)
CONSTANT, FROM_NUMBER, DIM, ROWS = range(4)
CALLER = 2
NOWHERE = -1

TENSOR_SCALED = Scheme("f8E4M3FN", "tensor", "f32")
TRANSPOSABLE = {
    "tensor": TENSOR_SCALED,
    "128x128": Scheme("f8E4M3FN", "128x128", "f32"),
    "32x32": Scheme("f8E4M3FN", "32x32", "f8E8M0FNU"),
    "16x16": nvfp4(block="16x16"),
}
SHAPES = [(1, 1), (5, 37), (33, 64), (130, 129), (0, 16), (16, 0)]


def result(register, shape, dtype=torch.float32, order=()):
    return register, ITEM_TYPES[dtype], [(CONSTANT, size, 0) for size in shape], list(order), CALLER, None


def tape_of(kernel, operands, results, numbers=0, kinds=None):
    """One kernel on the tensors of a call, then its numbers; `results`: shapes, dtypes and orders of dims."""
    count = len(operands)
    arguments = [(kind, i) for i, kind in enumerate(kinds or [TENSOR] * count)] + [(NUMBER, i) for i in range(numbers)]
    makers = [lambda sizes, strides, dtype=one[1]: torch.empty_strided(sizes, strides, dtype=dtype) for one in results]
    tape = _cpu.Tape(TENSORS, arguments, count + len(results), numbers, makers)
    made = [(*result(count + i, *one)[:-1], i) for i, one in enumerate(results)]
    tape.add_kernel(kernel, [*range(count), *range(numbers), *range(count, count + len(results))], made)
    return tape


def sources():
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(3, 7, 50, generator=generator)
    with_nan = plain.clone()
    with_nan[1, 2, 3] = math.nan
    with_infinity = plain.clone()
    with_infinity[2, 6, 49] = -math.inf
    strided = torch.randn(50, 7, 6, generator=generator)[:, :, ::2].permute(2, 1, 0)
    return {
        "plain": plain,
        "bf16": plain.bfloat16(),
        "nan": with_nan,
        "infinity": with_infinity,
        "strided": strided,
        "empty": plain[:, :0],
        "negated": torch.view_as_complex(torch.randn(3, 7, 50, 2, generator=generator)).conj().imag,
    }


@pytest.mark.parametrize("name", sources())
@pytest.mark.parametrize("per_row", [False, True])
def test_amax(name, per_row):
    x = sources()[name]
    tape = tape_of(_cpu.bound_amax(TENSORS, False, per_row), [x], [(x.shape[:-1] if per_row else (), torch.float32)])
    (found,) = tape(0, x)
    largest = x.abs().float().amax(-1) if per_row else x.abs().float().amax() if x.numel() else torch.zeros(())
    assert torch.equal(found.nan_to_num(-1), largest.nan_to_num(-1))
    assert found.shape == largest.shape


def test_amax_after_the_transform():
    x = torch.randn(40, 33, generator=torch.Generator().manual_seed(1))
    (found,) = tape_of(_cpu.bound_amax(TENSORS, True, False), [x], [((), torch.float32)])(0, x)
    assert same_bytes(found, reference.amax(x, rht=True))


@pytest.mark.parametrize("most_recent", [False, True])
@pytest.mark.parametrize(
    ("scale", "history", "amax"),
    [
        (2.0, [9.0, 3.0, 5.0, 1.0], 4.0),
        (2.0, [0.0], 0.5),
        (2.0, [9.0, 3.0], 0.0),
        (2.0, [9.0, math.nan, 7.0], 3.0),
        (2.0, [9.0, 3.0], math.inf),
        (2.0, [9.0, 3.0], math.nan),
        ([1.0, 2.0, 4.0], [[9.0, 8.0, 7.0], [1.0, 2.0, 3.0]], [5.0, 0.0, 6.0]),
        ([1.0, 2.0], [[9.0, 8.0], [1.0, 2.0]], 3.0),
    ],
)
def test_the_state_of_delayed_scaling(scale, history, amax, most_recent):
    scale, history, amax = map(torch.tensor, (scale, history, amax))
    largest = TENSOR_SCALED.element_max * 2.0**-1
    kernel = _cpu.bound_update_scale(TENSORS, most_recent, largest, 0.0, False, None)
    shapes = [(scale.shape, torch.float32), (history.shape, torch.float32)]
    found = tape_of(kernel, [scale, history, amax], shapes)(0, scale, history, amax)
    newest = history.clone()
    newest[0] = amax
    algorithm = "most_recent" if most_recent else "max"
    expected = reference.update_scale(scale, newest, TENSOR_SCALED, margin=1, algorithm=algorithm)
    assert all(map(same_bytes, found, expected))


def test_the_amaxes_of_ranks_are_exchanged():
    kernel = _cpu.bound_update_scale(TENSORS, False, 448.0, 0.0, False, lambda amaxes: [2 * one for one in amaxes])
    given = torch.tensor(1.0), torch.tensor([0.0, 5.0]), torch.tensor(3.5)
    shapes = [((), torch.float32), ((2,), torch.float32)]
    assert [one.tolist() for one in tape_of(kernel, given, shapes)(0, *given)] == [64.0, [0.0, 7.0]]


def test_an_error_of_the_exchange_is_raised():
    def refuse(amaxes):
        raise ConnectionError("rank 1 is gone")

    kernel = _cpu.bound_update_scale(TENSORS, False, 448.0, 0.0, False, refuse)
    given = torch.tensor(1.0), torch.tensor([0.0, 5.0]), torch.tensor(3.5)
    tape = tape_of(kernel, given, [((), torch.float32), ((2,), torch.float32)])
    with pytest.raises(ConnectionError, match="rank 1 is gone"):
        tape(0, *given)


def test_a_history_without_slots_is_refused():
    given = torch.ones(3), torch.ones(4), torch.tensor(3.5)
    tape = tape_of(
        _cpu.bound_update_scale(TENSORS, False, 448.0, 0.0, False, None),
        given,
        [((3,), torch.float32), ((4,), torch.float32)],
    )
    with pytest.raises(ConstraintError, match="a history must have at least one slot for each scale"):
        tape(0, *given)


@pytest.mark.parametrize("state", [[3, 4], [-1, 2**63 - 1]])
def test_the_random_state_of_the_next_step(state):
    state = torch.tensor(state)
    (found,) = tape_of(_cpu.bound_advance_rng(TENSORS), [state], [((2,), torch.int64)])(0, state)
    assert same_bytes(found, state + torch.tensor([0, 1]))


def transpose_kernel(scheme, columns, columnwise, has_amax):
    """Transposes codes, scales and amax; one number is the rows."""
    parts = [0, 1, 2 if has_amax else NOWHERE]
    count = 2 + has_amax
    source = scheme_bits(scheme), columnwise, *parts, 1, True, columns
    made = [count + 1 + part if part != NOWHERE else NOWHERE for part in parts]
    return _cpu.bound_transpose(TENSORS, source, *made, count, count + 1)


@pytest.mark.parametrize("columnwise", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", TRANSPOSABLE)
def test_transposes(name, shape, columnwise):
    scheme, (rows, columns) = TRANSPOSABLE[name], shape
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    copies = reference.quantize(x, scheme, scheme)
    given, wanted = copies[::-1] if columnwise else copies
    parts = [part for part in (given.codes, given.scales, given.amax) if part is not None]
    shapes = part_shapes(scheme, shape, not columnwise).values()
    kernel = transpose_kernel(scheme, columns, columnwise, len(parts) == 3)
    results = [(tuple(size or 0 for size in sizes), DTYPES[dtype]) for sizes, dtype in shapes]
    tape = tape_of(kernel, parts, results, numbers=1, kinds=[PART] * len(parts))
    made = tape(0, *parts, rows)
    expected = [part for part in (wanted.codes, wanted.scales, wanted.amax) if part is not None]
    assert all(map(same_bytes, made, expected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("heads", "key_heads", "queries", "keys"), [(4, 2, 9, 9), (2, 2, 1, 70), (2, 1, 0, 5)])
def test_gradients_of_attention(heads, key_heads, queries, keys, masked, dtype):
    """The same bytes as the kernel that `tests/runtime/test_attention_backward.py` holds against float64."""
    generator = torch.Generator().manual_seed(3)
    query, grad_out = (torch.randn(2, queries, heads, 24, generator=generator).to(dtype).transpose(1, 2) for _ in "ab")
    key, value = (torch.randn(2, key_heads, keys, 24, generator=generator).to(dtype) for _ in "ab")
    mask = [torch.randn(queries, keys, generator=generator)] if masked else []
    causal = queries == keys
    out, sums = cpu.attention(query, key, value, *mask, causal=causal)
    given = [grad_out, query, key, value, out, sums, *mask]
    kernel = _cpu.bound_attention_backward(TENSORS, 6 if masked else NOWHERE, len(given), None, causal)
    results = [(tuple(one.shape), dtype, (0, 2, 1, 3)) for one in (query, key, value)]
    made = tape_of(kernel, given, results)(0, *given)
    expected = cpu.attention_backward(*given, causal=causal)
    assert all(map(torch.equal, made, expected))
    assert [one.stride() for one in made] == [one.stride() for one in expected]


def test_calls_of_many_threads():
    scheme = TRANSPOSABLE["16x16"]
    inputs = [torch.randn(70, 48, generator=torch.Generator().manual_seed(seed)) for seed in range(8)]
    copies = [reference.quantize(x, scheme, scheme) for x in inputs]
    sizes = [
        (tuple(size or 0 for size in own), DTYPES[dtype]) for own, dtype in part_shapes(scheme, (70, 48), True).values()
    ]
    turn = tape_of(transpose_kernel(scheme, 48, False, True), [None] * 3, sizes, numbers=1, kinds=[PART] * 3)
    find = tape_of(_cpu.bound_amax(TENSORS, False, True), [None], [((70,), torch.float32)])

    def check(number):
        row, col = copies[number % 8]
        made = turn(0, row.codes, row.scales, row.amax, 70)
        (amax,) = find(0, inputs[number % 8])
        return all(map(same_bytes, made, (col.codes, col.scales, col.amax))) and torch.equal(
            amax, inputs[number % 8].abs().amax(-1)
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(check, range(160)))


@pytest.mark.parametrize("count", [None, 0, 1, 5])
@pytest.mark.parametrize(("start", "offset"), [(7, 0), (-3, 2), (2**63 - 1, 1)])
def test_positions(count, start, offset):
    kernel = _cpu.bound_positions(TENSORS, 0, 1, offset)
    given = torch.tensor(start)
    shape = () if count is None else (count,)
    (found,) = tape_of(kernel, [given], [(shape, torch.int64)])(0, given)
    expected = given + offset + (0 if count is None else torch.arange(count))
    assert torch.equal(found, expected)


def test_positions_count_from_one_number():
    given = torch.tensor([1, 2])
    with pytest.raises(ConstraintError, match="must count on from one integer of 64 bits"):
        tape_of(_cpu.bound_positions(TENSORS, 0, 1, 0), [given], [((2,), torch.int64)])(0, given)
    kernel = _cpu.bound_positions(TENSORS, 0, 1, 0)
    for start, out in ((torch.tensor(1.0, dtype=torch.float64), torch.int64), (torch.tensor(1), torch.float64)):
        with pytest.raises(ConstraintError, match="must count on from one integer of 64 bits"):
            kernel(start, torch.empty(2, dtype=out))
    with pytest.raises(ConstraintError, match="the elements of a result must lie one after the other"):
        kernel(torch.tensor(1), torch.empty(4, dtype=torch.int64)[::2])


def block(shift, *, positions=(0, NOWHERE), results=(1,)):
    """A tape that puts rows, and those that are bound to it, one after the other, as a step of another."""
    inner = tape_of(_cpu.bound_concatenate(TENSORS, 2, 0), [shift, shift], [((5, 4), torch.float32)])
    return inner.as_step(64, list(positions), [None if place == 0 else shift for place in positions], list(results))


def test_a_tape_is_a_step_of_another():
    shift, x = torch.randn(2, 4), torch.randn(4, 3).t()
    kernel = block(shift)
    (found,) = tape_of(kernel, [x], [((5, 4), torch.float32)])(0, x)
    assert torch.equal(found, torch.cat([x, shift]))
    out = torch.zeros(5, 4)
    kernel(x, out)
    assert torch.equal(out, found), "Python calls it as it calls any kernel"


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (torch.zeros(4, 4), "a result of a block must have the size and the dtype"),
        (torch.zeros(6, 4), "a result of a block must have the size and the dtype"),
        (torch.zeros(5, 4, dtype=torch.float64), "a result of a block must have the size and the dtype"),
        (torch.zeros(5, 4, dtype=torch.bfloat16), "a result of a block must have the size and the dtype"),
        (torch.zeros(5, 8)[:, ::2], "the elements of a result must lie one after the other"),
    ],
)
def test_a_step_makes_what_its_tape_makes(made, message):
    with pytest.raises(ConstraintError, match=message):
        block(torch.randn(2, 4))(torch.randn(3, 4), made)
    assert torch.equal(made, torch.zeros_like(made))


def test_a_step_makes_the_elements_of_its_tape_in_other_dims():
    shift, x, out = torch.randn(2, 4), torch.randn(3, 4), torch.zeros(2, 1, 10)
    block(shift)(x, out)
    assert torch.equal(out, torch.cat([x, shift]).reshape(2, 1, 10))


def test_a_step_makes_its_results_in_order():
    x = torch.randn(2, 3, 4)
    inner = tape_of(_cpu.bound_concatenate(TENSORS, 1, 0), [x], [((2, 3, 4), torch.float32, (1, 0, 2))])
    with pytest.raises(ConstraintError, match="a block must make its results in the order of their dims"):
        inner.as_step(0, [0], [None], [1])(x, torch.empty(2, 3, 4))


def test_what_is_bound_to_a_step_lives_as_long_as_that():
    kernel = block(torch.full((2, 4), 3.0))
    torch.full((2, 4), 5.0)
    x = torch.zeros(3, 4)
    (found,) = tape_of(kernel, [x], [((5, 4), torch.float32)])(0, x)
    assert found[3:].eq(3.0).all()


def test_an_error_in_a_step_of_a_step_is_raised_and_later_calls_go_on():
    table = torch.randn(4, 8)
    inner = tape_of(_cpu.bound_lookup(TENSORS, 0, 1, 2), [table, torch.tensor([1])], [((1, 8), torch.float32)])
    kernel = inner.as_step(0, [NOWHERE, 0], [table, None], [1])
    tape = tape_of(kernel, [torch.tensor([1])], [((1, 8), torch.float32)])
    with pytest.raises(IndexError, match="index 4 is out of range"):
        tape(0, torch.tensor([4]))
    assert torch.equal(tape(0, torch.tensor([3]))[0][0], table[3])


def test_threads_share_a_step():
    shift = torch.randn(2, 4)
    kernel = block(shift)
    tape = tape_of(kernel, [torch.zeros(3, 4)], [((5, 4), torch.float32)])

    def run(number):
        x = torch.full((3, 4), float(number))
        return all(torch.equal(tape(0, x)[0], torch.cat([x, shift])) for _ in range(50))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(8)))


def test_a_step_gets_all_arguments_and_results():
    shift = torch.randn(2, 4)
    with pytest.raises(ConstraintError, match="must get its arguments"):
        block(shift, positions=[0])
    with pytest.raises(ConstraintError, match="a place for each of its results"):
        block(shift, results=[])
