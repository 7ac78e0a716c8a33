"""`scaled-insert-switches`."""

from torch_mlir import ir

from steelyard.dialect.grouped import GroupedGemmOp
from steelyard.dialect.matmul import GemmOp
from steelyard.dialect.measure import switch
from steelyard.dialect.types import TensorInfo, info_namespace
from steelyard.ir.attributes import STATE
from steelyard.ir.functions import add_argument, functions_of
from steelyard.ir.torch_ops import walk_ops
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.exact_products import product_of_model

SWITCH = "fprop.switch"
"""What the names of switches end with."""


@register_pass
def insert_switches(module: ir.Operation) -> None:
    """Let each quantized GEMM be turned off while a program runs.

    Takes a quantized module without gradients. Leaves behind each `scaled.gemm` and `scaled.grouped_gemm` the same
    product in high precision, and a `scaled.switch` that chooses one of both results. The switches are arguments of the
    function, state with the name `layer.fprop.switch`; all GEMMs of a layer have the same one. A GEMM whose operands
    are not known in high precision has none.
    """
    for function in functions_of(module):
        switches: dict[str, ir.Value] = {}
        for op in walk_ops(function):
            if isinstance(op.opview, GemmOp | GroupedGemmOp):
                _insert(op.opview, switches)


def _insert(gemm: GemmOp | GroupedGemmOp, switches: dict[str, ir.Value]) -> None:
    layer = gemm.layer.value
    readers = [(use.owner, use.operand_number) for use in gemm.result.uses]
    with ir.InsertionPoint.after(gemm), gemm.location:
        exact = product_of_model(gemm)
        if exact is None:
            return
        if layer not in switches:
            name = f"{layer}.{SWITCH}" if layer else SWITCH
            info = TensorInfo(info_namespace(gemm.result), (), "f32")
            attributes = {STATE: ir.StringAttr.get(name)}
            switches[layer] = add_argument(gemm.operation.block, info.type(), gemm.location, attributes)
        chosen = switch(switches[layer], gemm.result, exact).result
    for reader, number in readers:
        reader.operation.operands[number] = chosen
