"""Elementwise programs: loops over elements, whose steps are lines of text.

    loop [1, 4, 1, 32]
    v0 = load in0[0, d1 * 64 + d3]
    v1 = load in1[1, d3]
    v2 = mul v0 v1
    v3:bf16 = cast v2
    store v3 out[d0, d1, d2, d3 + 32]

A loop is over a box of sizes; `s0` is the first size that is known only at run time. Elements of tensors are found by
sums of the loop's dims times integers. Values are float32: one of bf16 or f16 is rounded to it, one of i1 is 0 or 1.
Steps read values of the same loop, and numbers.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from steelyard.errors import ConstraintError, require

OPERATIONS: dict[str, int] = {
    **dict.fromkeys(("cast", "neg", "abs", "sqrt", "rsqrt", "reciprocal", "exp", "tanh", "erf", "sigmoid"), 1),
    **dict.fromkeys(("cos", "sin", "relu", "silu", "gelu", "gelu_tanh", "logical_not"), 1),
    **dict.fromkeys(("add", "sub", "mul", "div", "maximum", "minimum"), 2),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or"), 2),
    **dict.fromkeys(("tanh_backward", "sigmoid_backward", "silu_backward"), 2),
    **dict.fromkeys(("gelu_backward", "gelu_tanh_backward"), 2),
    "where": 3,
}
"""What steps compute, and how many values each takes. Those of a backward take the gradient first."""
VALUE_TYPES = ("f32", "bf16", "f16", "i1")
"""What values are, and what is stored."""
LOADED_TYPES = (*VALUE_TYPES, "ui8", "si8", "si16", "si32", "si64")
COPIED_TYPES = (*LOADED_TYPES, "f64")
"""What a loop may move that has one load and one store."""
MOST_DIMS, MOST_ACCESSES, MOST_REGISTERS, MOST_TENSORS = 8, 16, 24, 32
"""What kernels have room for: accesses and registers of one loop, numbers among the latter, and tensors of a call."""

OUT = "out"
"""The name of the tensor that is stored to; those that are loaded are `in0`, `in1` and so on."""
SYNTAX, MEANING = "elementwise_c1", "elementwise_c2"

Size = int | str
Operand = int | float
"""The number of a value, as an int; or a number itself, as a float."""


@dataclass(frozen=True)
class Index:
    """The index of one dim of a tensor: a sum of a loop's dims, each times an integer, and an offset."""

    terms: tuple[tuple[int, int], ...] = ()
    """(dim of the loop, coefficient), in the order of the dims."""
    offset: int = 0

    def __str__(self) -> str:
        words = [f"d{dim}" if factor == 1 else f"d{dim} * {factor}" for dim, factor in self.terms]
        if self.offset or not words:
            words.append(str(self.offset))
        return " + ".join(words)

    def largest(self, sizes: Sequence[Size]) -> int | None:
        """The largest value over a loop that is not empty; None where a size is not known."""
        found = self.offset
        for dim, factor in self.terms:
            size = sizes[dim]
            if isinstance(size, str):
                return None
            found += (size - 1) * factor
        return found


@dataclass(frozen=True)
class Access:
    """The element of a tensor that a load or a store is of."""

    tensor: str
    indices: tuple[Index, ...]

    def __str__(self) -> str:
        return f"{self.tensor}[{', '.join(map(str, self.indices))}]"


@dataclass(frozen=True)
class Load:
    value: int
    access: Access

    def __str__(self) -> str:
        return f"v{self.value} = load {self.access}"


@dataclass(frozen=True)
class Compute:
    value: int
    operation: str
    operands: tuple[Operand, ...]
    dtype: str = "f32"

    def __str__(self) -> str:
        dtype = "" if self.dtype == "f32" else f":{self.dtype}"
        words = [f"v{one}" if isinstance(one, int) else repr(one) for one in self.operands]
        return f"v{self.value}{dtype} = {self.operation} {' '.join(words)}"


@dataclass(frozen=True)
class Store:
    value: Operand
    access: Access

    def __str__(self) -> str:
        value = f"v{self.value}" if isinstance(self.value, int) else repr(self.value)
        return f"store {value} {self.access}"


Step = Load | Compute | Store


