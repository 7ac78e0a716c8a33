"""The three GEMMs of a linear layer: what their operands are to a recipe, and which copy of each they read."""

KINDS = ("fprop", "dgrad", "wgrad")
"""y = x w^T, dx = dy w and dw = dy^T x."""

ROLES = ("input", "weight", "grad_output")
"""What a quantized tensor is to a recipe."""

ROWWISE, COLUMNWISE = USAGES = ("rowwise", "columnwise")
"""The copies that a quantized tensor may have."""

OPERAND_ROLES = {"fprop": ("input", "weight"), "dgrad": ("grad_output", "weight"), "wgrad": ("grad_output", "input")}
"""What lhs and rhs of each kind are to a recipe."""

OPERAND_USAGES = {"fprop": (ROWWISE, ROWWISE), "dgrad": (ROWWISE, COLUMNWISE), "wgrad": (COLUMNWISE, COLUMNWISE)}
"""Which copies of lhs and rhs each kind reads: those whose blocks run along the reduction."""


def reads_columnwise(kind: str) -> tuple[bool, bool]:
    """Whether a kind reads the columnwise copy of lhs, and of rhs."""
    lhs, rhs = OPERAND_USAGES[kind]
    return lhs == COLUMNWISE, rhs == COLUMNWISE
