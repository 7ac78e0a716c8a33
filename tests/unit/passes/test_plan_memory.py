"""Places in the arena of a random program: values that live at the same time never share a byte."""

from hypothesis import given
from hypothesis import strategies as st
from torch_mlir import ir

from steelyard.dialect import make_context
from steelyard.ir.attributes import ARENA, ELSEWHERE, OFFSETS
from steelyard.ir.functions import functions_of
from steelyard.passes import build_pass_manager, parse_pipeline

STEPS = st.lists(st.tuples(st.integers(1, 400), st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=25)


def tensor_type(rows: int) -> str:
    return f"!torch.vtensor<[{rows},7],f32>"


def make_program(steps: list[tuple[int, int, int]]) -> str:
    """A function of kernel calls, each of which reads two of the values before it; the last value is returned."""
    sizes, calls, kernels = [16], [], []
    for number, (rows, back1, back2) in enumerate(steps):
        operands = [max(number - back, 0) for back in (back1, back2)]
        signature = f"({', '.join(tensor_type(sizes[i]) for i in operands)}) -> {tensor_type(rows)}"
        attributes = 'scaled.config = {dim = 0}, scaled.destinations, scaled.device = "cpu", '
        attributes += 'scaled.kernel = "concatenate", scaled.operands = ["part0", "part1"], scaled.results = ["result"]'
        kernels.append(f"func.func private @step_{number}{signature} attributes {{{attributes}}}")
        calls.append(f"%v{number + 1} = call @step_{number}(%v{operands[0]}, %v{operands[1]}) : {signature}")
        sizes.append(rows)
    last = tensor_type(sizes[-1])
    body = "\n".join(calls)
    head = f"func.func @forward(%v0: {tensor_type(16)}) -> {last}"
    return "\n".join(kernels) + f"\n{head} {{\n{body}\nreturn %v{len(steps)} : {last}\n}}"


@given(STEPS)
def test_live_values_share_no_memory(steps):
    context = make_context()
    module = ir.Module.parse(make_program(steps), context)
    build_pass_manager(parse_pipeline("scaled-plan-memory"), context).run(module.operation)
    (function,) = functions_of(module.operation)
    ops = [op.operation for op in function.regions[0].blocks[0].operations]
    position = {op: i for i, op in enumerate(ops)}
    intervals = []
    for op in ops:
        if OFFSETS not in op.attributes:
            continue
        (offset,) = ir.DenseI64ArrayAttr(op.attributes[OFFSETS])
        readers = [use.owner.operation for use in op.result.uses]
        last = max([position[reader] for reader in readers if reader.name != "scaled.free"], default=position[op])
        returned = any(reader.name == "func.return" for reader in readers)
        assert (offset == ELSEWHERE) == (returned or all(reader.name == "scaled.free" for reader in readers))
        if offset != ELSEWHERE:
            rows = int(str(op.result.type).split("[")[1].split(",")[0])
            intervals.append((position[op], last, offset, offset + rows * 7 * 4))
    size = ir.IntegerAttr(function.attributes[ARENA]).value if ARENA in function.attributes else 0
    for i, (begin, end, low, high) in enumerate(intervals):
        assert 0 <= low <= high <= size
        assert low % 64 == 0
        for other_begin, other_end, other_low, other_high in intervals[:i]:
            alive_together = begin <= other_end and other_begin <= end
            assert not alive_together or high <= other_low or other_high <= low


@given(STEPS)
def test_memory_is_used_again(steps):
    """The arena is never larger than all places together, and a chain needs two places."""
    chain = [(rows, 0, 0) for rows, _, _ in steps]
    context = make_context()
    module = ir.Module.parse(make_program(chain), context)
    build_pass_manager(parse_pipeline("scaled-plan-memory"), context).run(module.operation)
    (function,) = functions_of(module.operation)
    size = ir.IntegerAttr(function.attributes[ARENA]).value if ARENA in function.attributes else 0
    rounded = [-(-rows * 28 // 64) * 64 for rows, _, _ in chain]
    # Each value is live with its neighbours only; fragmentation costs at most what one more value would.
    assert size <= 3 * max(rounded, default=0)
