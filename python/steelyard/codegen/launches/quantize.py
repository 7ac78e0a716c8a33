"""Amaxes, quantize and producers, planned."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from steelyard.codegen.amax import AmaxKernel
from steelyard.codegen.launches.groups import Groups, PartBytes
from steelyard.codegen.launches.plan import Argument, Buffer, PlanBuilder
from steelyard.codegen.launches.sources import Filling
from steelyard.codegen.launches.state import invert_scales
from steelyard.codegen.launches.values import StoredCopy
from steelyard.codegen.produce import ProduceKernel
from steelyard.codegen.quantize import QuantizeKernel
from steelyard.codegen.sizes import Size, is_zero
from steelyard.codegen.state import SCALE_BYTES, ComputeScaleKernel, EmptyRowScalesKernel


def find_amax(
    plan: PlanBuilder,
    filling: Filling,
    out: Buffer,
    *,
    columnwise: bool = False,
    rht: bool = False,
    per_line: bool = False,
) -> None:
    """The largest magnitude of a matrix, of each group, or of each of their lines; 0 where there is none."""
    plan.call("zero", out)
    kernel = AmaxKernel(filling.source, columnwise, rht, per_line)

    def amax_bytes(rows: Size) -> Size:
        return 4 if not per_line else filling.columns * 4 if columnwise else rows * 4

    filling.launch(plan, kernel, {"amax": out}, {"amax": amax_bytes})


def produce_into(plan: PlanBuilder, filling: Filling, out: Buffer) -> None:
    """What a producer makes, in memory."""
    plan.launch(ProduceKernel(filling.source), {**filling.named, "out": out}, filling.rows, filling.columns)


def quantize_into(
    plan: PlanBuilder,
    filling: Filling,
    copies: Sequence[StoredCopy],
    *,
    scale: Buffer | None = None,
    amaxes: Sequence[Buffer | None] | None = None,
    rng: Buffer | None = None,
) -> None:
    """Copies of a matrix by one kernel, after the amaxes that their codes wait for.

    `scale`: that of per-tensor copies, or what static ones decode by; `amaxes`: those that are known already, one for
    each copy; `rng`: seed and offset of stochastic rounding.
    """
    given = list(amaxes or [None] * len(copies))
    copies = [_with_amax(plan, copy, filling) for copy in copies]
    found: dict[tuple[bool, bool, bool], Buffer] = {}
    for copy, known in zip(copies, given, strict=True):
        _prepare_amax(plan, filling, copy, scale, known, found)
    if filling.groups is not None:
        _scale_empty_groups(plan, filling, filling.groups, copies, scale)
    _launch_quantize(plan, filling, copies, scale, rng)
    if filling.groups is None:
        _scale_nothing(plan, filling, copies, scale)
    for copy, known in zip(copies, given, strict=True):
        is_tensor = copy.scheme.family == "tensor"
        if is_tensor and scale is not None and known is not None and copy.amax is not None:
            plan.call("copy", known, copy.amax)


def _with_amax(plan: PlanBuilder, copy: StoredCopy, filling: Filling) -> StoredCopy:
    """A copy with memory for the amaxes of its lines, which a copy with a scale per row does not keep."""
    if copy.scheme.family != "row":
        return copy
    lines, groups = copy.stored_shape[0], filling.groups
    if groups is not None and (groups.is_stack or copy.columnwise):
        lines = lines * groups.count
    return replace(copy, amax=plan.temporary(lines))


def _prepare_amax(
    plan: PlanBuilder,
    filling: Filling,
    copy: StoredCopy,
    scale: Buffer | None,
    given: Buffer | None,
    found: dict[tuple[bool, bool, bool], Buffer],
) -> None:
    """Fill the amax that a copy's codes wait for; with a given scale the quantize itself records it."""
    if copy.amax is None:
        return
    scheme = copy.scheme
    if scheme.is_static and scheme.family == "nvfp4":
        assert scale is not None, "a static scheme has its scale"
        plan.call("copy", scale, copy.amax)  # the second level is kept as it was given
        return
    if given is not None and scheme.family != "row":
        plan.call("copy", given, copy.amax)
        return
    if scheme.family == "tensor" and scale is not None:
        plan.call("zero", copy.amax)
        return
    per_line = "row" in (scheme.block, scheme.second_level)
    columnwise = copy.columnwise and (per_line or scheme.rht)
    options = columnwise, scheme.rht, per_line
    if options in found:
        plan.call("copy", found[options], copy.amax)  # the other copy has the same one
        return
    find_amax(plan, filling, copy.amax, columnwise=columnwise, rht=scheme.rht, per_line=per_line)
    found[options] = copy.amax


