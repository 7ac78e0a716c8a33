"""Scales that are kept or computed on their own, planned."""

from steelyard.codegen.launches.plan import Argument, Buffer, PlanBuilder
from steelyard.codegen.sizes import Size
from steelyard.codegen.state import ComputeScaleKernel, UpdateScaleKernel
from steelyard.errors import ConstraintError
from steelyard.formats.schemes import Scheme


def compute_scale_into(plan: PlanBuilder, scheme: Scheme, amax: Buffer, scale: Buffer) -> None:
    """The scale that follows from a tensor's amax."""
    plan.launch_blocks(ComputeScaleKernel(scheme), {"amax": amax, "scale": scale}, 1)


def update_scale_into(
    plan: PlanBuilder,
    scheme: Scheme,
    state: tuple[Buffer, Buffer],
    amax: Buffer,
    outs: tuple[Buffer, Buffer],
    length: Size,
    *,
    margin: int = 0,
    algorithm: str = "max",
    reduce: bool = False,
) -> None:
    """The scale and history of the next step, with `amax` the newest; nothing changes where it is 0.

    `reduce`: the amax is the largest over all ranks; the algorithm `custom` is the user's own.
    """
    if algorithm not in ("max", "most_recent", "custom"):
        raise ConstraintError(
            "update_scale_algorithm", f"algorithm must be max or most_recent on CUDA, got {algorithm!r}"
        )
    if reduce:
        largest = plan.temporary()
        plan.call("largest_of_ranks", amax, largest)
        amax = largest
    kernel = UpdateScaleKernel(scheme, margin, algorithm != "max")
    if algorithm != "custom":
        plan.launch_blocks(kernel, _arguments(state, amax, outs, length), 1)
        return
    # The scale follows from what the user's algorithm picks, the history from the amax itself.
    picked, other_history, other_scale = plan.temporary(), plan.temporary(length), plan.temporary()
    plan.call("pick_amax", state[1], amax, picked)
    plan.launch_blocks(kernel, _arguments(state, picked, (outs[0], other_history), length), 1)
    plan.launch_blocks(kernel, _arguments(state, amax, (other_scale, outs[1]), length), 1)


def _arguments(
    state: tuple[Buffer, Buffer], amax: Buffer, outs: tuple[Buffer, Buffer], length: Size
) -> dict[str, Argument]:
    (scale, history), (new_scale, new_history) = state, outs
    named: dict[str, Argument] = {"scale": scale, "history": history, "amax": amax, "length": length}
    return named | {"new_scale": new_scale, "new_history": new_history}
