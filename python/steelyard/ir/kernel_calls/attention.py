"""Calls of attention, over keys and values in high precision or as a KV cache keeps them."""

from dataclasses import dataclass
from typing import ClassVar

from steelyard.dialect.base import require
from steelyard.dialect.types import format_shape
from steelyard.formats.schemes import CACHED, CACHED_STATIC, Scheme
from steelyard.ir.kernel_calls.base import KernelCall, Names

_DTYPES = ("f32", "bf16", "f16")
_RANK = 4


@dataclass(frozen=True, kw_only=True)
class AttentionCall(KernelCall):
    """softmax(scale query key^T + mask) value of each head, and the logarithm of each sum of exponentials.

    Keys and values of a quantized cache are codes times scales, and rounded to no dtype.

    Constraints, beside those of all calls:
    - attention_c1: query, key, value and result are (batch, head, token, column), all of f32, of bf16 or of f16
    - attention_c2: a mask has 2 or 4 dims, and is f32 or what the query is
    - attention_c3: logsumexp is (batch, head, token) of f32
    - attention_c4: a cache has one of the two schemes of KV caches; its codes are (batch, head, token, column), a byte
      each, and its scales f32, (batch, head, token, 1) or, where they are static, one alone
    - attention_c5: new keys and values, which follow those of a cache in high precision, are like them but for the
      number of tokens
    """

    OPERATION: ClassVar[str] = "attention"

    causal: bool = False
    """Query i sees keys 0 to i."""
    scale: float | None = None
    """None for one over the square root of the head size."""
    cached: Scheme | None = None
    """How keys and values are quantized; None where they are not."""

    @property
    def mask(self) -> int | None:
        """The position of what is added to scores."""
        return self.operand("mask")

    def operand_names(self) -> Names:
        if self.cached is None:
            return Names(("query", "key", "value"), ("new_key", "new_value", "mask"))
        return Names(("query", "key.codes", "key.scales", "value.codes", "value.scales"), ("mask",))

    def result_names(self) -> Names:
        return Names(("result", "logsumexp"))

    def result_order(self, _number: int) -> tuple[int, ...]:
        """Tokens before heads: what follows joins the heads of a token."""
        return (0, 2, 1, 3)[: len(self._tensor(len(self.operands) + _number).shape)]

    def check(self) -> None:
        super().check()
        plain = (0, 1, 2) if self.cached is None else (0,)
        heads = [self._tensor(position) for position in (*plain, self._result_positions["result"])]
        fits = all(len(info.shape) == _RANK for info in heads) and heads[0].dtype in _DTYPES
        found = ", ".join(f"{len(info.shape)} dims of {info.dtype}" for info in heads)
        names = "query, key, value and result" if self.cached is None else "query and result"
        message = f"{names} must have 4 dims of one of {', '.join(_DTYPES)}, got {found}"
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
        if self.cached is not None:
            self._check_cache(self.cached)
        if self.operand("new_key") is not None or self.operand("new_value") is not None:
            self._check_new()

    def check_settings(self) -> None:
        fits = self.cached in (None, CACHED, CACHED_STATIC)
        require(fits, "attention_c4", f"cached must be a scheme of KV caches, got {self.cached}")

    def _check_new(self) -> None:
        places = [self.operand(name) for name in ("key", "new_key", "new_value")]
        found = [self._tensor(place) for place in places if place is not None]
        kinds = {(info.dtype, len(info.shape), info.shape[1], info.shape[-1]) for info in found}
        fits = len(found) == len(places) and len(kinds) == 1 and found[1].shape == found[2].shape
        shapes = ", ".join(f"{format_shape(info.shape)} of {info.dtype}" for info in found)
        message = "new keys and values must both be there, and be as keys are but for their tokens"
        require(fits, "attention_c5", f"{message}, got {shapes}")

    def _check_cache(self, scheme: Scheme) -> None:
        for name in ("key", "value"):
            codes, scales = (self._tensor(self._required(f"{name}.{part}")) for part in ("codes", "scales"))
            fits = len(codes.shape) == _RANK and codes.dtype.removeprefix("u") == "i8"
            message = f"codes of {name} must have 4 dims of bytes, got {len(codes.shape)} dims of {codes.dtype}"
            require(fits, "attention_c4", message)
            wanted = () if scheme.is_static else (*codes.shape[:-1], 1)
            message = f"scales of {name} must be f32 of {format_shape(wanted)}, got {scales.dtype} of"
            fits = scales.dtype == "f32" and scales.shape == wanted
            require(fits, "attention_c4", f"{message} {format_shape(scales.shape)}")


@dataclass(frozen=True, kw_only=True)
class AttentionBackwardCall(KernelCall):
    """The gradients of query, key and value, from what attention took and made, and the gradient of its result.

    Constraints, beside those of all calls:
    - attention_backward_c1: all tensors but logsumexp and mask are (batch, head, token, column), all of f32, of bf16 or
      of f16
    - attention_backward_c2: logsumexp is (batch, head, token) of f32; a mask has 2 or 4 dims, and is f32 or what the
      query is
    """

    OPERATION: ClassVar[str] = "attention_backward"

    causal: bool = False
    """Query i sees keys 0 to i."""
    scale: float | None = None
    """None for one over the square root of the head size."""

    @property
    def mask(self) -> int | None:
        """The position of what is added to scores."""
        return self.operand("mask")

    def operand_names(self) -> Names:
        return Names(("grad_out", "query", "key", "value", "out", "logsumexp"), ("mask",))

    def result_names(self) -> Names:
        return Names(("grad_query", "grad_key", "grad_value"))

    def result_order(self, _number: int) -> tuple[int, ...]:
        """Tokens before heads, as torch's are: what projects a gradient back reads the heads of a token as one row."""
        return (0, 2, 1, 3)

    def check(self) -> None:
        super().check()
        heads = [self._tensor(position) for position in (*range(5), *self._result_positions.values())]
        fits = all(len(info.shape) == _RANK for info in heads) and heads[0].dtype in _DTYPES
        found = ", ".join(f"{len(info.shape)} dims of {info.dtype}" for info in heads)
        message = f"heads and their gradients must have 4 dims of one of {', '.join(_DTYPES)}, got {found}"
        require(fits and len({info.dtype for info in heads}) == 1, "attention_backward_c1", message)
        sums = self._tensor(self._required("logsumexp"))
        fits = len(sums.shape) == _RANK - 1 and sums.dtype == "f32"
        message = f"logsumexp must have 3 dims of f32, got {len(sums.shape)} dims of {sums.dtype}"
        require(fits, "attention_backward_c2", message)
        if self.mask is not None:
            mask = self._tensor(self.mask)
            fits = len(mask.shape) in (2, _RANK) and mask.dtype in ("f32", heads[0].dtype)
            message = f"mask must have 2 or 4 dims of {' or '.join(sorted({'f32', heads[0].dtype}))}"
            require(fits, "attention_backward_c2", f"{message}, got {len(mask.shape)} dims of {mask.dtype}")
