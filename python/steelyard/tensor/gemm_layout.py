"""Copies in the layout that GPU GEMMs read."""

from collections.abc import Sequence
from dataclasses import replace

from steelyard.formats.copies import QuantizedCopy
from steelyard.runtime.cuda.padding import padded_copy, rounded
from steelyard.tensor import kernels


def needs_padding(shape: Sequence[int], multiples: tuple[int, int]) -> bool:
    """Whether a GEMM that takes multiples of these sizes needs a matrix to be padded."""
    return rounded(shape, multiples) != tuple(shape)


def for_gemm(copy: QuantizedCopy, multiples: tuple[int, int]) -> QuantizedCopy:
    """A rowwise copy, padded to multiples and with its scales in order; it shares the memory of what is so already."""
    padded = padded_copy(copy, multiples)
    return replace(padded, scales=kernels.swizzle(padded)) if copy.scheme.has_blocks else padded
