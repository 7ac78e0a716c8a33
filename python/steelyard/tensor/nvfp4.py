"""NVFP4: E2M1 codes, two per byte, with one E4M3 scale per 16 or 32 elements under one float32 scale."""

from dataclasses import dataclass, field
from functools import cache, wraps
from typing import Any, TypeVar

import torch

from steelyard.errors import RecipeError, shown
from steelyard.formats.schemes import Scheme
from steelyard.tensor.arguments import check_flag, check_strided
from steelyard.tensor.autograd import DequantizeFunction
from steelyard.tensor.float4 import as_packed_codes, unpacked_shape
from steelyard.tensor.float8 import as_codes, one_float
from steelyard.tensor.quantized_tensor import QuantizedTensor
from steelyard.tensor.scheme_quantizer import Copies, SchemeQuantizer
from steelyard.tensor.scheme_storage import CopyFields, SchemeStorage

QuantizerClass = TypeVar("QuantizerClass", bound=type)


@cache
def _scheme(block: str, second_level: str, rounding: str, rht: bool, four_over_six: str, source: str) -> Scheme:
    return Scheme(
        "f4E2M1FN",
        block,
        "f8E4M3FN",
        second_level=second_level,
        rounding=rounding,
        rht=rht,
        four_over_six=four_over_six,
        source=source,
    )


def _fp4_e2m1_vals(device: torch.device | str, dtype: torch.dtype) -> torch.Tensor:
    """The values of the 16 E2M1 codes, in the order of the codes."""
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    return torch.tensor([*positive, *(-value for value in positive)], device=device, dtype=dtype)


class _FromNVFP4Func(DequantizeFunction):
    """`apply(tensor, dtype)` decodes with a gradient, `forward(None, tensor, dtype)` without one."""


class NVFP4TensorStorage(SchemeStorage):
    """`_rowwise_data`, `_rowwise_scale_inv`, `_amax_rowwise`, and the same of the transpose under `columnwise`.

    With `tensor_scale_inv` or `tensor_scale`, the amaxes are that number itself.
    """

    ROWWISE = CopyFields("_rowwise_data", "_rowwise_scale_inv", "_amax_rowwise")
    COLUMNWISE = CopyFields("_columnwise_data", "_columnwise_scale_inv", "_amax_columnwise")
    ARGUMENTS = {field[1:]: field for field in (*ROWWISE, *COLUMNWISE) if field}  # noqa: RUF012

    def __init__(
        self,
        *,
        rowwise_data: torch.Tensor | None = None,
        rowwise_scale_inv: torch.Tensor | None = None,
        amax_rowwise: torch.Tensor | None = None,
        tensor_scale_inv: torch.Tensor | float | None = None,
        tensor_scale: torch.Tensor | float | None = None,
        columnwise_data: torch.Tensor | None = None,
        columnwise_scale_inv: torch.Tensor | None = None,
        amax_columnwise: torch.Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        shape=None,
        quantizer: "NVFP4Quantizer | None" = None,
        with_gemm_swizzled_scales: bool = False,
        row_scaled_nvfp4: bool | None = None,
        nvfp4_use_4over6: bool | None = None,
        block_size: int | None = None,
    ):
        self._check_quantizer(quantizer)
        check_flag(row_scaled_nvfp4, "row_scaled_nvfp4", or_none=True)
        check_flag(nvfp4_use_4over6, "nvfp4_use_4over6", or_none=True)
        level = _given_level(tensor_scale_inv=tensor_scale_inv, tensor_scale=tensor_scale)
        for name, amax in (("amax_rowwise", amax_rowwise), ("amax_columnwise", amax_columnwise)):
            if amax is not None:
                check_strided(amax, name)
                _check_alone(name, *level)
        for given in level.values():
            amax_rowwise = None if rowwise_data is None else given
            amax_columnwise = None if columnwise_data is None else given
        parts = {
            "rowwise_data": as_packed_codes("rowwise_data", rowwise_data),
            "rowwise_scale_inv": as_codes("rowwise_scale_inv", rowwise_scale_inv, torch.float8_e4m3fn),
            "amax_rowwise": amax_rowwise,
            "columnwise_data": as_packed_codes("columnwise_data", columnwise_data),
            "columnwise_scale_inv": as_codes("columnwise_scale_inv", columnwise_scale_inv, torch.float8_e4m3fn),
            "amax_columnwise": amax_columnwise,
        }
        if shape is None:
            shape = unpacked_shape(rowwise_data, columnwise_data)
        if quantizer is None:
            levels: dict[str, Any] = {name: float(given) for name, given in level.items()}
            has_rows = amax_rowwise is not None and amax_rowwise.numel() > 1
            quantizer = NVFP4Quantizer(
                row_scaled=has_rows if row_scaled_nvfp4 is None else row_scaled_nvfp4,
                four_over_six="mae" if nvfp4_use_4over6 else None,
                block_size=16 if block_size is None else block_size,
                **levels,
            )
        for name in level:
            if getattr(quantizer, name) is None:
                raise RecipeError(f"the quantizer must have a {name}, too, got {quantizer}; leave it out")
        options = {
            "row_scaled_nvfp4": row_scaled_nvfp4,
            "nvfp4_use_4over6": nvfp4_use_4over6,
            "block_size": block_size,
        }
        for name, given in options.items():
            if given not in (None, getattr(quantizer, name)):
                raise RecipeError(f"{name} must be that of the quantizer {quantizer}, got {given}; leave it out")
        self._initialize(shape, dtype, quantizer, parts, swizzled=with_gemm_swizzled_scales)

    @property
    def _tensor_scale_inv(self) -> torch.Tensor | None:
        """The second level, if it was given as what decoded values are multiplied by."""
        return self._kept_level("tensor_scale_inv")

    @property
    def _tensor_scale(self) -> torch.Tensor | None:
        """The second level, if it was given as what decoded values are divided by."""
        return self._kept_level("tensor_scale")

    def _kept_level(self, name: str) -> torch.Tensor | None:
        if getattr(self._quantizer, name) is None:
            return None
        return next(copy.amax for columnwise in self._decode_order() if (copy := self._raw_copy(columnwise)))

    def _traits(self) -> dict[str, Any]:
        return {"with_gemm_swizzled_scales": self._with_gemm_swizzled_scales}


