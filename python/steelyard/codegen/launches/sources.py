"""What tiles are filled from, planned: a matrix, or what a producer makes of one or two."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from steelyard.codegen.kernel import TileKernel
from steelyard.codegen.launches.groups import Groups, PartBytes
from steelyard.codegen.launches.plan import Argument, Buffer, PlanBuilder
from steelyard.codegen.launches.values import Matrix, Vector
from steelyard.codegen.producers import KINDS, STATISTICS, Producer
from steelyard.codegen.sizes import Size
from steelyard.codegen.sources import Source
from steelyard.codegen.statistics import RowStatisticsKernel
from steelyard.codegen.tile import ITEM_BYTES
from steelyard.errors import ConstraintError


@dataclass(frozen=True)
class Filling:
    """A source of tiles, with the arguments that kernels take for it."""

    source: Source
    named: Mapping[str, Argument]
    rows: Size
    columns: Size
    groups: Groups | None = None
    """Of a tensor in groups; `rows` are then those of all groups, or of one matrix of a stack."""

    @property
    def elements(self) -> Size:
        return self.rows * self.columns

    def launch(
        self, plan: PlanBuilder, kernel: TileKernel, named: Mapping[str, Argument], part_bytes: Mapping[str, PartBytes]
    ) -> None:
        """Launch a kernel over the matrix, or over those of all groups."""
        given = {**self.named, **named}
        if self.groups is None:
            plan.launch(kernel, given, self.rows, self.columns)
            return
        row_bytes = given["row_stride0"] * ITEM_BYTES[self.source.dtype]  # pyright: ignore[reportOperatorIssue]
        own: dict[str, PartBytes] = {"input0": lambda rows: rows * row_bytes, **part_bytes}
        self.groups.launch(plan, kernel, given, (self.rows, self.columns), own)


def fill_from(
    matrices: Sequence[Matrix], producer: Producer | None = None, named: Mapping[str, Argument] | None = None
) -> Filling:
    """One or two matrices of one shape and dtype; `named` is what the producer takes besides them."""
    first = matrices[0]
    arguments: dict[str, Argument] = {"rows": first.rows, "columns": first.columns, **(named or {})}
    for index, matrix in enumerate(matrices):
        arguments |= matrix.arguments(f"input{index}", f"row_stride{index}", f"column_stride{index}")
    aligned = all(matrix.is_aligned for matrix in matrices)
    return Filling(Source(first.dtype, aligned, producer), arguments, first.rows, first.columns)


def fill_from_producer(
    plan: PlanBuilder,
    kind: str,
    matrices: Sequence[Matrix],
    vectors: Mapping[str, Vector],
    epsilon: float,
) -> Filling:
    """What a producer makes. Norms have the vectors `weight` and `bias`, or one or none of them."""
    if kind not in KINDS:
        raise ConstraintError("producer_kind", f"producer must be one of {', '.join(KINDS)}, got {kind!r}")
    if not kind.endswith("_norm"):
        return fill_from(matrices, Producer(kind))
    named: dict[str, Argument] = {"statistics": _row_statistics(plan, matrices[0], kind == "layer_norm", epsilon)}
    for name, vector in vectors.items():
        named |= {name: vector.buffer, f"{name}_stride": vector.stride}
    dtypes = {name: vector.dtype for name, vector in vectors.items()}
    return fill_from(matrices, Producer(kind, **dtypes), named)


def _row_statistics(plan: PlanBuilder, matrix: Matrix, centered: bool, epsilon: float) -> Buffer:
    """Launch the kernel that reads each row once; where it leaves what it found."""
    statistics = plan.temporary(matrix.rows, STATISTICS)
    if matrix.elements == 0:
        return statistics
    (bits,) = struct.unpack("<q", struct.pack("<d", epsilon))
    named: dict[str, Argument] = matrix.arguments("input0", "row_stride0", "column_stride0")
    named |= {"rows": matrix.rows, "columns": matrix.columns, "epsilon": bits, "statistics": statistics}
    plan.launch(RowStatisticsKernel(matrix.dtype, centered), named, matrix.rows, matrix.columns)
    return statistics
