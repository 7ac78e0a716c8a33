"""What stands between the GEMMs of a model, as programs call it, beside the ops of torch that it is made of."""

from collections.abc import Callable, Sequence

import torch
from contest import Contender, Maker, compete, contest_table
from report import Table
from torch.nn import functional

from steelyard.formats.elementwise import parse
from steelyard.runtime import _cpu
from steelyard.runtime.cpu import producers
from steelyard.runtime.cpu.elementwise import bind_program, row_major
from steelyard.runtime.cpu.tensor_reader import TENSORS

SHAPES = ((1, 1024), (512, 768), (512, 3072))
"""One token, and the rows of a GPT-2: of its residual stream and of its MLP."""
NORMS = ((512, 512), (2048, 768))
TABLES = ((1024, 512, 512), (50257, 768, 2048))
"""Rows of a table, their length, and tokens: of a small vocabulary and of a GPT-2."""
HEADS, SIZE = 16, 64
TOKENS = (1, 512)
AIM = 1.0
"""Nothing is slower than torch."""

Function = Callable[..., torch.Tensor]


def measure(quick: bool = False) -> Table:
    """One row per work and contender, on one thread."""
    title = "Elementwise ops between GEMMs, on one thread"
    table = contest_table(title, "torch", held="inputs")
    for shape in SHAPES[:2] if quick else SHAPES:
        for name, (dtype, lines, run) in _works(shape).items():
            inputs = [torch.randn(shape).to(dtype) for _ in range(2)]
            _compete(table, f"{name}, {shape[0]}x{shape[1]}", _makers(lines, inputs, shape, run), quick)
    for tokens in TOKENS:
        shape = (1, HEADS, tokens, SIZE)
        rows = torch.randn(tokens, HEADS * SIZE)
        table_of_angles = torch.randn(2, tokens, SIZE // 2)
        makers = _makers(_rotary_lines(tokens), [rows, table_of_angles], shape, _rotary)
        _compete(table, f"rotary embedding, {tokens} tokens, {HEADS} heads of {SIZE}", makers, quick)
    for rows, columns in NORMS[:1] if quick else NORMS:
        for name, makers in _norm_makers(rows, columns).items():
            _compete(table, f"{name}, {rows}x{columns}", makers, quick)
    for rows, columns, tokens in TABLES[:1] if quick else TABLES:
        makers = _table_makers(rows, columns, tokens)
        _compete(table, f"embedding backward, {tokens} of {rows}x{columns}", makers, quick)
    return table


def _compete(table: Table, work: str, makers: dict[str, Maker], quick: bool) -> None:
    calls, seconds = (20, 0.3) if quick else (200, 2.0)
    compete(table, work, 1, makers, calls=calls, seconds=seconds, aims={"steelyard": AIM})


def _works(shape: Sequence[int]) -> dict[str, tuple[torch.dtype, list[str], Function]]:
    """Name -> dtype, program and what torch does."""
    backward = torch.ops.aten.gelu_backward.default
    both = [f"loop [{shape[0]}, {shape[1]}]", "v0 = load in0[d0, d1]", "v1 = load in1[d0, d1]"]
    store = "store v{} out[d0, d1]".format
    return {
        "add": (torch.float32, [*both, "v2 = add v0 v1", store(2)], torch.add),
        "silu times": (
            torch.float32,
            [*both, "v2 = silu v0", "v3 = mul v2 v1", store(3)],
            lambda a, b: functional.silu(a) * b,
        ),
        "gelu tanh backward": (
            torch.float32,
            [*both, "v2 = gelu_tanh_backward v0 v1", store(2)],
            lambda grad, x: backward(grad, x, approximate="tanh"),
        ),
        "bf16 add and scale": (
            torch.bfloat16,
            [*both, "v2:bf16 = add v0 v1", "v3:bf16 = mul v2 0.5", store(3)],
            lambda a, b: (a + b) * 0.5,
        ),
    }


def _rotary_lines(tokens: int) -> list[str]:
    lines: list[str] = []
    for half, operation in ((0, "sub"), (SIZE // 2, "add")):
        own, other = (f"in0[d2, d1 * {SIZE} + d3 + {begin}]" for begin in (half, SIZE // 2 - half))
        lines += [
            f"loop [1, {HEADS}, {tokens}, {SIZE // 2}]",
            *(f"v0 = load {own}", "v1 = load in1[0, d2, d3]", "v2 = mul v0 v1"),
            *(f"v3 = load {other}", "v4 = load in1[1, d2, d3]", "v5 = mul v3 v4"),
            f"v6 = {operation} v2 v5",
            f"store v6 out[d0, d1, d2, d3 + {half}]",
        ]
    return lines


def _rotary(rows: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    heads = rows.view(1, -1, HEADS, SIZE).transpose(1, 2)
    low, high = heads.split(SIZE // 2, -1)
    return torch.cat([low * angles[0] - high * angles[1], high * angles[0] + low * angles[1]], -1)


def _makers(lines: list[str], inputs: list[torch.Tensor], shape: Sequence[int], run: Function) -> dict[str, Maker]:
    held = sum(x.numel() * x.element_size() for x in inputs)
    names = {torch.float32: "f32", torch.bfloat16: "bf16"}

    def steelyard() -> Contender:
        # As compiled programs call it: the result has its place before.
        out = torch.empty(tuple(shape), dtype=inputs[0].dtype)
        tensors = {**{f"in{i}": x for i, x in enumerate(inputs)}, "out": out}
        dtypes = {name: names[x.dtype] for name, x in tensors.items()}
        strides = {name: row_major(x.shape) for name, x in tensors.items()}
        bound = bind_program(parse(lines), dtypes, strides, slice(len(inputs), len(inputs)))
        addresses = [x.data_ptr() for x in tensors.values()]

        def call() -> torch.Tensor:
            bound(*addresses)
            return out

        return Contender(call, held)

    return {"torch": lambda: Contender(lambda: run(*inputs), held), "steelyard": steelyard}


def _norm_makers(rows: int, columns: int) -> dict[str, dict[str, Maker]]:
    """A layer norm of training, and its gradients."""
    x, grad = torch.randn(rows, columns), torch.randn(rows, columns)
    weight, bias = torch.randn(columns), torch.randn(columns)
    made = list(torch.native_layer_norm(x, [columns], weight, bias, 1e-5))
    _, mean, rstd = made
    gradients = [torch.empty_like(like) for like in (x, weight, bias)]
    norm = _cpu.bound_layer_norm(TENSORS, producers.describe("layer_norm", 0, 1e-5, vectors=2), 3, 4, 5)
    backward = _cpu.bound_norm_backward(TENSORS, 0, 1, 2, 3, 4, 5, 6, 7)
    results = [torch.empty_like(one) for one in made]
    return {
        "layer norm": _bound_makers(
            lambda: torch.native_layer_norm(x, [columns], weight, bias, 1e-5)[0],
            lambda: norm(x, weight, bias, *results),
            results[0],
        ),
        "layer norm backward": _bound_makers(
            lambda: torch.ops.aten.native_layer_norm_backward(
                grad, x, [columns], mean, rstd, weight, bias, [True, True, True]
            )[0],
            lambda: backward(grad, x, mean, rstd, weight, *gradients),
            gradients[0],
        ),
    }


def _table_makers(rows: int, columns: int, tokens: int) -> dict[str, Maker]:
    """The gradient of an embedding."""
    grad, indices = torch.randn(tokens, columns), torch.randint(0, rows, (tokens,))
    add, out = _cpu.bound_add_rows(TENSORS, 0, 1, 2, -1), torch.empty(rows, columns)
    run = torch.ops.aten.embedding_dense_backward
    return _bound_makers(lambda: run(grad, indices, rows, -1, False), lambda: add(grad, indices, out), out)


def _bound_makers(run: Callable[[], torch.Tensor], bound: Callable[[], None], out: torch.Tensor) -> dict[str, Maker]:
    """Torch's op and a kernel as programs call it, which writes `out`."""

    def call() -> torch.Tensor:
        bound()
        return out

    return {"torch": lambda: Contender(run), "steelyard": lambda: Contender(call)}
