"""GPTQ: columns of a weight are rounded one after another, and those that remain make up for the error.

What is minimized is the error of the layer's output, x q^T against x w^T, over calibration inputs x, as the layer will
be given them: quantized, and with the errors of earlier layers.
"""

from dataclasses import dataclass

import torch

from steelyard.errors import RecipeError
from steelyard.tensor.quantized_tensor import QuantizedTensor
from steelyard.tuning.grids import Grid


@dataclass(frozen=True)
class Options:
    """How weights compensate."""

    damping: float = 0.01
    """What is added to the diagonal of x^T x, as a part of its mean: more trusts calibration inputs less."""
    order: bool = False
    """Round the blocks of columns with the largest inputs first."""
    fold: bool = True
    """Multiply columns by factors first that a norm or linear layer before can take over (SmoothQuant, AWQ)."""


class Statistics:
    """The sum of x^T x over calibration inputs of a layer."""

    def __init__(self, columns: int):
        self.hessian = torch.zeros(columns, columns)

    def add(self, x: torch.Tensor) -> None:
        """Count the rows of an input, as the values that its codes decode to."""
        rows = x.flatten(0, -2).float()
        self.hessian.addmm_(rows.t(), rows)


@dataclass(frozen=True)
class Compensated:
    """A weight as codes of a format."""

    grid: Grid
    codes: torch.Tensor
    scales: torch.Tensor
    """As they are stored, `[rows, blocks]`."""
    values: torch.Tensor
    """What the codes decode to, in float32."""

    def tensor(self, rows: slice, dtype: torch.dtype) -> QuantizedTensor:
        """The quantized tensor of some of the rows."""
        return self.grid.assemble(self.codes[rows], self.scales[rows], dtype)


def compensate(weight: torch.Tensor, statistics: Statistics, grid: type[Grid], options: Options) -> Compensated:
    """Round a weight, `[rows, columns]`, to a format, so that its products with calibration inputs change least."""
    values = weight.detach().float()
    hessian = statistics.hessian.clone()
    if not hessian.any():
        # An expert that no calibration token was sent to.
        hessian = torch.eye(len(hessian))
    diagonal = hessian.diagonal()
    mean = diagonal.mean().clamp(min=torch.finfo(torch.float32).tiny)
    diagonal.add_(options.damping * mean)
    blocks = _blocks(diagonal, grid.width, options.order)
    places = torch.cat(blocks)
    factor = _inverse_factor(hessian[places][:, places])
    made = grid(values)
    columns = values.t()[places].contiguous()
    codes = torch.empty_like(columns, dtype=torch.uint8)
    scales: list[torch.Tensor] = []
    start = 0
    for block in blocks:
        end = start + len(block)
        own = factor[start:end, start:end]
        rounded = _round_block(columns[start:end], own, made)
        codes[start:end] = rounded.codes
        scales.append(rounded.scales)
        columns[start:end] = rounded.values
        columns[end:].addmm_(factor[start:end, end:].t(), rounded.errors, alpha=-1)
        start = end
    back = torch.empty_like(places)
    back[places] = torch.arange(len(places))
    in_order = sorted(range(len(blocks)), key=lambda index: int(blocks[index][0]))
    stored = torch.stack([scales[index] for index in in_order], dim=1)
    return Compensated(made, codes[back].t().contiguous(), stored, columns[back].t().contiguous())


def _blocks(diagonal: torch.Tensor, width: int, by_size: bool) -> list[torch.Tensor]:
    """The columns of each block, in the order in which blocks are rounded."""
    blocks = list(torch.arange(len(diagonal)).split(width))
    if by_size:
        blocks.sort(key=lambda block: -float(diagonal[block].mean()))
    return blocks


def _inverse_factor(hessian: torch.Tensor) -> torch.Tensor:
    """The upper Cholesky factor of the inverse: how the columns that remain make up for the error of one."""
    try:
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian.double()))
        return torch.linalg.cholesky(inverse, upper=True).float()
    except torch.linalg.LinAlgError as error:  # pyright: ignore[reportPrivateImportUsage]
        raise RecipeError(
            "options.damping must be so large that x^T x of each layer's inputs has an inverse, and a layer's has "
            "none; give a larger one, such as 0.01, or more batches"
        ) from error


@dataclass
class _Rounded:
    codes: torch.Tensor
    values: torch.Tensor
    errors: torch.Tensor
    """Of each column, divided by its entry of the factor's diagonal."""
    scales: torch.Tensor


def _round_block(columns: torch.Tensor, factor: torch.Tensor, grid: Grid) -> _Rounded:
    """Round the columns of a block, `[columns, rows]`, one after another, with scales that are chosen before."""
    columns = columns.clone()
    stored, scales = grid.choose(columns, factor.diagonal().pow(-2))
    made = _Rounded(torch.empty_like(columns, dtype=torch.uint8), columns, torch.empty_like(columns), stored)
    for index in range(len(columns)):
        codes, rounded = grid.round(columns[index], scales)
        error = (columns[index] - rounded) / factor[index, index]
        made.codes[index], made.errors[index] = codes, error
        columns[index] = rounded
        columns[index + 1 :].addr_(factor[index, index + 1 :], error, alpha=-1)
    return made
