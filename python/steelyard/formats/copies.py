"""The data that a quantize writes and a GEMM reads, shared by the reference, the kernels and the tensor classes."""

from dataclasses import dataclass, replace

import torch

from steelyard.errors import ConstraintError
from steelyard.formats.parts import is_stored_transposed, stored_shape
from steelyard.formats.schemes import Scheme


@dataclass
class QuantizedCopy:
    """One quantized copy (rowwise or columnwise) of a logical (M, N) matrix.

    The stored array is (M, N) for a rowwise copy and for MX, and the transpose (N, M) for every other columnwise copy.
    A copy with the random Hadamard transform stores its M rounded up to 16: the transform fills the padding.
    """

    codes: torch.Tensor
    """uint8, the stored array; FP4 holds two codes per byte along its last dim, the first in the low nibble."""
    scales: torch.Tensor
    """Decode scales, compact: f32 scale_inv (0-d, one per row or block), E8M0 bytes (mx, mxfp4), E4M3 bytes (nvfp4)."""
    amax: torch.Tensor | None
    """f32: 0-d for the tensor and nvfp4 families (after the transform, if any), one per stored row when row-scaled."""
    scheme: Scheme
    shape: tuple[int, int]
    """Logical (M, N)."""
    columnwise: bool
    borrowed: bool = False
    """The parts belong to the copy of the other usage; see `other_usage`."""

    @property
    def is_stored_transposed(self) -> bool:
        """Whether the stored array is the transpose of the logical matrix."""
        return is_stored_transposed(self.scheme, self._is_stored_columnwise)

    @property
    def stored_shape(self) -> tuple[int, int]:
        """Shape of the stored array in elements, before FP4 codes are packed two per byte."""
        return stored_shape(self.scheme, self.shape, self._is_stored_columnwise)

    @property
    def _is_stored_columnwise(self) -> bool:
        return self.columnwise != self.borrowed


def other_usage(copy: QuantizedCopy) -> QuantizedCopy:
    """The copy of the other usage, without moving a byte: GEMMs transpose FP8 codes while they pack them.

    Only for per-tensor scales and for 128x128 and 32x32 tiles: there, both usages have the same codes.
    """
    if not copy.scheme.is_transposable or copy.scheme.element == "f4E2M1FN":
        raise ConstraintError(
            "other_usage_scheme",
            "both usages must have the same FP8 codes: one scale for the tensor or square tiles, "
            f"got {copy.scheme.element} with block {copy.scheme.block}; quantize or transpose the other copy",
        )
    return replace(copy, columnwise=not copy.columnwise, borrowed=not copy.borrowed)