def _launch_quantize(
    plan: PlanBuilder, filling: Filling, copies: Sequence[StoredCopy], scale: Buffer | None, rng: Buffer | None
) -> None:
    if not copies:
        return
    named: dict[str, Argument] = {}
    part_bytes: dict[str, PartBytes] = {}
    for copy in copies:
        usage = "col" if copy.columnwise else "row"
        parts = {"codes": copy.codes, "scales": copy.scales, "amax": copy.amax, "scale": scale, "rng": rng}
        named |= {f"{usage}_{name}": part for name, part in parts.items() if part is not None}
        part_bytes |= {f"{usage}_{name}": partial(copy.part_bytes, name) for name in ("codes", "scales", "amax")}
        part_bytes[f"{usage}_scale"] = lambda _: SCALE_BYTES
    in_groups = filling.groups is not None and not filling.groups.is_stack
    specs = tuple(copy.spec(given_scale=scale is not None, in_groups=in_groups) for copy in copies)
    filling.launch(plan, QuantizeKernel(filling.source, specs), named, part_bytes)


def _scale_nothing(plan: PlanBuilder, filling: Filling, copies: Sequence[StoredCopy], scale: Buffer | None) -> None:
    """A matrix with no elements, which no quantize is launched for, has scales of tensors and rows all the same."""
    blocks = is_zero(filling.elements)
    for copy in copies:
        if copy.scheme.family == "row":
            _scale_empty_rows(plan, copy, copy.stored_shape[0], blocks)
        if blocks == 0 or copy.scheme.family != "tensor" or copy.amax is None:
            continue
        if scale is not None and copy.scheme.is_static:
            plan.call("copy", scale, copy.scales)
            continue
        own = scale
        if own is None:
            own = plan.temporary()
            plan.launch_blocks(ComputeScaleKernel(copy.scheme), {"amax": copy.amax, "scale": own}, blocks)
        invert_scales(plan, own, copy.scales, 1, is_wanted=blocks)


def _scale_empty_groups(
    plan: PlanBuilder, filling: Filling, groups: Groups, copies: Sequence[StoredCopy], scale: Buffer | None
) -> None:
    """Groups without elements, which no block takes, have scales of tensors and of columns all the same; those of the
    others are overwritten."""
    for copy in copies:
        if copy.scheme.family == "row" and copy.columnwise:
            _scale_empty_rows(plan, copy, groups.count * filling.columns)
        if copy.scheme.family != "tensor":
            continue
        if scale is None:
            _scale_empty_rows(plan, copy, groups.count)
            continue
        if not copy.scheme.is_static:
            invert_scales(plan, scale, copy.scales, groups.count)
            continue
        plan.call("copy", scale, copy.scales)


def _scale_empty_rows(plan: PlanBuilder, copy: StoredCopy, lines: Size, is_empty: Size = 1) -> None:
    kernel = EmptyRowScalesKernel(copy.scheme)
    named: dict[str, Argument] = {"scales": copy.scales, "lines": lines}
    plan.launch_blocks(kernel, named, is_empty * kernel.blocks(lines, 1))
