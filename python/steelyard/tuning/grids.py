"""The values that a weight can have in a format, and the choice of the scales of its blocks.

The quantizers of `steelyard.tensor` take a scale from the amax of a block. Here it is searched: a weight that is stored
as codes may have any scale that the format can hold, so the one with the smallest error is taken.
"""

import math
from abc import ABC, abstractmethod

import torch

from steelyard.driver.stored_weights import assemble
from steelyard.errors import RecipeError
from steelyard.formats.schemes import Scheme
from steelyard.recipes import Recipe
from steelyard.tensor.from_scheme import make_quantizer
from steelyard.tensor.quantized_tensor import QuantizedTensor

_CODES = torch.tensor([0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7], dtype=torch.uint8)
"""The codes of E2M1 by twice their values."""
_SIGN_OF_FP4 = 8
_LARGEST_LEVEL = 256.0
"""What the amax of a tensor maps to among block scales: room for blocks that grow while others are compensated."""
_E4M3_BYTES = (1, 126)
"""The smallest positive E4M3 byte, and that of 448."""
_E8M0_BYTES = (0, 254)
_WIDTH_OF_ROWS = 32
"""How many columns are rounded before the others are compensated, where a scale is that of a whole row."""


class Grid(ABC):
    """How a matrix of rows is rounded to a format, a block of columns at a time."""

    scheme: Scheme
    width: int
    """Columns of a block."""

    def __init__(self, weight: torch.Tensor):
        self.shape = weight.shape
        """Of the whole matrix, which a grid is made for before anything is rounded."""

    @abstractmethod
    def choose(self, block: torch.Tensor, importance: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The scales of a block, `[columns, rows]`, as they are stored and as numbers, both `[rows]`.

        `importance` has what squared errors of each column are multiplied by.
        """

    def round(self, values: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes of values, and the values that they decode to."""
        decoded = self._nearest(values / scales)
        return self._codes(decoded), decoded * scales

    @abstractmethod
    def _nearest(self, values: torch.Tensor) -> torch.Tensor:
        """What the codes of values that are divided by their scales decode to."""

    @abstractmethod
    def _codes(self, decoded: torch.Tensor) -> torch.Tensor:
        """The codes of what they decode to."""

    def assemble(self, codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> QuantizedTensor:
        """The quantized tensor of codes, `[rows, columns]`, and of stored scales, `[rows, blocks]`."""
        quantizer = make_quantizer(self.scheme, self._level())
        assert quantizer is not None, "every grid has its tensor"
        level = self._level()
        shape = codes.shape[0], codes.shape[1]
        parts = [pack(codes) if self.scheme.element == "f4E2M1FN" else codes, scales.contiguous()]
        return assemble(parts + ([] if level is None else [level]), quantizer, shape, dtype, is_transposed=False)

    def _level(self) -> torch.Tensor | None:
        return None

    def _search(
        self, block: torch.Tensor, importance: torch.Tensor, candidates: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of several scales per row, the one with the smallest weighted squared error; the first of equal ones."""
        best = None
        for stored, numbers in candidates:
            error = self._nearest(block / numbers).mul_(numbers).sub_(block).square_()
            error = importance @ error
            if best is None:
                best = error, stored, numbers
                continue
            better = error < best[0]
            pairs = zip((error, stored, numbers), best, strict=True)
            best = tuple(torch.where(better, new, old) for new, old in pairs)
        assert best is not None
        return best[1], best[2]


class _Fp4(Grid):
    def _nearest(self, values: torch.Tensor) -> torch.Tensor:
        sizes = values.abs().clamp_(max=6)
        # Values are halves up to 2, then whole, and even from 4 on. Of two that are as near, the smaller is taken.
        steps = torch.where(sizes > 4, 2.0, torch.where(sizes > 2, 1.0, 0.5))
        return sizes.div_(steps).sub_(0.5).ceil_().mul_(steps).copysign_(values)

    def _codes(self, decoded: torch.Tensor) -> torch.Tensor:
        return _CODES[(2 * decoded.abs()).long()] + _SIGN_OF_FP4 * (decoded < 0).to(torch.uint8)


class NVFP4Grid(_Fp4):
    """E2M1 in blocks of 16, each with any E4M3 scale, under a second level that is a power of two.

    Formats of checkpoints keep the second level as a factor or as a divisor: a power of two is exact as both.
    """

    scheme = Scheme("f4E2M1FN", "1x16", "f8E4M3FN", second_level="tensor", source="static")
    width = 16
    # E4M3 has eight scales per power of two: from a bit below the one that maps the amax to 6 to the one for 4.
    _OFFSETS = (0, -1, -2, 1, 2, 3, 4, 5)

    def __init__(self, weight: torch.Tensor):
        super().__init__(weight)
        amax = float(weight.abs().amax())
        exponent = math.ceil(math.log2(amax / (6 * _LARGEST_LEVEL))) if amax > 0 else 0
        self._second_level = torch.tensor(2.0 ** max(exponent, -100))

    def choose(self, block: torch.Tensor, importance: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        base = (block.abs().amax(0) / 6 / self._second_level).clamp(max=448).to(torch.float8_e4m3fn)
        first = base.view(torch.uint8).to(torch.int16)
        candidates = []
        for offset in self._OFFSETS:
            stored = (first + offset).clamp(*_E4M3_BYTES).to(torch.uint8)
            candidates.append((stored, stored.view(torch.float8_e4m3fn).float() * self._second_level))
        return self._search(block, importance, candidates)

    def _level(self) -> torch.Tensor:
        return self._second_level


class _Mx(Grid):
    width = 32

    def choose(self, block: torch.Tensor, importance: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fraction, exponent = torch.frexp(block.abs().amax(0) / self.scheme.element_max)
        # The smallest power of two that saturates nothing, and the next smaller one.
        first = exponent - (fraction == 0.5).to(exponent.dtype) + 127
        candidates = []
        for offset in (0, -1):
            stored = (first + offset).clamp(*_E8M0_BYTES)
            candidates.append((stored.to(torch.uint8), _power_of_two(stored)))
        return self._search(block, importance, candidates)


def _power_of_two(stored: torch.Tensor) -> torch.Tensor:
    """The numbers of E8M0 bytes: their bits are those of a float32's exponent, but for the byte 0, which is 2^-127."""
    return (stored.to(torch.int32) << 23).clamp(min=1 << 22).view(torch.float32)


class MXFP4Grid(_Mx, _Fp4):
    """E2M1 in blocks of 32, each with a power of two."""

    scheme = Scheme("f4E2M1FN", "1x32", "f8E8M0FNU")


class _Fp8(Grid):
    def _nearest(self, values: torch.Tensor) -> torch.Tensor:
        # torch's cast saturates nothing that is far out of range.
        return values.clamp(-448, 448).to(torch.float8_e4m3fn).float()

    def _codes(self, decoded: torch.Tensor) -> torch.Tensor:
        return decoded.to(torch.float8_e4m3fn).view(torch.uint8)


class MXFP8Grid(_Mx, _Fp8):
    """E4M3 in blocks of 32, each with a power of two."""

    scheme = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU")


class RowGrid(_Fp8):
    """E4M3 with a scale per row, from the amax before anything is rounded."""

    scheme = Scheme("f8E4M3FN", "row", "f32")
    width = _WIDTH_OF_ROWS

    def __init__(self, weight: torch.Tensor):
        super().__init__(weight)
        amax = weight.abs().amax(1)
        self._scales = torch.where(amax > 0, amax / 448, torch.ones(()))

    def choose(self, block: torch.Tensor, importance: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._scales, self._scales

    def assemble(self, codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> QuantizedTensor:
        return super().assemble(codes, scales[:, :1], dtype)


_GRIDS: dict[str, type[Grid]] = {"nvfp4": NVFP4Grid, "mxfp4": MXFP4Grid, "mx": MXFP8Grid, "row": RowGrid}


def grid_class(recipe: Recipe) -> type[Grid]:
    """The grid of the weights of a recipe; raises `RecipeError`."""
    scheme, _ = recipe.settled(trains=False).schemes("weight")
    found = None if scheme is None or scheme.element == "f8E5M2" else _GRIDS.get(scheme.family)
    if found is None or (scheme is not None and scheme.is_tiled):
        raise RecipeError(
            "weights that are tuned must be in nvfp4, mxfp4 or mxfp8 in blocks, or in fp8-row, got "
            f"{recipe.name}; choose one of these recipes"
        )
    return found


def input_scheme(recipe: Recipe) -> Scheme | None:
    """How a recipe quantizes inputs; None if it does not."""
    return recipe.settled(trains=False).schemes("input")[0]


def weight_bits(recipe: Recipe | None, shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Bits of codes and block scales of a weight; second levels, one number per tensor, are not counted."""
    rows, columns = shape
    if recipe is None:
        return rows * columns * dtype.itemsize * 8
    scheme = grid_class(recipe).scheme
    element, scale = (4 if scheme.element == "f4E2M1FN" else 8), (32 if scheme.scale == "f32" else 8)
    blocks = -(-columns // scheme.block_sizes[1]) if scheme.has_blocks else 1
    return rows * (columns * element + blocks * scale)


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Two codes per byte, the first in the low half."""
    if codes.shape[1] % 2:
        codes = torch.nn.functional.pad(codes, (0, 1))
    return codes[:, ::2] | codes[:, 1::2] << 4


def searched(weight: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    """A weight rounded to a format with searched scales, without compensation, as the values that it decodes to."""
    grid = grid_class(recipe)(weight)
    rows, columns = weight.shape
    if not grid.scheme.has_blocks:
        block = weight.t().float()
        return grid.round(block, grid.choose(block, torch.ones(columns))[1])[1].t()
    # Blocks do not depend on each other: all are rounded as one, with as many rows.
    padded = torch.nn.functional.pad(weight.float(), (0, -columns % grid.width))
    block = padded.reshape(-1, grid.width).t().contiguous()
    _, numbers = grid.choose(block, torch.ones(grid.width))
    return grid.round(block, numbers)[1].t().reshape(rows, -1)[:, :columns]
