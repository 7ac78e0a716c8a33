"""Launches over tensors in groups, planned."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from steelyard.codegen.groups import GroupedKernel
from steelyard.codegen.kernel import TileKernel
from steelyard.codegen.launches.plan import Argument, Buffer, PlanBuilder
from steelyard.codegen.sizes import Size

PartBytes = Callable[[Size], Size]
"""The bytes of what a pointer points to, for so many rows."""


@dataclass(frozen=True)
class Groups:
    """The groups of a tensor: rows that end where `ends` says, or the matrices of a stack, which needs none."""

    count: int
    ends: Buffer | None = None

    @property
    def is_stack(self) -> bool:
        return self.ends is None

    def launch(
        self,
        plan: PlanBuilder,
        kernel: TileKernel,
        named: Mapping[str, Argument],
        shape: tuple[Size, Size],
        part_bytes: Mapping[str, PartBytes],
        row_multiple: int = 1,
    ) -> None:
        """Launch a kernel over all groups; `shape`: all rows, or those of one matrix of a stack."""
        grouped = GroupedKernel(kernel, self.count, self.is_stack, row_multiple)
        steps: dict[str, Argument] = {
            f"{name}_step": part_bytes[name](shape[0] if self.is_stack else max(rows, 1))
            for name, rows in grouped.shared_rows.items()
        }
        ends: dict[str, Argument] = {} if self.ends is None else {"ends": self.ends}
        plan.launch(grouped, {**named, **steps, **ends}, *shape)
