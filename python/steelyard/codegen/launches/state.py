"""Scales that are kept or computed on their own, planned."""

from steelyard.codegen.launches.plan import Argument, Buffer, PlanBuilder
from steelyard.codegen.sizes import Size, product_of
from steelyard.codegen.state import ComputeScaleKernel, InverseScaleKernel, UpdateScaleKernel
from steelyard.errors import ConstraintError
from steelyard.formats.schemes import Scheme


def compute_scale_into(plan: PlanBuilder, scheme: Scheme, amax: Buffer, scale: Buffer) -> None:
    """The scale that follows from a tensor's amax."""
    plan.launch_blocks(ComputeScaleKernel(scheme), {"amax": amax, "scale": scale}, 1)


def invert_scales(plan: PlanBuilder, scales: Buffer, out: Buffer, count: Size, *, is_wanted: Size = 1) -> None:
    """The scales that decode, of a number of those that encode; nothing where `is_wanted` is 0."""
    kernel = InverseScaleKernel()
    named: dict[str, Argument] = {"scale": scales, "inverse": out, "count": count}
    plan.launch_blocks(kernel, named, is_wanted * kernel.blocks(count, 1))


def update_scale_into(
    plan: PlanBuilder,
    scheme: Scheme,
    state: tuple[Buffer, Buffer],
    amax: Buffer,
    outs: tuple[Buffer, Buffer],
    shape: tuple[Size, ...],
    *,
    margin: int = 0,
    algorithm: str = "max",
    reduce: bool = False,
) -> None:
    """The scale and history of the next step, with `amax` the newest; nothing changes where it is 0.

    `shape` is that of the history: a length, and the number of experts where each has a scale and a column of its own.
    `reduce`: the amax is the largest over all ranks; the algorithm `custom` is the user's own.
    """
    if algorithm not in ("max", "most_recent", "custom"):
        raise ConstraintError(
            "update_scale_algorithm", f"algorithm must be max or most_recent on CUDA, got {algorithm!r}"
        )
    length, *experts = shape
    if reduce:
        largest = plan.temporary(*experts)
        plan.call("largest_of_ranks", amax, largest)
        amax = largest
    kernel = UpdateScaleKernel(scheme, margin, algorithm != "max")
    count = product_of(tuple(experts))
    if algorithm != "custom":
        plan.launch(kernel, _arguments(state, amax, outs, length, count), length, count)
        return
    # The scale follows from what the user's algorithm picks, the history from the amax itself.
    picked, other_history, other_scale = (plan.temporary(*sizes) for sizes in (experts, shape, experts))
    plan.call("pick_amax", state[1], amax, picked)
    plan.launch(kernel, _arguments(state, picked, (outs[0], other_history), length, count), length, count)
    plan.launch(kernel, _arguments(state, amax, (other_scale, outs[1]), length, count), length, count)


def _arguments(
    state: tuple[Buffer, Buffer], amax: Buffer, outs: tuple[Buffer, Buffer], length: Size, count: Size
) -> dict[str, Argument]:
    (scale, history), (new_scale, new_history) = state, outs
    named: dict[str, Argument] = {"scale": scale, "history": history, "amax": amax, "length": length, "count": count}
    return named | {"new_scale": new_scale, "new_history": new_history}
