"""Elementwise programs of the CPU against torch and float64: steps, strides, broadcasts, dtypes, special values."""

import math
import random

import numpy as np
import pytest
import torch

from steelyard import reference
from steelyard.errors import ConstraintError
from steelyard.formats import elementwise as programs
from steelyard.formats.elementwise import Access, Compute, Index, Load, Loop, Program, Store, parse
from steelyard.reference.elementwise import ROUNDED_ONCE, compute
from steelyard.runtime import _cpu, cpu

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
SPECIAL = [0.0, -0.0, 1.0, -1.5, 1e-40, -1e-42, 2.0**-126, 3.4e38, -3.4e38, 65504.0, 1e5, math.inf, -math.inf, math.nan]
TORCH = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "neg": torch.neg,
    "abs": torch.abs,
    # torch's may be off by a unit.
    "sqrt": lambda x: square_root(x),
    "reciprocal": torch.reciprocal,
    "relu": torch.relu,
}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
FUNCTIONS = {
    # Units in the last place.
    "exp": (lambda x: np.exp(x), 2),
    "tanh": (lambda x: np.tanh(x), 3),
    "erf": (np.vectorize(math.erf), 3),
    "sigmoid": (lambda x: sigmoid(x), 3),
    "silu": (lambda x: x * sigmoid(x), 5),
    "gelu": (np.vectorize(lambda x: x * math.erfc(-x / math.sqrt(2)) / 2), 5),
    "gelu_tanh": (lambda x: x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)), 5),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 2),
    "cos": (np.vectorize(math.cos), 1),
    "sin": (np.vectorize(math.sin), 1),
}


def sigmoid(x):
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1) / (1 + small)


def square_root(x):
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.sqrt(x.float().numpy())).to(x.dtype)