def _given_level(**given: Any) -> dict[str, torch.Tensor]:
    """The second level by the name it was given by; empty if it was not given."""
    level = {name: one_float(value, name) for name, value in given.items() if value is not None}
    _check_alone(*level)
    return level


def _check_alone(*names: str) -> None:
    if len(names) > 1:
        raise RecipeError(f"an NVFP4 tensor has {names[0]} or {names[1]}, got both; leave one out")


class NVFP4Tensor(QuantizedTensor, NVFP4TensorStorage):  # pyright: ignore[reportIncompatibleVariableOverride, reportIncompatibleMethodOverride]
    """E2M1 codes with two levels of scales: `NVFP4Tensor(rowwise_data=, rowwise_scale_inv=, amax_rowwise=, ...)`.

    In place of the amax, `tensor_scale_inv` may be given, what all decoded values are multiplied by, or `tensor_scale`,
    what they are divided by. It is kept as it is, so that a checkpoint that stores it is loaded and saved without a
    change, and the values are `code * (scale * tensor_scale_inv)` or `code * (scale / tensor_scale)`, to the last bit.
    """

    STORAGE = NVFP4TensorStorage


def _with_other_spellings(quantizer_class: QuantizerClass) -> QuantizerClass:
    """Let the constructor take the names that Transformer Engine gives to options, too."""
    initialize = quantizer_class.__init__

    @wraps(initialize)
    def initialize_spelled(self, *arguments, **options):
        initialize(self, *arguments, **_respelled(options))

    setattr(quantizer_class, "__init__", initialize_spelled)  # noqa: B010
    return quantizer_class


def _respelled(options: dict[str, Any]) -> dict[str, Any]:
    for spelling, name in (("row_scaled_nvfp4", "row_scaled"), ("nvfp4_use_4over6", "four_over_six")):
        if spelling in options and name in options:
            raise RecipeError(f"NVFP4Quantizer takes {name} or {spelling}, got both; leave one out")
    for spelling in ("with_post_rht_amax", "with_random_sign_mask"):
        # The transform has its signs, and the amax is that of the transformed values: there is no other.
        if options.pop(spelling, True) is not True and options.get("with_rht"):
            raise RecipeError(f"NVFP4Quantizer.{spelling} must be True with with_rht=True, got False; leave it out")
    if "row_scaled_nvfp4" in options:
        options["row_scaled"] = options.pop("row_scaled_nvfp4")
    error = options.pop("nvfp4_4over6_err_mode", "MAE")
    if "nvfp4_use_4over6" in options:
        wanted = options.pop("nvfp4_use_4over6")
        options["four_over_six"] = str(error).lower() if wanted is True else wanted or None
    return options