@dataclass(frozen=True)
class Loop:
    """A box of elements, and what is done with each."""

    sizes: tuple[Size, ...]
    steps: tuple[Step, ...]

    def lines(self) -> Iterator[str]:
        """Its text."""
        yield f"loop [{', '.join(map(str, self.sizes))}]"
        yield from map(str, self.steps)

    @property
    def accesses(self) -> list[Access]:
        """Its loads and stores, in their order."""
        return [step.access for step in self.steps if not isinstance(step, Compute)]

    @property
    def numbers(self) -> list[float]:
        """The numbers that its steps read, each once."""
        # By their text: 0.0 and -0.0 are equal, and NaN is not equal to itself.
        return list({repr(one): one for step in self.steps for one in read_by(step) if isinstance(one, float)}.values())

    def registers(self) -> tuple[dict[int, int], int]:
        """The register of each value, and how many there are. Numbers are in the first; others serve again."""
        last = {one: index for index, step in enumerate(self.steps) for one in values_read_by(step)}
        found: dict[int, int] = {}
        free: list[int] = []
        count = len(self.numbers)
        for index, step in enumerate(self.steps):
            free += [found[one] for one in dict.fromkeys(values_read_by(step)) if last[one] == index and one in found]
            if isinstance(step, Store):
                continue
            if free:
                found[step.value] = free.pop()
            else:
                found[step.value], count = count, count + 1
            if step.value not in last:
                free.append(found[step.value])
        return found, count


@dataclass(frozen=True)
class Program:
    """What one call of the kernel does."""

    loops: tuple[Loop, ...]

    def lines(self) -> tuple[str, ...]:
        """Its text."""
        return tuple(line for loop in self.loops for line in loop.lines())

    def check(self, shapes: Mapping[str, Sequence[int | None]], dtypes: Mapping[str, str], sizes: int) -> None:
        """Raise `ConstraintError` unless it can run on tensors of these shapes and dtypes, with so many sizes."""
        require(len(shapes) <= MOST_TENSORS, MEANING, f"a program has at most {MOST_TENSORS} tensors")
        for loop in self.loops:
            _check_loop(loop, shapes, dtypes, sizes)


def read_by(step: Step) -> tuple[Operand, ...]:
    """The values and numbers that a step reads."""
    match step:
        case Load():
            return ()
        case Store(value):
            return (value,)
        case Compute(operands=operands):
            return operands


def values_read_by(step: Step) -> list[int]:
    """The values that a step reads."""
    return [one for one in read_by(step) if isinstance(one, int)]


_LOOP = re.compile(r"loop \[(.*)\]")
_STEP = re.compile(r"(?:v(?P<value>\d+)(?::(?P<dtype>\w+))? = )?(?P<operation>\w+) (?P<rest>.*)")
_ACCESS = re.compile(r"(\w+)\[(.*)\]")
_TERM = re.compile(r"d(\d+)(?: \* (-?\d+))?")


def parse(lines: Iterable[str]) -> Program:
    """The program that lines spell; raises `ConstraintError`."""
    loops: list[tuple[tuple[Size, ...], list[Step]]] = []
    for line in lines:
        found = _LOOP.fullmatch(line)
        if found is not None:
            loops.append((_sizes(found[1], line), []))
        elif not loops:
            _refuse(line, "the first line of a program must be that of a loop")
        else:
            loops[-1][1].append(_step(line))
    return Program(tuple(Loop(sizes, tuple(steps)) for sizes, steps in loops))


def _refuse(line: str, message: str) -> NoReturn:
    raise ConstraintError(SYNTAX, f"{message}, got '{line}'")


def _sizes(text: str, line: str) -> tuple[Size, ...]:
    words = text.split(", ") if text else []
    if not all(re.fullmatch(r"s?\d+", word) for word in words):
        _refuse(line, "the sizes of a loop must be numbers, or s0 for the first that is known at run time")
    return tuple(word if word.startswith("s") else int(word) for word in words)


def _step(line: str) -> Step:
    found = _STEP.fullmatch(line)
    if found is None:
        _refuse(line, "a step must be spelled as in 'v2 = add v0 v1', 'v0 = load in0[d0]' or 'store v2 out[d0]'")
    value, operation, rest = found["value"], found["operation"], found["rest"]
    if operation == "store" and value is None:
        stored, _, access = rest.partition(" ")
        return Store(_operand(stored, line), _access(access, line))
    if value is None:
        _refuse(line, "a step that is no store must name its value")
    if operation == "load":
        return Load(int(value), _access(rest, line))
    operands = tuple(_operand(word, line) for word in rest.split(" "))
    if OPERATIONS.get(operation) != len(operands):
        _refuse(line, f"a step must be one of {', '.join(OPERATIONS)}, with as many values as it takes")
    return Compute(int(value), operation, operands, found["dtype"] or "f32")


