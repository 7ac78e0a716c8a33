"""Calls of attention in high precision."""

from dataclasses import dataclass
from typing import ClassVar

from steelyard.dialect.base import require
from steelyard.ir.kernel_calls.base import KernelCall, Names

_DTYPES = ("f32", "bf16", "f16")
_RANK = 4


@dataclass(frozen=True, kw_only=True)
class AttentionCall(KernelCall):
    """softmax(scale query key^T + mask) value of each head, and the logarithm of each sum of exponentials.

    Constraints, beside those of all calls:
    - attention_c1: query, key, value and result are (batch, head, token, column), all of f32, of bf16 or of f16
    - attention_c2: a mask has 2 or 4 dims, and is f32 or what the query is
    - attention_c3: logsumexp is (batch, head, token) of f32
    """

    OPERATION: ClassVar[str] = "attention"

    causal: bool = False
    """Query i sees keys 0 to i."""
    scale: float | None = None
    """None for one over the square root of the head size."""

    @property
    def mask(self) -> int | None:
        """The position of what is added to scores."""
        return self.operand("mask")

    def operand_names(self) -> Names:
        return Names(("query", "key", "value"), ("mask",))

    def result_names(self) -> Names:
        return Names(("result", "logsumexp"))

    def check(self) -> None:
        super().check()
        heads = [self._tensor(position) for position in (0, 1, 2, self._result_positions["result"])]
        fits = all(len(info.shape) == _RANK for info in heads) and heads[0].dtype in _DTYPES
        found = ", ".join(f"{len(info.shape)} dims of {info.dtype}" for info in heads)
        message = f"query, key, value and result must have 4 dims of one of {', '.join(_DTYPES)}, got {found}"
        require(fits and len({info.dtype for info in heads}) == 1, "attention_c1", message)
        if self.mask is not None:
            mask = self._tensor(self.mask)
            fits = len(mask.shape) in (2, _RANK) and mask.dtype in ("f32", heads[0].dtype)
            message = f"mask must have 2 or 4 dims of {' or '.join(sorted({'f32', heads[0].dtype}))}"
            require(fits, "attention_c2", f"{message}, got {len(mask.shape)} dims of {mask.dtype}")
        sums = self._tensor(self._result_positions["logsumexp"])
        fits = len(sums.shape) == _RANK - 1 and sums.dtype == "f32"
        message = f"logsumexp must have 3 dims of f32, got {len(sums.shape)} dims of {sums.dtype}"
        require(fits, "attention_c3", message)