@_with_other_spellings
@dataclass(eq=False)
class NVFP4Quantizer(SchemeQuantizer):
    """Quantizes in blocks of 16 or 32, or in 16x16 tiles.

    The random Hadamard transform is on the columnwise copy only. Stochastic rounding draws its seed from torch's
    generator, so `torch.manual_seed` makes it repeatable.
    """

    STORAGE = NVFP4TensorStorage
    TENSOR = NVFP4Tensor

    with_rht: bool = field(default=False, kw_only=True)
    with_2d_quantization: bool = field(default=False, kw_only=True)
    stochastic_rounding: bool = field(default=False, kw_only=True)
    row_scaled: bool = field(default=False, kw_only=True)
    """The rowwise copy has one amax per row instead of one per tensor."""
    four_over_six: str | None = field(default=None, kw_only=True)
    """Each block also tries to map its amax to 4 instead of 6, and keeps the smaller error: `mae` or `mse`."""
    block_size: int = field(default=16, kw_only=True)
    """How many elements share a scale, 16 or 32. Blocks of 32 have none of the options above."""
    tensor_scale_inv: float | None = field(default=None, kw_only=True)
    """The second level, if it is given instead of measured: what decoded values are multiplied by. Larger values than
    it allows for saturate."""
    tensor_scale: float | None = field(default=None, kw_only=True)
    """The same, given as what decoded values are divided by."""

    def __post_init__(self):
        self._check_flags()
        if type(self.block_size) is not int or self.block_size not in (16, 32):
            raise RecipeError(f"NVFP4Quantizer.block_size must be 16 or 32, got {shown(self.block_size)}")
        self._check_wide()
        for name in _LEVELS:
            if (given := getattr(self, name)) is not None:
                setattr(self, name, float(one_float(given, f"NVFP4Quantizer.{name}")))
        if not isinstance(self.four_over_six, str | None) or self.four_over_six not in (None, "mae", "mse"):
            raise RecipeError(f"NVFP4Quantizer.four_over_six must be None, mae or mse, got {shown(self.four_over_six)}")
        for one, other in _EXCLUSIVE:
            if _is_chosen(getattr(self, one)) and _is_chosen(getattr(self, other)):
                raise RecipeError(f"NVFP4Quantizer.{one} and {other} exclude each other, got both; turn one off")

    def _check_wide(self) -> None:
        """Refuse what blocks of 32 cannot be combined with."""
        for option in _OF_SIXTEEN:
            if self.block_size == 32 and getattr(self, option):
                raise RecipeError(
                    f"NVFP4Quantizer.{option} needs block_size=16, got 32; turn it off, or leave block_size out"
                )

    @property
    def row_scaled_nvfp4(self) -> bool:
        """Another name of `row_scaled`; the constructor takes it, too."""
        return self.row_scaled

    @property
    def nvfp4_use_4over6(self) -> bool:
        """Whether `four_over_six` is chosen. The constructor takes it for `mae`, or `nvfp4_4over6_err_mode`."""
        return self.four_over_six is not None

    def _make_scheme(self, columnwise: bool) -> Scheme:
        return _scheme(
            "16x16" if self.with_2d_quantization else f"1x{self.block_size}",
            "row" if self.row_scaled and not columnwise else "tensor",
            "stochastic" if self.stochastic_rounding else "nearest",
            self.with_rht and columnwise,
            self.four_over_six or "none",
            next((source for name, source in _LEVELS.items() if getattr(self, name) is not None), "current"),
        )

    def _copies_for(self, dst: Any, src) -> Copies:
        # The second level of a tensor may have come with codes that were copied to it.
        alone = self.copy()
        for name in _LEVELS:
            if getattr(self, name) is not None:
                setattr(alone, name, float(dst._kept_level(name)))
        return super(NVFP4Quantizer, alone)._copies_for(dst, src)

    def _operands(self, matrix, row, col) -> dict[str, Any]:
        for name in _LEVELS:
            if (given := getattr(self, name)) is not None:
                return {"scale": torch.full((), given, dtype=torch.float32, device=matrix.device)}
        operands = self._reduced_amaxes(matrix, row, col)
        if self.stochastic_rounding:
            operands["rng"] = int(torch.randint(2**63 - 1, ())), 0
        return operands


def _is_chosen(option: Any) -> bool:
    return option is not None and option is not False


# What a second level may be given by, and how schemes call that.
_LEVELS = {"tensor_scale_inv": "static", "tensor_scale": "divisor"}
_OF_SIXTEEN = ("with_rht", "with_2d_quantization", "stochastic_rounding", "row_scaled", "four_over_six")
_EXCLUSIVE = (
    ("row_scaled", "with_rht"),
    ("row_scaled", "with_2d_quantization"),
    ("row_scaled", "stochastic_rounding"),
    ("with_2d_quantization", "with_rht"),
    ("four_over_six", "with_rht"),
    ("four_over_six", "stochastic_rounding"),
    ("tensor_scale_inv", "tensor_scale"),
    *((level, option) for level in _LEVELS for option in _OF_SIXTEEN if option != "with_2d_quantization"),
)
