"""A custom format (INT8, one scale per row) beside FP8 current scaling: the error of each on data with outliers.

The format is the one of docs/custom-quantizers.md.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from steelyard.tensor import QuantizedTensorStorage, Quantizer
from steelyard.tensor.reference import current_scaling_ref_quantizer_factory


@dataclass(eq=False)
class Int8RowTensor(QuantizedTensorStorage):
    """INT8 codes with one scale per row."""

    PARTS: ClassVar[tuple[str, ...]] = ("codes", "scale_inv")

    codes: torch.Tensor
    scale_inv: torch.Tensor
    dtype: torch.dtype

    def dequantize(self, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        return (self.codes * self.scale_inv).to(dtype or self.dtype)


@dataclass(eq=False)
class Int8RowQuantizer(Quantizer):
    """Maps the largest magnitude of each row to 127."""

    def quantize_impl(self, tensor: torch.Tensor) -> Int8RowTensor:
        rows = tensor.float()
        amax = rows.abs().amax(dim=1, keepdim=True)
        scale_inv = torch.where(amax > 0, amax / 127, 1.0)
        return Int8RowTensor((rows / scale_inv).round().to(torch.int8), scale_inv, tensor.dtype)


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return ((found - exact).norm() / exact.norm()).item()


def main() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(64, 512), torch.randn(128, 512)
    x[0, :4] *= 100
    print(f"{'format':32} {'x':>8} {'x w^T':>8}")
    for quantizer in (Int8RowQuantizer(), current_scaling_ref_quantizer_factory("input")):
        quantized_x, quantized_w = quantizer(x), quantizer(w)
        errors = (
            relative_error(quantized_x.dequantize(), x),
            relative_error(quantizer.qgemm(quantized_x, quantized_w), x @ w.T),
        )
        print(f"{type(quantizer).__name__:32} {errors[0]:8.2%} {errors[1]:8.2%}")


if __name__ == "__main__":
    main()
