"""Quantizers from a scaling mode: how to scale, and the dtype of the codes."""

import enum
from typing import Any

from steelyard.errors import RecipeError, shown
from steelyard.jax.quantizers import DelayedQuantizer, Quantizer, QuantizerSet
from steelyard.jax.scaling_modes import ScalingMode
from steelyard.recipes import Recipe


class QuantizeLayout(enum.Enum):
    """Which copies a quantizer makes."""

    ROWWISE = "rowwise"
    COLWISE = "colwise"
    ROWWISE_COLWISE = "rowwise_colwise"

    @property
    def has_rowwise(self) -> bool:
        return self is not QuantizeLayout.COLWISE

    @property
    def has_colwise(self) -> bool:
        return self is not QuantizeLayout.ROWWISE


class QuantizerFactory:
    """Makes quantizers and sets of them."""

    @staticmethod
    def create(
        n_quantizers: int = 1,
        scaling_mode: ScalingMode = ScalingMode.NO_SCALING,
        q_dtype: Any = None,
        q_layout: QuantizeLayout = QuantizeLayout.ROWWISE_COLWISE,
        n_groups: int | None = None,
        **options,
    ) -> Any:
        """One quantizer, or a tuple of several; those of `NO_SCALING` leave arrays in high precision.

        Every quantizer takes any number of groups (`quantize_groups`), so `n_groups` is only checked. `options` are
        those of `DelayedQuantizer`, or else of `steelyard.formats.schemes.Scheme`.
        """
        _check_count("n_quantizers", n_quantizers)
        _check_count("n_groups", 1 if n_groups is None else n_groups)
        if not isinstance(scaling_mode, ScalingMode):
            raise RecipeError(f"scaling_mode must be a ScalingMode, got {shown(scaling_mode)}")
        if not isinstance(q_layout, QuantizeLayout):
            raise RecipeError(f"q_layout must be a QuantizeLayout, got {shown(q_layout)}")
        made = tuple(_quantizer(scaling_mode, q_dtype, q_layout, options) for _ in range(n_quantizers))
        return made[0] if n_quantizers == 1 else made

    @staticmethod
    def create_set(
        n_quantizer_sets: int = 1,
        scaling_mode: ScalingMode | None = None,
        fwd_dtype: Any = None,
        bwd_dtype: Any = None,
        is_2x2x: bool | None = None,
        n_groups: int | None = None,
        *,
        fp8_recipe: str | Recipe | None = None,
        key: Any = None,
        **options,
    ) -> Any:
        """One set, or a tuple of several: from a mode and the dtypes of its codes, or from a recipe.

        With neither, nothing is quantized. Sets always have the copies for the backward, so `is_2x2x` may only be True.
        """
        _check_count("n_quantizer_sets", n_quantizer_sets)
        if is_2x2x is not None and is_2x2x is not True:
            raise RecipeError(
                "is_2x2x must be True or left out: the backward reads columnwise copies; for a backward "
                "without them use a recipe with backward='high_precision'"
            )
        if fp8_recipe is not None:
            if scaling_mode is not None or fwd_dtype is not None or bwd_dtype is not None or options:
                raise RecipeError("fp8_recipe decides modes, dtypes and options, got some beside it; leave them out")
            sets = tuple(QuantizerSet.from_recipe(fp8_recipe, key=key) for _ in range(n_quantizer_sets))
        else:
            mode = ScalingMode.NO_SCALING if scaling_mode is None else scaling_mode
            dtypes = fwd_dtype, fwd_dtype, fwd_dtype if bwd_dtype is None else bwd_dtype
            sets = tuple(
                QuantizerSet(
                    *(QuantizerFactory.create(1, mode, dtype, n_groups=n_groups, **options) for dtype in dtypes),
                    key=key,
                )
                for _ in range(n_quantizer_sets)
            )
        return sets[0] if n_quantizer_sets == 1 else sets


def _quantizer(mode: ScalingMode, q_dtype: Any, layout: QuantizeLayout, options: dict[str, Any]) -> Quantizer:
    if mode is ScalingMode.NO_SCALING:
        return Quantizer()
    is_delayed = mode is ScalingMode.DELAYED_TENSOR_SCALING
    schemes = {} if is_delayed else options
    row = mode.scheme(q_dtype, **schemes) if layout.has_rowwise else None
    col = mode.scheme(q_dtype, is_colwise=True, **schemes) if layout.has_colwise else None
    return DelayedQuantizer(row, col, **options) if is_delayed else Quantizer(row, col)


def _check_count(name: str, count: Any) -> None:
    if type(count) is not int or count < 1:
        raise RecipeError(f"{name} must be a positive integer, got {shown(count)}")
