"""Weights that compensate, against an elimination by hand in float64, and against rounding without compensation."""

import pytest
import torch

from steelyard import recipes
from steelyard.errors import RecipeError
from steelyard.tensor import MXFP4Quantizer, MXFP8Quantizer, NVFP4Quantizer
from steelyard.tuning.gptq import Options, Statistics, compensate
from steelyard.tuning.grids import RowGrid, grid_class, searched, weight_bits

RECIPES = ("nvfp4-4over6", "mxfp4", "mxfp8", "fp8-row")
ROWS, COLUMNS = 24, 80
"""Columns are not a multiple of 32: the last block is shorter."""


def correlated(rows: int = 400, columns: int = COLUMNS) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(rows, columns) @ torch.randn(columns, columns) * torch.logspace(0.5, -0.5, columns)


def statistics_of(x: torch.Tensor) -> Statistics:
    made = Statistics(x.shape[1])
    made.add(x)
    return made


def output_error(x: torch.Tensor, weight: torch.Tensor, rounded: torch.Tensor) -> float:
    return float((x.double() @ (weight - rounded).double().t()).square().sum())


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("order", [False, True])
def test_codes_decode_to_the_values_and_their_products_are_nearer(name, order):
    x, weight = correlated(), torch.randn(ROWS, COLUMNS) / 8
    grid = grid_class(recipes.get(name))
    made = compensate(weight, statistics_of(x), grid, Options(order=order))
    tensor = made.tensor(slice(None), torch.float32)
    assert torch.equal(tensor.dequantize(), made.values)
    plain = searched(weight, recipes.get(name))
    assert output_error(x, weight, made.values) < 0.6 * output_error(x, weight, plain)


@pytest.mark.parametrize("name", RECIPES)
def test_rows_of_a_matrix_are_tensors_of_their_own(name):
    x, weight = correlated(), torch.randn(ROWS, COLUMNS)
    made = compensate(weight, statistics_of(x), grid_class(recipes.get(name)), Options())
    part = made.tensor(slice(5, 17), torch.bfloat16)
    assert part.dtype == torch.bfloat16
    assert torch.equal(part.dequantize(dtype=torch.float32), made.values[5:17])


def eliminated(weight: torch.Tensor, hessian: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """E4M3 with given scales per row: after each column, the inverse Hessian loses it by one step of Gauss."""
    values, inverse = weight.double().clone(), torch.linalg.inv(hessian.double())
    for column in range(values.shape[1]):
        before = values[:, column].clone()
        rounded = (before / scales).to(torch.float8_e4m3fn).double() * scales
        values -= ((before - rounded) / inverse[column, column])[:, None] * inverse[column][None]
        values[:, column] = rounded
        inverse -= inverse[:, column : column + 1] @ inverse[column : column + 1] / inverse[column, column]
        # What is rounded does not move any more.
        inverse[column], inverse[:, column] = 0.0, 0.0
        inverse[column, column] = 1.0
    return values


def test_columns_are_rounded_as_by_elimination():
    x, weight = correlated(columns=40), torch.randn(6, 40)
    statistics = statistics_of(x)
    made = compensate(weight, statistics, RowGrid, Options(damping=0.05))
    hessian = statistics.hessian + 0.05 * statistics.hessian.diagonal().mean() * torch.eye(40)
    expected = eliminated(weight, hessian, weight.double().abs().amax(1) / 448)
    # Float32 may tip a value that lies between two codes, and what follows it in its row.
    alike = (made.values.double() - expected).abs().amax(1) < 1e-5
    assert alike.sum() >= 5


@pytest.mark.parametrize(
    ("name", "quantizer"),
    [
        ("nvfp4-4over6", NVFP4Quantizer(four_over_six="mse", columnwise=False)),
        ("nvfp4-4over6", NVFP4Quantizer(columnwise=False)),
        ("mxfp4", MXFP4Quantizer(columnwise=False)),
        ("mxfp8", MXFP8Quantizer(columnwise=False)),
    ],
)
def test_searched_scales_lose_less_than_those_of_amaxes(name, quantizer):
    torch.manual_seed(1)
    weight = torch.randn(64, 256) * torch.rand(64, 1)
    found = searched(weight, recipes.get(name))
    assert (found - weight).square().sum() <= (quantizer(weight).dequantize() - weight).square().sum()


def test_zero_weights_and_inputs_stay_zero():
    for name in RECIPES:
        made = compensate(torch.zeros(4, 48), Statistics(48), grid_class(recipes.get(name)), Options())
        assert not made.tensor(slice(None), torch.float32).dequantize().any()


def test_bits_are_those_of_codes_and_block_scales():
    bits = {name: weight_bits(recipes.get(name), (8, 64), torch.float32) / 512 for name in RECIPES}
    assert bits == {"nvfp4-4over6": 4.5, "mxfp4": 4.25, "mxfp8": 8.25, "fp8-row": 8.5}
    assert weight_bits(None, (8, 64), torch.bfloat16) == 16 * 512


def test_other_formats_are_refused():
    with pytest.raises(RecipeError, match="nvfp4, mxfp4 or mxfp8 in blocks, or in fp8-row, got fp8-block"):
        grid_class(recipes.get("fp8-block"))


@pytest.mark.parametrize("name", RECIPES)
def test_blocks_with_the_largest_inputs_are_rounded_first(name):
    """Rounding in this order is rounding a matrix whose columns were put in it."""
    x, weight = correlated(columns=96), torch.randn(ROWS, 96)
    x[:, 32:64] *= 0.1
    x[:, 64:] *= 10
    grid = grid_class(recipes.get(name))
    blocks = list(torch.arange(96).split(grid.width))
    places = torch.cat(sorted(blocks, key=lambda block: -x[:, block].square().mean()))
    assert places[0] >= 64
    made = compensate(weight, statistics_of(x), grid, Options(order=True))
    moved = compensate(weight[:, places], statistics_of(x[:, places]), grid, Options())
    alike = (made.values[:, places] == moved.values).float().mean()
    # Sums in another order may tip a value that lies between two codes.
    assert alike > 0.99
    assert not torch.equal(made.values, compensate(weight, statistics_of(x), grid, Options()).values)
