"""Products of tensors in groups on CUDA: torch's own of quantized ones, and those of decoded ones.

Where the groups end is known on the GPU only. Rows of no group, and products of no rows, are zero.
"""

from typing import NamedTuple

import torch
from torch.nn.functional import ScalingType, grouped_mm, scaled_grouped_mm  # pyright: ignore

from steelyard.errors import TargetError
from steelyard.runtime.cuda import gemm
from steelyard.runtime.cuda.streams import is_capturing


class GroupScale(NamedTuple):
    """What sums are multiplied by, divided by a number: `each` values for each group, or with 0 one for each row."""

    scale: torch.Tensor
    range: int
    each: int

    def of(self, group: int, rows: slice) -> gemm.OuterScale:
        """That of one group."""
        flat = self.scale.reshape(-1)
        own = flat[rows] if self.each == 0 else flat[group * self.each : (group + 1) * self.each]
        return gemm.OuterScale(own.reshape(()) if self.each == 1 else own, self.range)


def multiply_one_by_one(
    left: torch.Tensor,
    right: torch.Tensor,
    ends: torch.Tensor,
    out: torch.Tensor,
    left_scale: GroupScale | None = None,
    right_scale: GroupScale | None = None,
    *,
    multiple: int = 1,
) -> None:
    """The product of each group, whose rows lie along the reduction, in float32; the host waits for the ends.

    Groups are rows of left, each with a matrix of right, or of columns of both if those are matrices; these groups were
    filled up to a multiple.
    """
    if is_capturing(ends.device):
        raise TargetError(
            "a call must not be part of a CUDA graph if the host reads where groups of rows end, got a capture; "
            "net.explain() says which products of experts do that: leave these out of the graph"
        )
    reduces_rows = right.dim() == 2
    start = filled = 0
    out.zero_()
    for group, end in enumerate(read_ends(ends)):
        rows, count = slice(start, end), end - start
        stored = slice(filled, filled + -(-count // multiple) * multiple)
        start, filled = end, stored.stop
        if count == 0 or out.numel() == 0:
            continue
        scales = [None if scale is None else scale.of(group, rows) for scale in (left_scale, right_scale)]
        if reduces_rows:
            gemm.multiply_decoded(left[:, stored], right[:, stored].mT, out[group], *scales)
        elif left.shape[1]:
            gemm.multiply_decoded(left[rows], right[group].mT, out[rows], *scales)


def read_ends(ends: torch.Tensor) -> list[int]:
    """Where groups end, on the host, which waits for it."""
    return ends.tolist()


def multiply_at_once(
    left: torch.Tensor, right: torch.Tensor, ends: torch.Tensor, out: torch.Tensor, *, multiple: int = 1
) -> None:
    """The same products of bf16, without scales, by one kernel; nobody waits."""
    if out.numel() == 0 or left.shape[1] == 0:
        out.zero_()
        return
    stored = ends if multiple == 1 else filled_ends(ends, multiple)
    keep_groups(grouped_mm(left, right.mT, offs=stored), ends, out)


def multiply(
    left: gemm.GemmOperand, right: gemm.GemmOperand, ends: torch.Tensor, out_dtype: torch.dtype
) -> torch.Tensor:
    """The products of FP8 codes [rows, reduction] and [groups, columns, reduction], natively."""
    rows, (groups, columns, reduction) = left.codes.shape[0], right.codes.shape
    out = torch.empty((rows, columns), dtype=out_dtype, device=ends.device)
    if out.numel() == 0 or reduction == 0:
        return out.zero_()
    if left.scheme.family == "row":
        left_scales = left.scales.reshape(-1)
    else:
        left_scales = left.scales.index_select(0, groups_of_rows(ends, rows).clamp_(max=groups - 1))
    right_scales = right.scales.reshape(groups, -1).expand(groups, columns).contiguous()
    product = scaled_grouped_mm(
        left.codes.view(torch.float8_e4m3fn),
        right.codes.view(torch.float8_e4m3fn).mT,
        left_scales,
        ScalingType.RowWise,
        right_scales,
        ScalingType.RowWise,
        offs=ends,
        output_dtype=out_dtype,
    )
    keep_groups(product, ends, out)
    return out


def rows_in_groups(ends: torch.Tensor, rows: int) -> torch.Tensor:
    """Whether each row of a matrix is in a group, as a column."""
    return (torch.arange(rows, dtype=ends.dtype, device=ends.device) < ends[-1]).view(-1, 1)


def groups_of_rows(ends: torch.Tensor, rows: int) -> torch.Tensor:
    """The group of each row; those of none have the number of groups."""
    return torch.searchsorted(ends, torch.arange(rows, dtype=ends.dtype, device=ends.device), right=True)


def filled_ends(ends: torch.Tensor, multiple: int) -> torch.Tensor:
    """Where groups end that were filled up to a multiple."""
    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    return torch.cumsum((counts + (multiple - 1)) // multiple * multiple, 0, dtype=ends.dtype)


def keep_groups(product: torch.Tensor, ends: torch.Tensor, out: torch.Tensor) -> None:
    """A product without what its kernel left as it was: rows of no group, and matrices of groups without rows."""
    if out.dim() == 3:
        kept = (torch.diff(ends, prepend=ends.new_zeros(1)) > 0).view(-1, 1, 1)
    else:
        kept = rows_in_groups(ends, out.shape[0])
    torch.where(kept, product, product.new_zeros(()), out=out)
