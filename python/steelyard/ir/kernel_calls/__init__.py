"""Calls of kernels: `func.call` of a declaration whose attributes say which kernel runs, where, and how it is set.

    func.func private @gemm_0(...) -> ... attributes {
      scaled.kernel = "gemm", scaled.device = "cpu", scaled.config = {kind = "fprop", ...},
      scaled.operands = ["lhs.codes", "lhs.scales", ...], scaled.results = ["result"]}

All calls that are set alike share a declaration, so the declarations of a module are the kernels it needs. In Python
each operation is a frozen dataclass (`GemmCall`, `QuantizeCall`, ...), read from a declaration or written as one.
"""

from steelyard.ir.kernel_calls.attention import AttentionBackwardCall, AttentionCall
from steelyard.ir.kernel_calls.base import DEVICES, SIZE, Device, KernelCall, Slot, matrix_shape
from steelyard.ir.kernel_calls.block import BlockCall
from steelyard.ir.kernel_calls.concatenate import ConcatenateCall
from steelyard.ir.kernel_calls.copies import CopySlots
from steelyard.ir.kernel_calls.declarations import (
    Declarations,
    callee_of,
    calls_of,
    declarations_of,
    erase_uncalled,
    is_declaration,
    read_call,
)
from steelyard.ir.kernel_calls.elementwise import ElementwiseCall
from steelyard.ir.kernel_calls.gemm import EpilogueCall, GemmCall, GemmOperand
from steelyard.ir.kernel_calls.grouped import (
    GroupedCopySlots,
    GroupedGemmCall,
    GroupedPackCall,
    GroupedQuantizeCall,
    GroupedStoredCall,
)
from steelyard.ir.kernel_calls.indexing import AddRowsCall, LookupCall, PositionsCall, WriteRowsCall
from steelyard.ir.kernel_calls.layout import PadCall, SwizzleCall, TurnCall, UnpadCall
from steelyard.ir.kernel_calls.measure import (
    MeasureInfluenceCall,
    MeasureProductCall,
    MeasureQuantizeCall,
    SwitchCall,
)
from steelyard.ir.kernel_calls.quantize import (
    CopyCall,
    DequantizeCall,
    PackCall,
    ProduceQuantizeCall,
    QuantizeCall,
    QuantizingCall,
    StoredCall,
    TransposeCall,
)
from steelyard.ir.kernel_calls.rows import ColumnsCall, NormBackwardCall, NormCall, RowsCall
from steelyard.ir.kernel_calls.state import AdvanceRngCall, AmaxCall, CountSaturatedCall, UpdateScaleCall

__all__ = [
    "DEVICES",
    "SIZE",
    "AddRowsCall",
    "AdvanceRngCall",
    "AmaxCall",
    "AttentionBackwardCall",
    "AttentionCall",
    "BlockCall",
    "ColumnsCall",
    "ConcatenateCall",
    "CopyCall",
    "CopySlots",
    "CountSaturatedCall",
    "Declarations",
    "DequantizeCall",
    "Device",
    "ElementwiseCall",
    "EpilogueCall",
    "GemmCall",
    "GemmOperand",
    "GroupedCopySlots",
    "GroupedGemmCall",
    "GroupedPackCall",
    "GroupedQuantizeCall",
    "GroupedStoredCall",
    "KernelCall",
    "LookupCall",
    "MeasureInfluenceCall",
    "MeasureProductCall",
    "MeasureQuantizeCall",
    "NormBackwardCall",
    "NormCall",
    "PackCall",
    "PadCall",
    "PositionsCall",
    "ProduceQuantizeCall",
    "QuantizeCall",
    "QuantizingCall",
    "RowsCall",
    "Slot",
    "StoredCall",
    "SwitchCall",
    "SwizzleCall",
    "TransposeCall",
    "TurnCall",
    "UnpadCall",
    "UpdateScaleCall",
    "WriteRowsCall",
    "callee_of",
    "calls_of",
    "declarations_of",
    "erase_uncalled",
    "is_declaration",
    "matrix_shape",
    "read_call",
]
