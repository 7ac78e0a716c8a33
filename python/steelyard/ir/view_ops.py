"""The ops that hand on a tensor in another shape, order, layout or dtype: one table for each frontend."""

from enum import Flag, auto


class View(Flag):
    """What is known about the result of a view-like op."""

    SHARES = auto()
    """It lies in the operand's memory."""
    ORDERED = auto()
    """Its elements are in the operand's order, whatever dims it adds or drops."""
    RESHAPED = auto()
    """It has another shape, and nothing else changes."""
    SAME = auto()
    """It has the operand's shape and elements, in another layout or dtype perhaps."""


_TORCH = {
    "aten.t": View.SHARES,
    "aten.numpy_T": View.SHARES,
    "aten.transpose.int": View.SHARES,
    "aten.permute": View.SHARES,
    "aten.view": View.SHARES | View.ORDERED | View.RESHAPED,
    "aten._unsafe_view": View.SHARES | View.ORDERED | View.RESHAPED,
    "aten.reshape": View.ORDERED | View.RESHAPED,
    "aten.expand": View.SHARES,
    "aten.unsqueeze": View.SHARES | View.ORDERED,
    "aten.squeeze": View.SHARES | View.ORDERED,
    "aten.squeeze.dim": View.SHARES | View.ORDERED,
    "aten.detach": View.SHARES | View.ORDERED | View.SAME,
    "aten.alias": View.SHARES | View.SAME,
    "aten.clone": View.ORDERED | View.SAME,
    "aten.contiguous": View.SAME,
    "aten._to_copy": View.SAME,
    "aten.to.dtype": View.SAME,
    "prims.convert_element_type": View.SAME,
    # Parts of a tensor.
    "aten.slice.Tensor": View.SHARES,
    "aten.select.int": View.SHARES,
    "aten.split.Tensor": View.SHARES,
    "aten.split_with_sizes": View.SHARES,
    "aten.chunk": View.SHARES,
    "aten.unbind.int": View.SHARES,
    "prim.ListUnpack": View.SHARES,
}
_JAX = {
    "stablehlo.transpose": View.SHARES,
    "stablehlo.reshape": View.SHARES | View.ORDERED | View.RESHAPED,
    "stablehlo.convert": View.SAME,
    "jax.copy": View.ORDERED | View.SAME,
    "jax.name": View.SHARES | View.ORDERED | View.SAME,
    "jax.optimization_barrier": View.SHARES | View.ORDERED | View.SAME,
    "jax.reduce_precision": View.SAME,
    # What says where a tensor lies, or over which devices it varies.
    "jax.pvary": View.SHARES | View.ORDERED | View.SAME,
    "jax.pcast": View.SHARES | View.ORDERED | View.SAME,
    "jax.reshard": View.SHARES | View.ORDERED | View.SAME,
    "jax.sharding_constraint": View.SHARES | View.ORDERED | View.SAME,
    # Parts of a tensor.
    "jax.slice": View.SHARES,
    "jax.dynamic_slice": View.SHARES,
    "jax.split": View.SHARES,
}
_TABLE = {f"torch.{name}": view for name, view in _TORCH.items()} | _JAX


def _with(flag: View) -> frozenset[str]:
    return frozenset(name for name, view in _TABLE.items() if flag in view)


STATIC_CAST = "torch.tensor_static_info_cast"
"""The same tensor, of which the type says more or less."""

VIEW_LIKE = frozenset(_TABLE)
"""The result is the first operand, or a part of it, in another shape, order, layout or dtype."""
SHARES_MEMORY = _with(View.SHARES) | {STATIC_CAST}
KEEPS_ORDER = _with(View.ORDERED)
RESHAPES = _with(View.RESHAPED)
SAME_ELEMENTS = _with(View.SAME)
HOLDS_OPERANDS = frozenset({"torch.prim.ListConstruct", "torch.prim.TupleConstruct", STATIC_CAST})
"""The result keeps its operands alive."""
HAS_EFFECTS = frozenset({"jax.debug_callback", "jax.debug_print", "jax.io_callback"})
"""The op is run although nothing reads its result."""