def values(*shape, seed=0, dtype=torch.float32):
    return (3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def dims(rank):
    return ", ".join(f"d{dim}" for dim in range(rank))


def program_of(operation, shape, count, dtype="f32"):
    """One operation on tensors of one shape."""
    places = dims(len(shape))
    loads = [f"v{i} = load in{i}[{places}]" for i in range(count)]
    words = " ".join(f"v{i}" for i in range(count))
    name = f"v{count}" if dtype == "f32" else f"v{count}:{dtype}"
    steps = [f"{name} = {operation} {words}", f"store v{count} out[{places}]"]
    return parse([f"loop [{', '.join(map(str, shape))}]", *loads, *steps])


def run(operation, *inputs, dtype="f32"):
    shape = inputs[0].shape
    kind = {"i1": torch.bool, **DTYPES}[dtype]
    return cpu.elementwise(program_of(operation, shape, len(inputs), dtype), inputs, shape, kind)


def bits(x):
    """The bits of each element, one for every NaN."""
    if not x.is_floating_point():
        return x
    whole = x.view(torch.int32 if x.itemsize == 4 else torch.int16)
    return torch.where(x.isnan(), -1, whole)


def special_pairs(dtype):
    some = torch.tensor(SPECIAL).to(dtype)
    # Beyond one vector, so that every lane meets each of them.
    left, right = some.repeat_interleave(len(some)), some.repeat(len(some))
    return torch.cat([left, values(61, dtype=dtype)]), torch.cat([right, values(61, seed=1, dtype=dtype)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", TORCH)
def test_one_step_has_the_bits_of_torch(isa, operation, dtype):
    inputs = special_pairs(DTYPES[dtype])[: programs.OPERATIONS[operation]]
    expected = TORCH[operation](*inputs)
    found = run(operation, *inputs, dtype=dtype)
    if operation in ("maximum", "minimum"):
        # Which zero is the larger one is nobody's promise.
        expected, found = expected + 0, found + 0
    assert torch.equal(bits(found), bits(expected))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", COMPARISONS)
def test_comparisons_are_those_of_torch(isa, operation, dtype):
    inputs = special_pairs(DTYPES[dtype])
    assert torch.equal(run(operation, *inputs, dtype="i1"), getattr(torch, operation)(*inputs))


def test_logic_is_that_of_torch(isa):
    a, b = torch.tensor([0, 0, 1, 1]).bool().repeat(9), torch.tensor([0, 1]).bool().repeat(18)
    assert torch.equal(run("logical_and", a, b, dtype="i1"), a & b)
    assert torch.equal(run("logical_or", a, b, dtype="i1"), a | b)
    assert torch.equal(run("logical_not", a, dtype="i1"), ~a)
    x, y = values(36), values(36, seed=1)
    assert torch.equal(run("where", a, x, y), torch.where(a, x, y))


@pytest.mark.parametrize("to", DTYPES)
@pytest.mark.parametrize("source", [*DTYPES.values(), torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_casts_round_as_torch_does(isa, source, to):
    some = torch.tensor([*SPECIAL[:-3], 2.0**24 + 2, 0.33325, 1 + 2.0**-8, 65520.0])
    x = some.to(source) if source.is_floating_point else torch.tensor([0, 1, 7, 255, 16777217, 2**40 + 1]).to(source)
    x = x.repeat(7)
    assert torch.equal(bits(run("cast", x, dtype=to)), bits(x.to(DTYPES[to])))


@pytest.mark.parametrize("operation", FUNCTIONS)
def test_functions_are_within_their_bounds(isa, operation):
    function, bound = FUNCTIONS[operation]
    x = torch.cat([torch.linspace(-30, 30, 20_001), values(4001), torch.logspace(-30, 1.5, 4001)])
    x = x.abs() + 1e-30 if operation == "rsqrt" else x
    exact = function(x.double().numpy())
    found = run(operation, x).double().numpy()
    unit = np.spacing(np.maximum(np.abs(exact), 2.0**-126).astype(np.float32)).astype(np.float64)
    assert (np.abs(found - exact) <= bound * unit).all()


@pytest.mark.parametrize("operation", ["cos", "sin"])
def test_angles_of_any_size(isa, operation):
    """Far from zero, whole turns leave little of a number; near multiples of pi / 2, little of a sine."""
    draw = torch.Generator().manual_seed(0)
    exponents = torch.randint(-20, 128, (20_001,), generator=draw)
    x = (torch.rand(20_001, generator=draw) + 1) * 2.0 ** (exponents - 1)
    nearest = torch.tensor([k * math.pi / 2 for k in range(1, 4001)]).float()
    # The first leaves almost nothing; the others are around where the reduction changes, and the largest.
    worst = torch.tensor([16367173.0 * 2.0**72, 2.0**20, 2.0**20 - 0.0625, 3.4028234663852886e38])
    x = torch.cat([x, -x, nearest, worst])
    exact = np.vectorize(getattr(math, operation))(x.double().numpy())
    found = run(operation, x).double().numpy()
    unit = np.spacing(np.maximum(np.abs(exact), 2.0**-126).astype(np.float32)).astype(np.float64)
    assert (np.abs(found - exact) <= 0.51 * unit).all()


@pytest.mark.parametrize("operation", ["silu_backward", "gelu_backward", "gelu_tanh_backward"])
def test_derivatives_are_within_their_bounds(isa, operation):
    x = torch.cat([torch.linspace(-60, 60, 20_001), values(4001)])
    y = x.double().numpy()
    if operation == "gelu_backward":
        first = np.vectorize(math.erfc)(-y / math.sqrt(2)) / 2
        second = y * np.exp(-y * y / 2) / math.sqrt(2 * math.pi)
    else:
        root = math.sqrt(2 / math.pi)
        is_silu = operation == "silu_backward"
        argument = y if is_silu else 2 * root * (y + 0.044715 * y**3)
        slope = 1 if is_silu else 2 * root * (1 + 3 * 0.044715 * y * y)
        small = np.exp(-np.abs(argument))
        first = np.where(y < 0, small, 1) / (1 + small)
        second = y * slope * small / (1 + small) ** 2
    found = run(operation, torch.full_like(x, 2.0), x).double().numpy()
    # What is below the normal numbers is multiplied by x and its slope afterwards.
    unit = 2.0**-23 * np.maximum(np.maximum(np.abs(first), np.abs(second)), 2.0**-112)
    assert (np.abs(found - 2 * (first + second)) <= 2 * 8 * unit).all()


@pytest.mark.parametrize("operation", ["tanh_backward", "sigmoid_backward"])
def test_derivatives_of_results(isa, operation):
    grad, x = values(997), torch.rand(997, generator=torch.Generator().manual_seed(1)) - 0.25
    y = x.double()
    exact = grad.double() * (1 - y * y if operation == "tanh_backward" else (1 - y) * y)
    # The subtraction rounds once, relative to 1; the products once each.
    assert ((run(operation, grad, x) - exact).abs() <= 2.0**-24 * (grad.abs() + 3 * exact.abs())).all()


@pytest.mark.parametrize("operation", [*FUNCTIONS, "silu_backward", "gelu_backward", "gelu_tanh_backward"])
def test_functions_of_special_values(isa, operation):
    x = torch.tensor(SPECIAL).repeat(5)
    inputs = [x] if programs.OPERATIONS[operation] == 1 else [torch.ones_like(x), x]
    found, expected = run(operation, *inputs), compute(operation, inputs)
    tiny = expected.abs() < 1e-35
    # Infinity times zero is what torch makes of derivatives there.
    expected = torch.where(torch.isinf(x) & expected.isnan() & (len(inputs) == 2), (x > 0).double(), expected)
    assert torch.equal(found.isnan(), expected.isnan())
    close = torch.isclose(found.double(), expected, rtol=1e-6, atol=0) | (tiny & (found.abs() < 1e-34))
    assert (close | expected.isnan()).all()


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, 2).contiguous().transpose(0, 2),
    "every second": lambda x: torch.stack([x, x], 3)[..., 0],
    "part of more": lambda x: torch.nn.functional.pad(x, (3, 2, 1, 1))[:, 1:-1, 3:-2],
    "one row": lambda x: x[:1, :1].expand_as(x),
    "one column": lambda x: x[..., :1].expand_as(x),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (2, 65, 33), (1, 2, 1300), (70, 3, 2), (5, 1, 4100)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_tensors(layout, shape, dtype):
    a, b = LAYOUTS[layout](values(*shape, dtype=DTYPES[dtype])), values(*shape, seed=1, dtype=DTYPES[dtype])
    assert torch.equal(run("add", a, b, dtype=dtype), a + b)
    assert torch.equal(run("mul", b, a, dtype=dtype), b * a)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int32, torch.int64, torch.float64])
def test_copies_keep_every_bit(isa, dtype):
    x = torch.randint(-(2**62), 2**62, (3, 5, 70)).view(torch.uint8).view(torch.bool if dtype is torch.bool else dtype)
    x = (x.view(torch.uint8) & 1).view(torch.bool) if dtype is torch.bool else x
    turned = x.transpose(0, 1)
    rows, columns = turned.shape[1:]
    places = "in0[d0, d1, d2]"
    program = parse(
        [f"loop [{turned.shape[0]}, {rows}, {columns}]", f"v0 = load {places}", f"store v0 out[d0 * {rows} + d1, d2]"]
    )
    found = cpu.elementwise(program, [turned], (turned.shape[0] * rows, columns), dtype)
    assert torch.equal(found.view(torch.uint8), turned.reshape(-1, columns).view(torch.uint8))


def test_rotary_embeddings_in_two_loops(isa):
    x, table = values(2, 9, 4, 64).transpose(1, 2), values(2, 9, 32, seed=1)
    lines = []
    for half, operation in ((0, "sub"), (32, "add")):
        lines += [
            "loop [2, 4, s0, 32]",
            f"v0 = load in0[d0, d1, d2, d3 + {half}]",
            "v1 = load in1[0, d2, d3]",
            "v2 = mul v0 v1",
            f"v3 = load in0[d0, d1, d2, d3 + {32 - half}]",
            "v4 = load in1[1, d2, d3]",
            "v5 = mul v3 v4",
            f"v6 = {operation} v2 v5",
            f"store v6 out[d0, d1, d2, d3 + {half}]",
        ]
    low, high = x[..., :32], x[..., 32:]
    expected = torch.cat([low * table[0] - high * table[1], high * table[0] + low * table[1]], 3)
    program = parse(line.replace(" + 0]", "]") for line in lines)
    assert torch.equal(cpu.elementwise(program, [x, table], x.shape, torch.float32, sizes=[9]), expected)
    assert torch.equal(reference.elementwise(program, [x, table], x.shape, torch.float32, sizes=[9]), expected)


EXACT = sorted(ROUNDED_ONCE - {"where", "logical_and", "logical_or", "logical_not", *COMPARISONS})


def random_program(random_numbers, shape):
    """Steps in random order on two tensors, the second of them broadcast, and what they are in torch."""
    dtype = random_numbers.choice(list(DTYPES))
    inputs = [values(*shape, dtype=DTYPES[dtype]), values(shape[-1], seed=1, dtype=DTYPES[dtype])]
    places = [Index(((dim, 1),)) for dim in range(len(shape))]
    steps = [Load(0, Access("in0", tuple(places))), Load(1, Access("in1", (places[-1],)))]
    made = [inputs[0], inputs[1].expand(shape)]
    for value in range(2, random_numbers.randint(3, 14)):
        operation = random_numbers.choice(EXACT)
        read = [random_numbers.randrange(value) for _ in range(programs.OPERATIONS[operation])]
        if len(read) == 2:
            read[random_numbers.randrange(2)] = random_numbers.choice([*read, 0.0, -0.0, 1.0, 2.0, -0.375, math.inf])
        steps.append(Compute(value, operation, tuple(read), dtype))
        arguments = [made[one] if isinstance(one, int) else torch.full(shape, one).to(made[0]) for one in read]
        made.append(arguments[0] if operation == "cast" else TORCH[operation](*arguments))
    steps.append(Store(len(made) - 1, Access("out", tuple(places))))
    return Program((Loop(shape, tuple(steps)),)), inputs, made[-1]


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_have_the_bits_of_torch(seed):
    random_numbers = random.Random(seed)
    shape = tuple(random_numbers.choice([1, 2, 3, 17, 40, 300]) for _ in range(random_numbers.randint(1, 3)))
    program, inputs, expected = random_program(random_numbers, shape)
    found = cpu.elementwise(program, inputs, shape, expected.dtype)
    assert torch.equal(bits(found + 0), bits(expected + 0))
    assert torch.equal(bits(reference.elementwise(program, inputs, shape, expected.dtype) + 0), bits(found + 0))
    assert parse(program.lines()) == program


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(threads):
    a, b = values(301, 517), values(301, 517, seed=1)
    torch.set_num_threads(threads)
    assert torch.equal(run("mul", a, b), a * b)


def test_nothing_to_do():
    assert run("add", values(0, 4), values(0, 4)).shape == (0, 4)


def test_a_negated_view_is_read_as_it_is_seen():
    x = torch.complex(values(8), values(8, seed=1))
    assert torch.equal(run("add", x.conj().imag, x.real), x.conj().imag + x.real)


def test_python_and_kernels_agree_on_names_and_limits():
    assert set(_cpu.operation_names()) == {"load", "store", *programs.OPERATIONS}
    assert tuple(_cpu.element_type_names()) == programs.COPIED_TYPES
    limits = programs.MOST_DIMS, programs.MOST_ACCESSES, programs.MOST_REGISTERS, programs.MOST_TENSORS
    assert tuple(_cpu.elementwise_limits()) == limits


REFUSED = {
    "elementwise_c1": [
        ["v0 = load in0[d0]"],
        ["loop [4, x]"],
        ["loop [4]", "v0 = twist in0"],
        ["loop [4]", "v0 = add v1"],
        ["loop [4]", "v0 = load in0[d0 - 1]"],
        ["loop [4]", "add v0 v1"],
        ["loop [4]", "v0 = load in0"],
    ],
    "elementwise_c2": [
        ["loop [5]", "v0 = load in0[d0]", "store v0 out[d0]"],
        ["loop [4]", "v0 = load in0[d0 + 1]", "store v0 out[d0]"],
        ["loop [4]", "v0 = load in0[d0, d0]", "store v0 out[d0]"],
        ["loop [4]", "v0 = load in1[d0]", "store v0 out[d0]"],
        ["loop [4]", "v0 = load out[d0]", "store v0 out[d0]"],
        ["loop [4]", "v1 = neg v0", "store v1 out[d0]"],
        ["loop [4]", "v0 = load in0[d0]", "v1:bf16 = neg v0", "store v1 out[d0]"],
        ["loop [4]", "v0 = load in0[d0]", "v1:f64 = neg v0", "store v1 out[d0]"],
        ["loop [s0]", "v0 = load in0[d0]", "store v0 out[d0]"],
        ["loop [4]", "store 0.1 out[d0]"],
        ["loop [4, 1, 1, 1, 1, 1, 1, 1, 1]", "v0 = load in0[d0]", "store v0 out[d0]"],
        ["loop [4]", *(f"v{i} = load in0[d0]" for i in range(16)), "store v15 out[d0]"],
    ],
}


@pytest.mark.parametrize(
    ("name", "lines"), [(name, lines) for name, all_ in REFUSED.items() for lines in all_], ids=str
)
def test_programs_that_are_wrong_are_refused(name, lines):
    with pytest.raises(ConstraintError) as error:
        cpu.elementwise(parse(lines), [values(4)], (4,), torch.float32)
    assert error.value.constraint == name
