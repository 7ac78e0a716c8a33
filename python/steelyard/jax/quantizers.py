"""Quantizers: how each operand of a layer is quantized, with the state that it needs, as pytrees."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import register_pytree_node_class

from steelyard import recipes
from steelyard.errors import RecipeError, shown
from steelyard.formats.schemes import Scheme
from steelyard.jax import random, reference, softfloat
from steelyard.jax.arguments import as_floats, check_array, check_flag, check_source
from steelyard.jax.nodes import AbstractBaseTensor1x, Node, NoScaleTensor
from steelyard.jax.operations import quantize_groups, quantize_with
from steelyard.jax.scaled_tensors import ScaledTensor2x
from steelyard.recipes import Recipe, Role

# Up to this margin no scale is subnormal, and a scale from a subnormal amax overflows with any division.
_FLOAT_MARGIN = 6
_LARGEST_MARGIN = 126
_BACKWARDS = ("normal", "high_precision", "dequantized")
_OTHER_BLOCK = {"1x32": "32x1", "32x1": "1x32"}


def has_kernels(scheme: Scheme) -> bool:
    """Whether JAX has kernels for a scheme."""
    is_known = scheme.family not in ("row", "mxfp4") and (scheme.family, scheme.block) != ("nvfp4", "1x32")
    return is_known and not scheme.is_static


RECIPES = tuple(
    name
    for name in recipes.NAMES
    if all(map(has_kernels, (scheme for role in recipes.ROLES for scheme in recipes.get(name).schemes(role) if scheme)))
)
"""The recipes whose formats JAX has kernels for."""


@register_pytree_node_class
class Quantizer(Node):
    """Makes the copies that its schemes describe. A copy without a scheme stays in high precision."""

    static = ("row", "col")

    def __init__(self, row: Scheme | None = None, col: Scheme | None = None):
        for name, scheme in (("row", row), ("col", col)):
            if scheme is not None and not isinstance(scheme, Scheme):
                raise RecipeError(f"{name} must be a scheme or None, got {type(scheme).__name__}")
            if scheme is not None and scheme.custom:
                raise RecipeError(f"{name} must be a built-in scheme, got the custom one {scheme.custom!r}")
            if scheme is not None and not has_kernels(scheme):
                raise RecipeError(
                    f"{name} must be a scheme that JAX has kernels for, got {scheme.element} in {scheme.block} with "
                    f"{scheme.source} {scheme.scale} scales; use one of the recipes {', '.join(RECIPES)}"
                )
        self.row, self.col = row, col

    row: Scheme | None
    col: Scheme | None
    scale: jax.Array | None = None
    """The scale, where it is state; None where it comes from the data."""

    @property
    def is_stochastic(self) -> bool:
        return any(scheme is not None and scheme.rounding == "stochastic" for scheme in (self.row, self.col))

    def quantize(
        self, x: jax.Array, *, rowwise: bool = True, colwise: bool = True, rng=None, flatten_axis: int = -1
    ) -> tuple[AbstractBaseTensor1x, AbstractBaseTensor1x]:
        """The rowwise and the columnwise copy; `x` itself for one that is not wanted or has no scheme."""
        check_source(x, "x")
        check_flag(rowwise, "rowwise")
        check_flag(colwise, "colwise")
        row, col = self.row if rowwise else None, self.col if colwise else None
        plain = NoScaleTensor(x)
        if row is None and col is None:
            return plain, plain
        made = quantize_with(x, row, col, scale=self.scale, rng=rng, flatten_axis=flatten_axis)
        if isinstance(made, ScaledTensor2x):
            return made.rowwise_tensor, made.colwise_tensor
        return (plain, made) if row is None else (made, plain)

    def quantize_groups(
        self, x: jax.Array, group_sizes: jax.Array, *, rowwise: bool = True, colwise: bool = True, rng=None
    ) -> tuple[AbstractBaseTensor1x, AbstractBaseTensor1x]:
        """The same for a matrix whose rows belong to groups."""
        row, col = self.row if rowwise else None, self.col if colwise else None
        plain = NoScaleTensor(x)
        if row is None and col is None:
            return plain, plain
        made = quantize_groups(x, group_sizes, row, col, scale=self.scale, rng=rng)
        if isinstance(made, ScaledTensor2x):
            return made.rowwise_tensor, made.colwise_tensor
        return (plain, made) if row is None else (made, plain)

    def updated(self, amax: jax.Array | None) -> "Quantizer":
        """The quantizer for the next step, after a tensor with this amax."""
        return self

    def transposed(self) -> "Quantizer":
        """The quantizer of a matrix's transpose: rowwise and columnwise are swapped."""
        return self._with(row=flipped(self.col), col=flipped(self.row))


