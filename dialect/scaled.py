"""The namespace `scaled`: every attribute, type and op of the dialect, with its builder.

The bindings look for the op classes of a namespace in a module of that name, which is why this module exists.
"""

from steelyard.dialect.attributes import SchemeAttr
from steelyard.dialect.base import Scaled, ScaledOp
from steelyard.dialect.blocks import CallBlockOp, call_block
from steelyard.dialect.epilogue import EpilogueOp, epilogue
from steelyard.dialect.grouped import GroupedGemmOp, GroupedMatmulOp, grouped_gemm, grouped_matmul
from steelyard.dialect.launch import (
    AllocateOp,
    ContiguousOp,
    LaunchOp,
    TorchCallOp,
    allocate,
    contiguous,
    launch,
    torch_call,
)
from steelyard.dialect.layout import (
    FlattenOp,
    PackOp,
    PadOp,
    SwizzleOp,
    TurnOp,
    UnpadOp,
    flatten,
    pack,
    pad,
    swizzle,
    turn,
    unpad,
)
from steelyard.dialect.matmul import GemmOp, MatmulOp, gemm, matmul
from steelyard.dialect.measure import (
    MeasureInfluenceOp,
    MeasureProductOp,
    MeasureQuantizeOp,
    SwitchOp,
    measure_influence,
    measure_product,
    measure_quantize,
    switch,
)
from steelyard.dialect.memory import FreeOp, free
from steelyard.dialect.parts import JoinOp, SplitOp, join, split
from steelyard.dialect.produce import ProduceQuantizeOp, produce_quantize
from steelyard.dialect.quantize import (
    DequantizeOp,
    NarrowOp,
    QuantizeOp,
    StoredOp,
    TransposeOp,
    dequantize,
    narrow,
    quantize,
    stored,
    transpose,
)
from steelyard.dialect.scale import (
    AdvanceRngOp,
    AmaxOp,
    UpdateScaleOp,
    advance_rng,
    amax,
    update_scale,
)
from steelyard.dialect.types import TensorType

__all__ = [
    "AdvanceRngOp",
    "AllocateOp",
    "AmaxOp",
    "CallBlockOp",
    "ContiguousOp",
    "DequantizeOp",
    "EpilogueOp",
    "FlattenOp",
    "FreeOp",
    "GemmOp",
    "GroupedGemmOp",
    "GroupedMatmulOp",
    "JoinOp",
    "LaunchOp",
    "MatmulOp",
    "MeasureInfluenceOp",
    "MeasureProductOp",
    "MeasureQuantizeOp",
    "NarrowOp",
    "PackOp",
    "PadOp",
    "ProduceQuantizeOp",
    "QuantizeOp",
    "Scaled",
    "ScaledOp",
    "SchemeAttr",
    "SplitOp",
    "StoredOp",
    "SwitchOp",
    "SwizzleOp",
    "TensorType",
    "TorchCallOp",
    "TransposeOp",
    "TurnOp",
    "UnpadOp",
    "UpdateScaleOp",
    "advance_rng",
    "allocate",
    "amax",
    "call_block",
    "contiguous",
    "dequantize",
    "epilogue",
    "flatten",
    "free",
    "gemm",
    "grouped_gemm",
    "grouped_matmul",
    "join",
    "launch",
    "matmul",
    "measure_influence",
    "measure_product",
    "measure_quantize",
    "narrow",
    "pack",
    "pad",
    "produce_quantize",
    "quantize",
    "split",
    "stored",
    "switch",
    "swizzle",
    "torch_call",
    "transpose",
    "turn",
    "unpad",
    "update_scale",
]
