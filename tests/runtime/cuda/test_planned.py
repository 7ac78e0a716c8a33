"""Planned calls whose sizes are known only when they run: one plan for every number of rows, none included."""

import pytest
import torch
from kernel_cases import nvfp4, operands, pair_name, same_bytes, scheme_pairs
from simulation import Simulator

from steelyard import reference
from steelyard.codegen.launches.copies import dequantize_into, part_memory
from steelyard.codegen.launches.plan import OPERAND, RESULT, Buffer, Memory, PlanBuilder
from steelyard.codegen.launches.quantize import quantize_into
from steelyard.codegen.launches.sources import fill_from
from steelyard.codegen.launches.values import Matrix, StoredCopy
from steelyard.codegen.sizes import Extent
from steelyard.errors import ConstraintError
from steelyard.formats.schemes import Scheme
from steelyard.runtime.cuda.launches import LARGEST, Launch
from steelyard.runtime.cuda.planned import PlannedCall, contiguous

ROWS, COLUMNS = Extent(0, 0), 48
MX = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU"), Scheme("f8E4M3FN", "32x1", "f8E8M0FNU")
DELAYED = (Scheme("f8E4M3FN", "tensor", "f32", source="delayed"),) * 2
PAIRS = (scheme_pairs()[0], DELAYED, MX, (nvfp4(), nvfp4(rht=True)), (nvfp4(second_level="row"),) * 2)


def plan_of(pair, *, given_scale: bool):
    """A quantize of a matrix whose rows are known only at run time."""
    copies, memory = [], []
    for columnwise, scheme in enumerate(pair):
        parts = part_memory(scheme, (ROWS, COLUMNS), bool(columnwise))
        buffers = {name: Buffer(RESULT, len(memory) + index) for index, name in enumerate(parts)}
        memory += parts.values()
        copies.append(StoredCopy(scheme, bool(columnwise), (ROWS, COLUMNS), **buffers))
    plan = PlanBuilder()
    filling = fill_from([Matrix.contiguous(Buffer(OPERAND, 0), "f32", ROWS, COLUMNS)])
    quantize_into(plan, filling, copies, scale=Buffer(OPERAND, 1) if given_scale else None)
    return plan.finish(memory)


@pytest.mark.parametrize("pair", PAIRS, ids=pair_name)
def test_one_plan_quantizes_any_number_of_rows(pair):
    scale = operands(*pair)["scale"]
    given = [] if scale is None else [scale]
    call = PlannedCall(
        "quantize", plan_of(pair, given_scale=bool(given)), 1 + len(given), lambda _: Simulator("sm_90a")
    )
    for rows in (0, 1, 16, 70):
        x = torch.randn(rows, COLUMNS)
        results = call.allocate(x, *given)
        call.run(x, *given, *results)
        copies = reference.quantize(x, *pair, scale=scale)
        parts = [getattr(copy, name) for copy in copies for name in ("codes", "scales", "amax")]
        expected = [part for part in parts if part is not None]
        assert len(results) == len(expected)
        assert all(map(same_bytes, results, expected)), rows


def test_sizes_are_evaluated_and_nothing_else_is_decided():
    """The kernels, and the order of their launches, do not depend on whether vectors divide the sizes."""
    simulator = Simulator("sm_100a")
    call = PlannedCall("quantize", plan_of(scheme_pairs()[0], given_scale=False), 1, lambda _: simulator)
    launched = []
    for rows in (16, 21):
        x = torch.randn(rows, COLUMNS)
        call.run(x, *call.allocate(x))
        launched.append([launch.kernel for launch, _ in simulator.launches])
        simulator.launches.clear()
    assert launched[0] == launched[1]
    assert "if n" in call.text  # the launches that only a matrix without rows makes


def test_rows_that_do_not_fit_a_kernel_are_refused():
    plan = PlanBuilder()
    copy = StoredCopy(MX[0], False, (ROWS, COLUMNS), Buffer(OPERAND, 0), Buffer(OPERAND, 1))
    dequantize_into(plan, copy, Matrix.contiguous(Buffer(RESULT, 0), "f32", ROWS, COLUMNS))
    (step,) = plan.finish([Memory((ROWS, COLUMNS))]).steps
    part = torch.zeros(1, dtype=torch.uint8)
    launch = Launch(step.kernel, (part, part, part, LARGEST + 1, COLUMNS), 1)
    with pytest.raises(ConstraintError, match=f"rows of dequantize_.* must be at most {LARGEST}, got {LARGEST + 1}"):
        launch.words()


def test_tensors_that_lie_in_order_are_not_copied():
    x = torch.randn(8, 16)
    assert contiguous(x) is x
    for view in (x.t(), x.view(-1)[1:9], torch._neg_view(x)):
        found = contiguous(view)
        assert found.is_contiguous()
        assert found.data_ptr() % 16 == 0
        assert not found.is_neg()
        assert torch.equal(found, view)