def flipped(scheme: Scheme | None) -> Scheme | None:
    """The scheme of the same copy of a matrix's transpose."""
    return (
        scheme
        if scheme is None or scheme.block not in _OTHER_BLOCK
        else replace(scheme, block=_OTHER_BLOCK[scheme.block])
    )


@register_pytree_node_class
class DelayedQuantizer(Quantizer):
    """Scales per tensor, from the amaxes of earlier steps. The caller passes its state from step to step."""

    leaves = ("scale", "amax_history")
    static = ("row", "col", "margin", "algorithm")

    def __init__(
        self,
        row: Scheme | None = None,
        col: Scheme | None = None,
        *,
        history_len: int = 1024,
        margin: int = 0,
        algorithm: str | Callable = "max",
    ):
        super().__init__(row, col)
        if type(history_len) is not int or history_len < 1:
            raise RecipeError(f"history_len must be a positive integer, got {shown(history_len)}")
        _check_update(margin, algorithm)
        self.margin, self.algorithm = margin, algorithm
        self.scale = jnp.ones((), jnp.float32)
        self.amax_history = jnp.zeros((history_len,), jnp.float32)

    amax_history: jax.Array
    margin: int
    algorithm: str | Callable

    def updated(self, amax: jax.Array | None) -> "DelayedQuantizer":
        scheme = self.row or self.col
        if amax is None or scheme is None:
            return self
        history = self.amax_history.at[0].set(amax)
        scale, history = update_scale(self.scale, history, scheme, margin=self.margin, algorithm=self.algorithm)
        return self._with(scale=scale, amax_history=history)


def _check_update(margin: Any, algorithm: Any) -> None:
    if type(margin) is not int or abs(margin) > _LARGEST_MARGIN:
        raise RecipeError(
            f"margin must be an integer from -{_LARGEST_MARGIN} to {_LARGEST_MARGIN}, got {shown(margin)}"
        )
    if not callable(algorithm) and not (isinstance(algorithm, str) and algorithm in ("max", "most_recent")):
        raise RecipeError(f"algorithm must be max, most_recent or a callable, got {shown(algorithm)}")


def _check_float32(value: Any, what: str, ndim: int) -> None:
    check_array(value, what)
    if value.dtype != jnp.float32 or value.ndim != ndim or value.size == 0:
        kind = "one value" if ndim == 0 else "a vector"
        raise RecipeError(f"{what} must be {kind} of float32, got {value.dtype} of shape {tuple(value.shape)}")


def _float_divide(a, b) -> jax.Array:
    """A quotient of floats. It compiles to much less code than one on bits, which matters: every quantizer has one."""
    return softfloat.bits_of(softfloat.floats_of(jnp.asarray(a)) / softfloat.floats_of(b))


def update_scale(scale, amax_history, scheme: Scheme, *, margin: int = 0, algorithm: str | Callable = "max"):
    """The scale and history of the next step. Nothing changes if the newest amax (slot 0) is 0."""
    _check_update(margin, algorithm)
    if not isinstance(scheme, Scheme) or scheme.custom:
        raise RecipeError(f"scheme must be a built-in Scheme, got {shown(scheme)}")
    _check_float32(scale, "scale", 0)
    _check_float32(amax_history, "amax_history", 1)
    history = softfloat.bits_of(amax_history)
    if callable(algorithm):
        amax = as_floats(algorithm(amax_history), "what algorithm returns")
        if amax.size != 1:
            raise RecipeError(f"algorithm must return one amax, got shape {amax.shape}")
        amax = softfloat.bits_of(amax.reshape(()))
    elif algorithm == "most_recent":
        amax = history[0]
    else:
        numbers = jnp.max(jnp.where(softfloat.is_nan(history), 0, history))
        amax = jnp.where(jnp.all(softfloat.is_nan(history)), softfloat.NAN, numbers)
    fresh = reference.scale_from_amax(
        amax,
        scheme.element_max * 2.0**-margin,
        epsilon=scheme.epsilon,
        power_of_two=scheme.power_of_two,
        fallback=softfloat.bits_of(scale),
        divide=_float_divide if margin <= _FLOAT_MARGIN else softfloat.divide,
    )
    seen = (history[0] & softfloat.MAGNITUDE) != 0
    rolled = jnp.roll(history, -1).at[0].set(0)
    new_scale = jnp.where(seen, fresh, softfloat.bits_of(scale))
    return softfloat.floats_of(new_scale), softfloat.floats_of(jnp.where(seen, rolled, history))