def _operand(word: str, line: str) -> Operand:
    if re.fullmatch(r"v\d+", word):
        return int(word[1:])
    try:
        return float(word)
    except ValueError:
        _refuse(line, "what a step reads must be a value, as in v0, or a number")


def _access(text: str, line: str) -> Access:
    found = _ACCESS.fullmatch(text)
    if found is None:
        _refuse(line, "an element must be spelled as in 'in0[d0, d1 * 2 + 1]'")
    indices = found[2].split(", ") if found[2] else []
    return Access(found[1], tuple(_index(index, line) for index in indices))


def _index(text: str, line: str) -> Index:
    terms: list[tuple[int, int]] = []
    offset = 0
    for word in text.split(" + "):
        term = _TERM.fullmatch(word)
        if term is not None:
            terms.append((int(term[1]), int(term[2] or 1)))
        elif re.fullmatch(r"\d+", word):
            offset += int(word)
        else:
            _refuse(line, "an index must be a sum as in 'd0 * 2 + d1 + 3'")
    return Index(tuple(terms), offset)


def _check_loop(loop: Loop, shapes: Mapping[str, Sequence[int | None]], dtypes: Mapping[str, str], sizes: int) -> None:
    accesses = loop.accesses
    known = [f"s{i}" for i in range(sizes)]
    fits = len(loop.sizes) <= MOST_DIMS and all(isinstance(size, int) or size in known for size in loop.sizes)
    require(
        fits, MEANING, f"a loop has at most {MOST_DIMS} dims, of known sizes or those of the call, got {loop.sizes}"
    )
    fits = len(accesses) <= MOST_ACCESSES and loop.registers()[1] <= MOST_REGISTERS
    require(fits, MEANING, f"a loop has at most {MOST_ACCESSES} loads and stores and {MOST_REGISTERS} registers")
    types: dict[int, str] = {}
    for step in loop.steps:
        read = [one for one in values_read_by(step) if one not in types]
        require(not read, MEANING, f"a step must read values of its loop, made before it, got '{step}'")
        if isinstance(step, Compute):
            require(step.dtype in VALUE_TYPES, MEANING, f"a value is one of {', '.join(VALUE_TYPES)}, got '{step}'")
            types[step.value] = step.dtype
            continue
        _check_access(step, loop, shapes)
        dtype = dtypes[step.access.tensor]
        if isinstance(step, Load):
            allowed = COPIED_TYPES if len(loop.steps) == 2 else LOADED_TYPES
            require(dtype in allowed, MEANING, f"what is loaded is one of {', '.join(allowed)}, got {dtype}: '{step}'")
            types[step.value] = dtype
        else:
            fits = isinstance(step.value, int) or step.value == 0.0
            require(fits, MEANING, f"a number that is stored must be 0, got '{step}'")
            stored = types[step.value] if isinstance(step.value, int) else dtype
            fits = stored == dtype and (dtype in VALUE_TYPES or len(loop.steps) == 2)
            require(fits, MEANING, f"a value of {stored} is stored as it is, got a tensor of {dtype}: '{step}'")


def _check_access(step: Load | Store, loop: Loop, shapes: Mapping[str, Sequence[int | None]]) -> None:
    tensor, indices = step.access.tensor, step.access.indices
    is_known = tensor in shapes and (tensor == OUT) == isinstance(step, Store)
    require(
        is_known, MEANING, f"loads are of in0, in1, ..., and stores of {OUT}, as far as the call has them: '{step}'"
    )
    shape = shapes[tensor]
    require(len(shape) == len(indices), MEANING, f"an element of {tensor} has {len(shape)} indices, got '{step}'")
    if 0 in loop.sizes:
        return
    for index, size in zip(indices, shape, strict=True):
        dims_fit = all(dim < len(loop.sizes) and factor > 0 for dim, factor in index.terms)
        require(dims_fit, MEANING, f"an index is of dims of the loop, times positive numbers, got '{step}'")
        largest = index.largest(loop.sizes)
        fits = largest is None or size is None or largest < size
        require(fits, MEANING, f"an element must be in a tensor of shape {list(shape)}, got '{step}'")
