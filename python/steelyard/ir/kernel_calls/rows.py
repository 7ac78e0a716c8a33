"""Calls that compute something of whole rows, in high precision."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from steelyard.dialect.base import require
from steelyard.dialect.types import Shape, TensorInfo
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
    """A norm of each row, times a weight and plus a bias where there are such; for gradients, mean and rstd of rows.

    Constraints, beside those of all calls:
    - norm_c1: source and result have one shape, with dims, and one dtype of f32, bf16 and f16
    - norm_c2: weight and bias are vectors of these dtypes, as long as a row of the source where both lengths are known,
      and an RMS norm has no bias
    - norm_c3: mean and rstd come together, of a layer norm, with the shape of the source but a last dim of 1, and one
      of these dtypes
    """

    OPERATION: ClassVar[str] = "norm"

    kind: Norm
    epsilon: float

    @property
    def is_for_gradients(self) -> bool:
        """Whether mean and rstd are results, too."""
        return self.result("mean") is not None

    def operand_names(self) -> Names:
        return Names(("source",), ("weight", "bias"))

    def result_names(self) -> Names:
        return Names(("result",), ("mean", "rstd"))

    def check(self) -> None:
        super().check()
        source, result = self._tensor(0), self._tensor(len(self.operands))
        fits = source == result and source.dtype in _DTYPES and len(source.shape) > 0
        message = f"source and result must be alike, of {', '.join(_DTYPES)}, got {source.dtype} {list(source.shape)}"
        require(fits, "norm_c1", f"{message} into {result.dtype} {list(result.shape)}")
        vectors = [self._tensor(position) for position in range(1, len(self.operands))]
        names = [slot.name for slot in self.operands]
        allowed = "bias" not in names or ("weight" in names and self.kind == "layer_norm")
        found = ", ".join(f"{list(info.shape)} of {info.dtype}" for info in vectors)
        message = f"{self.kind} has a weight and then a bias, as long as a row of {list(source.shape)}, got {found}"
        require(_are_vectors(vectors, source.shape) and allowed, "norm_c2", message)
        rest = [self._tensor(len(self.operands) + number) for number in range(1, len(self.results))]
        fits = not rest or (self.kind == "layer_norm" and len(rest) == 2 and rest[0] == rest[1])
        message = f"{self.kind} of {list(source.shape)} may have mean and rstd of each row, alike"
        found = ", ".join(f"{list(info.shape)} of {info.dtype}" for info in rest)
        require(fits and _are_of_rows(rest, source.shape), "norm_c3", f"{message}, got {found}")


@dataclass(frozen=True, kw_only=True)
class NormBackwardCall(KernelCall):
    """The gradients of a layer norm: of its source, its weight and its bias, those that are read.

    Constraints, beside those of all calls:
    - norm_backward_c1: grad, source and the gradient of source have one shape, with dims, and dtypes of f32, bf16, f16
    - norm_backward_c2: mean and rstd have the shape of the source but a last dim of 1, and one of these dtypes
    - norm_backward_c3: weight and the gradients of weight and bias are vectors of these dtypes, as long as a row of the
      source where both lengths are known
    """

    OPERATION: ClassVar[str] = "norm_backward"

    def operand_names(self) -> Names:
        return Names(("grad", "source", "mean", "rstd"), ("weight",))

    def result_names(self) -> Names:
        return Names((), ("grad_source", "grad_weight", "grad_bias"))

    def check(self) -> None:
        super().check()
        infos = [self._tensor(position) for position in range(len(self.operands) + len(self.results))]
        names = [slot.name for slot in (*self.operands, *self.results)]
        named = dict(zip(names, infos, strict=True))
        whole = [info for name, info in named.items() if name in ("grad", "source", "grad_source")]
        shape = named["source"].shape
        fits = len(shape) > 0 and all(info.shape == shape and info.dtype in _DTYPES for info in whole)
        found = ", ".join(f"{list(info.shape)} of {info.dtype}" for info in infos)
        message = f"grad and source must have one shape, and be of {', '.join(_DTYPES)}, got {found}"
        require(fits, "norm_backward_c1", message)
        message = f"mean and rstd must be of the rows of {list(shape)}, got {found}"
        require(_are_of_rows([named["mean"], named["rstd"]], shape), "norm_backward_c2", message)
        vectors = [info for name, info in named.items() if name in ("weight", "grad_weight", "grad_bias")]
        message = f"weight and bias must be as long as a row of {list(shape)}, got {found}"
        require(_are_vectors(vectors, shape), "norm_backward_c3", message)


def _are_vectors(infos: Sequence[TensorInfo], shape: Shape) -> bool:
    return all(info.dtype in _DTYPES and len(info.shape) == 1 and _fits_rows(info, shape) for info in infos)


def _fits_rows(vector: TensorInfo, shape: Shape) -> bool:
    """Whether a vector is as long as the rows of a shape, or one of the lengths is not known."""
    return len({*vector.shape, *shape[-1:]} - {None}) <= 1


def _are_of_rows(infos: Sequence[TensorInfo], shape: Shape) -> bool:
    return all(info.dtype in _DTYPES and info.shape == (*shape[:-1], 1) for info in infos)
