"""The calls of `grouped_calls`, planned for CUDA and launched on the PTX interpreter."""

import grouped_calls
import torch
from simulation import Simulator

from steelyard.codegen.launches.calls import plan_call
from steelyard.runtime.cuda.planned import PlannedCall

UNWRITTEN = 0xAA


def plan_calls(monkeypatch, target: str) -> Simulator:
    """Make calls in groups those of a target; what launches them."""
    launcher = Simulator(target)
    monkeypatch.setattr(grouped_calls, "run", lambda call, operands: _run(call, operands, launcher))
    return launcher


def _run(call, operands, launcher: Simulator) -> dict[str, torch.Tensor]:
    call.check()
    plan = plan_call(call)
    assert plan is not None
    made = PlannedCall("call", plan, len(operands), lambda _: launcher)
    results = made.allocate(*operands)
    for result in results:
        if result.dtype == torch.uint8:
            result.fill_(UNWRITTEN)
    made.run(*operands, *results)
    return {slot.name: value for slot, value in zip(call.results, results, strict=True)}
