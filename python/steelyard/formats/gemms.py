"""The three GEMMs of a linear layer: the roles of their operands, and which copy of each they read."""

from typing import Literal, get_args

Kind = Literal["fprop", "dgrad", "wgrad"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""y = x w^T, dx = dy w and dw = dy^T x."""

Role = Literal["input", "weight", "grad_output"]
ROLES: tuple[Role, ...] = get_args(Role)
"""The roles by which a recipe chooses the schemes of a tensor."""

Usage = Literal["rowwise", "columnwise"]
ROWWISE: Usage = "rowwise"
COLUMNWISE: Usage = "columnwise"
USAGES: tuple[Usage, ...] = (ROWWISE, COLUMNWISE)
"""The copies that a quantized tensor can have."""

OPERAND_ROLES: dict[str, tuple[Role, Role]] = {
    "fprop": ("input", "weight"),
    "dgrad": ("grad_output", "weight"),
    "wgrad": ("grad_output", "input"),
}
"""The roles of lhs and rhs, by kind."""

OPERAND_USAGES: dict[str, tuple[Usage, Usage]] = {
    "fprop": (ROWWISE, ROWWISE),
    "dgrad": (ROWWISE, COLUMNWISE),
    "wgrad": (COLUMNWISE, COLUMNWISE),
}
"""Which copies of lhs and rhs each kind reads: the ones whose blocks run along the reduction."""

Matrix = tuple[int | None, int | None]
"""The shape of a matrix; None for a size that is known only at run time."""


def reads_columnwise(kind: str) -> tuple[bool, bool]:
    """Whether a kind reads the columnwise copy of lhs, and of rhs."""
    lhs, rhs = OPERAND_USAGES[kind]
    return lhs == COLUMNWISE, rhs == COLUMNWISE


def gemm_sizes(kind: str, lhs: Matrix, rhs: Matrix) -> tuple[int | None, int | None, int | None]:
    """M, N and K of a product of matrices with these shapes: rows of lhs, rows of rhs, and the reduction."""
    # A copy is read along its last dim where it is rowwise, and across it where it is columnwise.
    (M, K), (N, other_K) = (
        shape if usage == ROWWISE else shape[::-1]
        for usage, shape in zip(OPERAND_USAGES[kind], (lhs, rhs), strict=True)
    )
    return M, N, K if K is not None else other_K
