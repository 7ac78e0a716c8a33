"""A drop-in for `flax.linen.Dense` whose GEMMs run in the formats of a recipe."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen
from flax.linen.dtypes import promote_dtype
from flax.linen.fp8_ops import OVERWRITE_WITH_GRADIENT

from steelyard.jax.dense import dense
from steelyard.jax.quantizers import QuantizerSet
from steelyard.recipes import Recipe


class Dense(linen.Module):
    """`linen.Dense` with a recipe.

    The state of the recipe (scales, amax histories, random state) is in the collection that flax overwrites with its
    "gradient", so `TrainState.apply_gradients` updates it if `state.params` holds all variables.
    """

    features: int
    recipe: str | Recipe = "mxfp8"
    use_bias: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32
    kernel_init: Callable = linen.initializers.lecun_normal()
    bias_init: Callable = linen.initializers.zeros_init()

    @linen.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        kernel = self.param("kernel", self.kernel_init, (inputs.shape[-1], self.features), self.param_dtype)
        bias = self.param("bias", self.bias_init, (self.features,), self.param_dtype) if self.use_bias else None
        inputs, kernel, bias = promote_dtype(inputs, kernel, bias, dtype=self.dtype)
        return dense(inputs, kernel, bias, self._quantizers())

    def _quantizers(self) -> QuantizerSet:
        fresh = QuantizerSet.from_recipe(self.recipe, layer="/".join(self.path))
        if not jax.tree.leaves(fresh):
            return fresh

        def initial() -> QuantizerSet:
            return fresh if fresh.random_state is None else fresh.with_key(self.make_rng("params"))

        return self.variable(OVERWRITE_WITH_GRADIENT, "quantizers", initial).value
