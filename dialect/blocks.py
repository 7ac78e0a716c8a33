"""Code that several layers share: `call_block`."""

from torch_mlir import ir

from steelyard.dialect.base import ScaledOp, attribute_of, build, require


class CallBlockOp(ScaledOp, name="call_block"):
    """Run a block for a layer: a module beside the call holds the functions that all layers of the same code share.

    The functions name the parameters, states and layers of one of these layers. For another, the call says which, and
    the names are those of its own parameters, states and layers. A call has no operands: it lists what a net runs, and
    passes leave it alone.

    Constraints:
    - call_block_c1: the call stands in a module, outside of functions
    - call_block_c2: callee names a module that stands beside the call
    """

    assembly_format = '$callee [at $layer = ""]'
    reads_neighbours = True

    callee: ir.FlatSymbolRefAttr
    layer: ir.StringAttr

    def check(self) -> None:
        name = attribute_of(self, "callee", ir.FlatSymbolRefAttr).value
        around = self.operation.parent
        place = None if around is None else around.name
        require(place == "builtin.module", "call_block_c1", f"the call must stand in a module, got one in {place}")
        assert around is not None
        beside = (op.operation for op in around.regions[0].blocks[0].operations)
        is_known = any(op.name == "builtin.module" and _symbol(op) == name for op in beside)
        require(is_known, "call_block_c2", f"there must be a module @{name} beside the call, got none")


def _symbol(module: ir.Operation) -> str | None:
    name = module.attributes.get("sym_name")
    return name.value if isinstance(name, ir.StringAttr) else None


def call_block(
    callee: str, layer: str, *, loc: ir.Location | None = None, ip: ir.InsertionPoint | None = None
) -> CallBlockOp:
    """Build a `scaled.call_block`."""
    attributes = {"callee": ir.FlatSymbolRefAttr.get(callee), "layer": ir.StringAttr.get(layer)}
    return build(CallBlockOp, [], [], attributes, loc, ip)
