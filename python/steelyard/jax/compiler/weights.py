"""Parameters that were quantized once, for calls without gradients."""

from collections.abc import Mapping
from typing import Any

import jax
from jax.tree_util import register_pytree_node_class

from steelyard.jax.nodes import Node


@register_pytree_node_class
class QuantizedWeights(Node):
    """The parameters of a compiled function: those that only its products read are quantized, the others as they were.

    It is a pytree, so that it goes through jit and is saved and placed like parameters. The function takes it in their
    place.
    """

    leaves = ("kept", "weights")
    static = ("tree", "avals", "others", "shared")

    kept: dict[int, jax.Array]
    """The parameters that are read in high precision, by their number."""
    weights: dict[str, list[Any]]
    """What is quantized, by the parameter's number and by what was done to it."""
    tree: Any
    avals: tuple[Any, ...]
    others: tuple[tuple[int, Any], ...]
    """The leaves of the tree that are no arrays, by their number."""
    shared: tuple[tuple[int, int], ...]
    """Which variables of flax.nnx are the same."""

    def __init__(
        self,
        kept: Mapping[int, Any],
        weights: Mapping[str, list[Any]],
        tree: Any,
        avals: tuple[Any, ...],
        others: tuple[tuple[int, Any], ...] = (),
        shared: tuple[tuple[int, int], ...] = (),
    ):
        self.kept, self.weights, self.tree, self.avals = dict(kept), dict(weights), tree, avals
        self.others, self.shared = others, shared

    def parameters(self) -> Any:
        """The tree of the parameters, of which only shapes and dtypes are known."""
        arrays, others = iter(self.avals), dict(self.others)
        leaves = [others[i] if i in others else Missing(next(arrays)) for i in range(self.tree.num_leaves)]
        return jax.tree.unflatten(self.tree, leaves)

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves((self.kept, self.weights)))

    def __repr__(self) -> str:
        return f"QuantizedWeights({len(self.weights)} quantized, {len(self.kept)} kept, {self.nbytes} bytes)"


class Missing:
    """A parameter of which only the shape and dtype are known."""

    def __init__(self, aval: Any):
        self.aval = aval
        self.dtype, self.ndim = aval.dtype, aval.ndim
