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


def reads_columnwise(kind: str) -> tuple[bool, bool]:
    """Whether a kind reads the columnwise copy of lhs, and of rhs."""
    lhs, rhs = OPERAND_USAGES[kind]
    return lhs == COLUMNWISE, rhs == COLUMNWISE
