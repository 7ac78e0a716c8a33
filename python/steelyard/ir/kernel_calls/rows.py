"""Calls that compute something of whole rows, in high precision."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from steelyard.dialect.base import require
from steelyard.ir.kernel_calls.base import KernelCall, Names

RowFunction = Literal["sum", "mean", "softmax"]
Norm = Literal["layer_norm", "rms_norm"]
_DTYPES = ("f32", "bf16", "f16")


@dataclass(frozen=True, kw_only=True)
class RowsCall(KernelCall):
    """What a function makes of each row: its sum, its mean, or its softmax.

    Constraints, beside those of all calls:
    - rows_c1: source and result are f32, bf16 or f16, and the source has dims
    - rows_c2: a softmax has the shape of its source; a sum or mean has that shape without the last dim, or with a last
      dim of 1
    """

    OPERATION: ClassVar[str] = "rows"

    function: RowFunction

    @property
    def keeps_dim(self) -> bool:
        """Whether the result has as many dims as the source."""
        return len(self._tensor(1).shape) == len(self._tensor(0).shape)

    def operand_names(self) -> Names:
        return Names(("source",))

    def check(self) -> None:
        super().check()
        source, result = map(self._tensor, range(2))
        fits = source.dtype in _DTYPES and result.dtype in _DTYPES and len(source.shape) > 0
        message = f"source and result must be of {', '.join(_DTYPES)}, got {source.dtype} into {result.dtype}"
        require(fits, "rows_c1", message)
        lead = source.shape[:-1]
        allowed = [source.shape] if self.function == "softmax" else [lead, (*lead, 1)]
        message = f"{self.function} of shape {list(source.shape)} must have a shape of its rows"
        require(result.shape in allowed, "rows_c2", f"{message}, got {list(result.shape)}")


@dataclass(frozen=True, kw_only=True)
class ColumnsCall(KernelCall):
    """The sum or the mean over the first dims of a tensor, such as the gradient of a bias.

    Constraints, beside those of all calls:
    - columns_c1: source and result are f32, bf16 or f16, and `dims` is at least 1, and the source has as many
    - columns_c2: the result has the shape of the source without the first `dims`, or with those of 1
    """

    OPERATION: ClassVar[str] = "columns"

    function: Literal["sum", "mean"]
    dims: int

    @property
    def keeps_dims(self) -> bool:
        """Whether the result has as many dims as the source."""
        return len(self._tensor(1).shape) == len(self._tensor(0).shape)

    def operand_names(self) -> Names:
        return Names(("source",))

    def check(self) -> None:
        super().check()
        source, result = map(self._tensor, range(2))
        fits = source.dtype in _DTYPES and result.dtype in _DTYPES and 1 <= self.dims <= len(source.shape)
        message = f"source and result must be of {', '.join(_DTYPES)}, and the source of at least {self.dims} > 0 dims"
        require(fits, "columns_c1", f"{message}, got {source.dtype} {list(source.shape)} into {result.dtype}")
        rest = source.shape[self.dims :]
        message = f"{self.function} over {self.dims} dims of shape {list(source.shape)} must have the shape of the rest"
        require(result.shape in (rest, (1,) * self.dims + rest), "columns_c2", f"{message}, got {list(result.shape)}")


@dataclass(frozen=True, kw_only=True)
class NormCall(KernelCall):
    """A norm of each row, times a weight and plus a bias where there are such.

    Constraints, beside those of all calls:
    - norm_c1: source and result have one shape, with dims, and one dtype of f32, bf16 and f16
    - norm_c2: weight and bias are vectors of these dtypes, and an RMS norm has no bias
    """

    OPERATION: ClassVar[str] = "norm"

    kind: Norm
    epsilon: float

    def operand_names(self) -> Names:
        return Names(("source",), ("weight", "bias"))

    def check(self) -> None:
        super().check()
        source, result = self._tensor(0), self._tensor(len(self.operands))
        fits = source == result and source.dtype in _DTYPES and len(source.shape) > 0
        message = f"source and result must be alike, of {', '.join(_DTYPES)}, got {source.dtype} {list(source.shape)}"
        require(fits, "norm_c1", f"{message} into {result.dtype} {list(result.shape)}")
        vectors = [self._tensor(position) for position in range(1, len(self.operands))]
        fits = all(info.dtype in _DTYPES and len(info.shape) == 1 for info in vectors)
        names = [slot.name for slot in self.operands]
        allowed = "bias" not in names or ("weight" in names and self.kind == "layer_norm")
        found = ", ".join(f"{len(info.shape)} dims of {info.dtype}" for info in vectors)
        require(fits and allowed, "norm_c2", f"{self.kind} has a weight and then a bias, of one dim each, got {found}")