@register_pytree_node_class
class QuantizerSet(Node):
    """The quantizers of a dense layer: of its input, of its kernel [K, N], and of the gradient of its output."""

    leaves = ("x", "kernel", "dgrad", "random_state")
    static = ("backward",)

    x: Quantizer
    kernel: Quantizer
    dgrad: Quantizer
    random_state: jax.Array | None
    backward: str

    def __init__(
        self,
        x: Quantizer | None = None,
        kernel: Quantizer | None = None,
        dgrad: Quantizer | None = None,
        *,
        key: Any = None,
        backward: str = "normal",
    ):
        self.x, self.kernel, self.dgrad = (Quantizer() if each is None else each for each in (x, kernel, dgrad))
        for name in ("x", "kernel", "dgrad"):
            if not isinstance(getattr(self, name), Quantizer):
                raise RecipeError(
                    f"{name} must be a quantizer of steelyard.jax, got {type(getattr(self, name)).__name__}"
                )
        for name in ("x", "kernel"):
            if getattr(self, name).is_stochastic:
                raise RecipeError(f"{name} must round to nearest; only gradients are rounded stochastically")
        if not isinstance(backward, str) or backward not in _BACKWARDS:
            raise RecipeError(f"backward must be one of {', '.join(_BACKWARDS)}, got {shown(backward)}")
        self.backward = backward
        self.random_state = None
        if self.dgrad.is_stochastic:
            self.random_state = random.pack_state(random.seed_words(jax.random.key(0) if key is None else key))
        elif key is not None:
            random.seed_words(key)

    @classmethod
    def from_recipe(cls, recipe: str | Recipe, *, key: Any = None, layer: str = "") -> "QuantizerSet":
        """The quantizers that a recipe of `steelyard.recipes` asks for; `key` seeds stochastic rounding."""
        recipe = recipes.get(recipe)
        if recipe.activations != recipes.OWN:
            raise RecipeError(
                "a recipe for JAX must quantize weights and activations alike, got "
                f"activations={shown(recipe.activations)}; leave activations out, or compile a PyTorch model with it"
            )
        x, weight, dgrad = (_quantizer(recipe, Role(name, layer)) for name in recipes.ROLES)
        # The recipe's weight is [N, K], a kernel is its transpose.
        return cls(x, weight.transposed(), dgrad, key=key, backward=recipe.backward)

    def with_key(self, key: Any) -> "QuantizerSet":
        """The same set with another seed for stochastic rounding, where it is used."""
        state = random.pack_state(random.seed_words(key))
        return self if self.random_state is None else self._with(random_state=state)

    def updated(self, x_amax, kernel_amax, dgrad_amax) -> "QuantizerSet":
        """The set of the next step."""
        state = None if self.random_state is None else random.next_state(self.random_state)
        return self._with(
            x=self.x.updated(x_amax),
            kernel=self.kernel.updated(kernel_amax),
            dgrad=self.dgrad.updated(dgrad_amax),
            random_state=state,
        )


def _quantizer(recipe: Recipe, role: Role) -> Quantizer:
    row, col = recipe.schemes(role)
    if not isinstance(recipe, recipes.DelayedScaling):
        return Quantizer(row, col)
    return DelayedQuantizer(
        row, col, history_len=recipe.amax_history_len, margin=recipe.margin, algorithm=recipe.amax_compute_algo
    )
