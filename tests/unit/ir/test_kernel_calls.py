"""Typed kernel calls: written as a declaration and read back, and where they find their operands and results."""

from dataclasses import replace

import pytest
from torch_mlir import ir

from steelyard.dialect import make_context
from steelyard.errors import ConstraintError
from steelyard.formats.schemes import CACHED, CACHED_STATIC, Scheme
from steelyard.ir.kernel_calls import (
    AddRowsCall,
    AdvanceRngCall,
    AmaxCall,
    AttentionBackwardCall,
    AttentionCall,
    BlockCall,
    ColumnsCall,
    ConcatenateCall,
    CountSaturatedCall,
    Declarations,
    DequantizeCall,
    ElementwiseCall,
    EpilogueCall,
    GemmCall,
    GroupedGemmCall,
    GroupedPackCall,
    GroupedQuantizeCall,
    GroupedStoredCall,
    KernelCall,
    LookupCall,
    MeasureInfluenceCall,
    MeasureProductCall,
    MeasureQuantizeCall,
    NormBackwardCall,
    NormCall,
    PackCall,
    PadCall,
    PositionsCall,
    ProduceQuantizeCall,
    QuantizeCall,
    RowsCall,
    Slot,
    StoredCall,
    SwitchCall,
    SwizzleCall,
    TransposeCall,
    TurnCall,
    UnpadCall,
    UpdateScaleCall,
    WriteRowsCall,
    calls_of,
)
from steelyard.ir.kernel_calls.base import OPERATIONS

MX = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU")
MX_COLUMNS = Scheme("f8E4M3FN", "32x1", "f8E8M0FNU")
FP8 = Scheme("f8E4M3FN", "tensor", "f32")
DELAYED = replace(FP8, source="delayed")
FP4 = Scheme("f4E2M1FN", "1x16", "f8E4M3FN", second_level="tensor")
TILES = Scheme("f4E2M1FN", "16x16", "f8E4M3FN", second_level="tensor")
OWN = Scheme("i8", "tensor", "f32", custom="Mine")

HEADS = "tensor<2x4x?x16xbf16>"
F32, ROWS, SCALAR = "tensor<8x64xf32>", "tensor<8x64xi8>", "tensor<f32>"
ENDS = "tensor<2xi32>"
MX_PARTS = {"codes": ROWS, "scales": "tensor<8x2xi8>"}
CACHE_PARTS = {"codes": "tensor<2x2x?x16xi8>", "scales": "tensor<2x2x?x1xf32>"}
FP8_PARTS = {"codes": ROWS, "scales": SCALAR, "amax": SCALAR}
FP4_PARTS = {"codes": "tensor<8x32xi8>", "scales": "tensor<8x4xi8>", "amax": SCALAR}


def parts(prefix: str, types: dict[str, str]) -> list[tuple[str, str]]:
    return [(f"{prefix}.{part}", type_) for part, type_ in types.items()]


CASES = {
    "attention": (
        AttentionCall,
        [("query", HEADS), ("key", HEADS), ("value", HEADS), ("mask", "tensor<?x?xf32>")],
        [("result", HEADS), ("logsumexp", "tensor<2x4x?xf32>")],
        {"causal": True, "scale": 0.25},
    ),
    "attention over a cache": (
        AttentionCall,
        [("query", HEADS), *parts("key", CACHE_PARTS), *parts("value", CACHE_PARTS)],
        [("result", HEADS), ("logsumexp", "tensor<2x4x?xf32>")],
        {"cached": CACHED},
    ),
    "attention over a cache and new tokens": (
        AttentionCall,
        [(name, HEADS) for name in ("query", "key", "value")]
        + [(name, "tensor<2x4x1x16xbf16>") for name in ("new_key", "new_value")],
        [("result", HEADS), ("logsumexp", "tensor<2x4x?xf32>")],
        {},
    ),
    "concatenate": (
        ConcatenateCall,
        [("part0", "tensor<2x?x64xf32>"), ("part1", "tensor<2x1x64xf32>")],
        [("result", "tensor<2x?x64xf32>")],
        {"dim": 1, "device": "cpu", "has_destinations": True},
    ),
    "block": (
        BlockCall,
        [("argument0", F32), ("argument1", SCALAR)],
        [("result0", ROWS), ("result1", F32)],
        {"number": 3, "device": "cpu", "has_destinations": True},
    ),
    "positions": (
        PositionsCall,
        [("start", "tensor<i64>"), ("size", "index")],
        [("result", "tensor<?xi64>")],
        {"offset": 2, "device": "cpu", "has_destinations": True},
    ),
    "lookup": (
        LookupCall,
        [("table", F32), ("indices", "tensor<2x?xi64>")],
        [("result", "tensor<2x?x64xf32>")],
        {"device": "cpu", "has_destinations": True},
    ),
    "add_rows": (
        AddRowsCall,
        [("rows", "tensor<2x?x64xf32>"), ("indices", "tensor<2x?xi64>")],
        [("result", F32)],
        {"padding": -1, "device": "cpu", "has_destinations": True},
    ),
    "write_rows": (
        WriteRowsCall,
        [("target", F32), ("indices", "tensor<1xi64>"), ("rows", "tensor<1x64xf32>")],
        [("result", F32)],
        {"dim": 0, "in_place": True, "device": "cpu", "has_destinations": True},
    ),
    "norm": (
        NormCall,
        [("source", F32), ("weight", "tensor<64xf32>"), ("bias", "tensor<64xbf16>")],
        [("result", F32)],
        {"kind": "layer_norm", "epsilon": 1e-5},
    ),
    "norm for gradients": (
        NormCall,
        [("source", "tensor<2x?x64xbf16>")],
        [("result", "tensor<2x?x64xbf16>"), ("mean", "tensor<2x?x1xf32>"), ("rstd", "tensor<2x?x1xf32>")],
        {"kind": "layer_norm", "epsilon": 1e-5},
    ),
    "norm_backward": (
        NormBackwardCall,
        [("grad", F32), ("source", F32), ("mean", "tensor<8x1xf32>"), ("rstd", "tensor<8x1xf32>")],
        [("grad_source", F32), ("grad_bias", "tensor<64xbf16>")],
        {},
    ),
    "rows": (RowsCall, [("source", "tensor<2x?x64xbf16>")], [("result", "tensor<2x?xf32>")], {"function": "mean"}),
    "columns": (
        ColumnsCall,
        [("source", "tensor<2x?x64xbf16>")],
        [("result", "tensor<1x1x64xbf16>")],
        {"function": "sum", "dims": 2},
    ),
    "elementwise": (
        ElementwiseCall,
        [("in0", "tensor<8x64xf32>"), ("in1", "tensor<?x64xbf16>"), ("size", "index")],
        [("result", "tensor<?x64xf32>")],
        {
            "program": (
                "loop [s0, 64]",
                "v0 = load in0[7, d1]",
                "v1 = load in1[d0, d1]",
                "v2 = add v0 v1",
                "store v2 out[d0, d1]",
            ),
            "dense": ("in0",),
            "device": "cpu",
            "has_destinations": True,
        },
    ),
    "attention_backward": (
        AttentionBackwardCall,
        [*((name, HEADS) for name in ("grad_out", "query", "key", "value", "out")), ("logsumexp", "tensor<2x4x?xf32>")],
        [("grad_query", HEADS), ("grad_key", HEADS), ("grad_value", HEADS)],
        {"causal": True},
    ),
    "quantize": (
        QuantizeCall,
        [("source", F32)],
        [*parts("row", MX_PARTS), *parts("col", MX_PARTS | {"scales": "tensor<1x64xi8>"})],
        {"row": MX, "col": MX_COLUMNS, "role": "input"},
    ),
    "quantize by a user": (
        QuantizeCall,
        [("source", F32)],
        [("storage", "index")],
        {"col": OWN, "role": "grad_output", "layer": "up", "device": "custom"},
    ),
    "produce_quantize": (
        ProduceQuantizeCall,
        [("source", F32), ("weight", "tensor<64xf32>"), ("bias", "tensor<64xf32>"), ("scale", SCALAR)],
        parts("row", FP8_PARTS),
        {"row": DELAYED, "role": "input", "producer": "layer_norm", "epsilon": 1e-5, "device": "cpu"},
    ),
    "gemm": (
        GemmCall,
        [
            *parts("lhs", {"codes": "tensor<?x64xi8>", "scales": "tensor<?x2xi8>"}),
            *parts("rhs", MX_PARTS),
            *[("bias", "tensor<8xf32>"), ("residual", "tensor<?x8xf32>"), ("size", "index")],
        ],
        [("result", "tensor<?x8xf32>"), ("preactivation", "tensor<?x8xf32>")],
        {
            "kind": "fprop",
            "lhs": MX,
            "lhs_shape": (None, 64),
            "rhs": MX,
            "rhs_shape": (8, 64),
            "epilogue": "gelu",
            "path": "emulated",
            "device": "cuda",
            "has_destinations": True,
        },
    ),
    "gemm of batches": (
        GemmCall,
        [*parts("lhs", MX_PARTS), *parts("rhs", MX_PARTS)],
        [("result", "tensor<2x4x4xf32>")],
        {"kind": "fprop", "lhs": MX, "lhs_shape": (2, 4, 64), "rhs": MX, "rhs_shape": (2, 4, 64), "batch_dims": 1},
    ),
    "grouped_quantize": (
        GroupedQuantizeCall,
        [("source", "tensor<?x64xf32>"), ("ends", ENDS), ("scale", SCALAR)],
        parts("row", {"codes": "tensor<?xi8>", "scales": "tensor<2xf32>", "amax": "tensor<2xf32>"}),
        {"row": DELAYED, "role": "input", "groups": 2},
    ),
    # Nine rows in two groups: two blocks of 32 rows.
    "grouped_quantize of known rows": (
        GroupedQuantizeCall,
        [("source", "tensor<9x64xf32>"), ("ends", ENDS)],
        parts("col", {"codes": "tensor<576xi8>", "scales": "tensor<128xi8>"}),
        {"col": MX_COLUMNS, "role": "input", "groups": 2},
    ),
    "stored": (
        StoredCall,
        [("source", F32)],
        parts("row", {"codes": ROWS, "scales": "tensor<8x2xi8>"}),
        {"scheme": MX},
    ),
    "grouped_stored": (
        GroupedStoredCall,
        [("source", "tensor<2x8x64xf32>")],
        parts("row", {"codes": "tensor<1024xi8>", "scales": "tensor<32xi8>"}),
        {"scheme": MX, "groups": 2},
    ),
    "grouped_pack": (
        GroupedPackCall,
        parts("row", {"codes": "tensor<512xi8>", "scales": "tensor<64xi8>", "amax": "tensor<2xf32>"}),
        # As below for each of both, from multiples of 64 on.
        [("row.packed", "tensor<768xi8>")],
        {"row": TILES, "shape": (2, 8, 64), "groups": 2},
    ),
    "grouped_gemm": (
        GroupedGemmCall,
        [
            *parts("lhs", {"codes": "tensor<576xi8>", "scales": "tensor<18xi8>"}),
            *parts("rhs", {"codes": "tensor<1024xi8>", "scales": "tensor<32xi8>"}),
            ("ends", ENDS),
        ],
        [("result", "tensor<9x8xf32>")],
        {"kind": "fprop", "groups": 2, "lhs": MX, "lhs_shape": (9, 64), "rhs": MX, "rhs_shape": (2, 8, 64)},
    ),
    "grouped_gemm of plain rows": (
        GroupedGemmCall,
        [
            ("lhs", "tensor<?x64xf32>"),
            *parts("rhs", {"codes": "tensor<1024xi8>", "scales": "tensor<32xi8>"}),
            *[("ends", ENDS), ("size", "index")],
        ],
        [("result", "tensor<?x8xf32>")],
        {"kind": "fprop", "groups": 2, "lhs_shape": (None, 64), "rhs": MX, "rhs_shape": (2, 8, 64)},
    ),
    "epilogue": (
        EpilogueCall,
        [("source", F32), ("residual", F32)],
        [("result", F32)],
        {"epilogue": "none"},
    ),
    "dequantize": (
        DequantizeCall,
        parts("row", FP4_PARTS),
        [("result", "tensor<2x4x64xbf16>")],
        {"scheme": FP4, "usage": "rowwise", "shape": (2, 4, 64)},
    ),
    "transpose": (
        TransposeCall,
        parts("row", FP8_PARTS),
        parts("col", FP8_PARTS | {"codes": "tensor<64x8xi8>"}),
        {"scheme": FP8, "usage": "rowwise", "shape": (8, 64)},
    ),
    "pack": (
        PackCall,
        parts("row", FP4_PARTS),
        # One unit of 8 rows by 4 of 16 columns: 4 * 72 bytes, rounded up to 64, and an amax.
        [("row.packed", "tensor<324xi8>")],
        {"row": TILES, "shape": (8, 64)},
    ),
    "pad": (
        PadCall,
        [("row.codes", ROWS)],
        [("row.codes", "tensor<16x64xi8>")],
        {"multiples": (16, 1), "scheme": FP8, "usage": "rowwise", "shape": (8, 64)},
    ),
    "pad of a plain tensor": (PadCall, [("source", F32)], [("result", F32)], {"multiples": (8, 1)}),
    "unpad": (UnpadCall, [("source", F32), ("size", "index")], [("result", "tensor<?x64xf32>")], {}),
    "turn": (
        TurnCall,
        [("col.codes", ROWS)],
        [("col.codes", "tensor<64x8xi8>")],
        {"scheme": MX_COLUMNS, "usage": "columnwise", "shape": (8, 64)},
    ),
    "swizzle": (
        SwizzleCall,
        [("row.scales", "tensor<8x2xi8>")],
        [("row.scales", "tensor<128x4xi8>")],
        {"scheme": MX, "usage": "rowwise", "shape": (8, 64)},
    ),
    "amax": (AmaxCall, [("source", F32)], [("result", "tensor<8xf32>")], {"per_row": True}),
    "update_scale": (
        UpdateScaleCall,
        [("scale", SCALAR), ("history", "tensor<4xf32>"), ("amax", SCALAR)],
        [("new_scale", SCALAR), ("new_history", "tensor<4xf32>")],
        {"scheme": DELAYED, "margin": -1, "algorithm": "custom", "reduce": True, "layer": "up"},
    ),
    "measure_quantize": (
        MeasureQuantizeCall,
        [*parts("row", {"codes": "tensor<?x64xi8>", "scales": "tensor<?x2xi8>"}), ("source", F32), ("size", "index")],
        [("result", "tensor<545xf64>")],
        {"scheme": MX, "usage": "rowwise", "shape": (None, 64)},
    ),
    "measure_quantize of groups": (
        MeasureQuantizeCall,
        [*parts("col", {"codes": "tensor<576xi8>", "scales": "tensor<128xi8>"}), ("source", F32), ("ends", ENDS)],
        [("result", "tensor<545xf64>")],
        {"scheme": MX_COLUMNS, "usage": "columnwise", "shape": (9, 64), "groups": 2},
    ),
    "measure_product": (
        MeasureProductCall,
        [("computed", F32), ("product", F32), ("bias", "tensor<64xf32>")],
        [("result", "tensor<8xf64>")],
        {},
    ),
    "measure_influence": (
        MeasureInfluenceCall,
        [("computed", F32), ("product", F32), ("gradient", F32)],
        [("result", "tensor<2xf64>")],
        {},
    ),
    "switch": (SwitchCall, [("on", SCALAR), ("quantized", F32), ("exact", F32)], [("result", F32)], {}),
    "count_saturated": (
        CountSaturatedCall,
        [("source", F32), ("scale", SCALAR), ("count", "tensor<i64>"), ("ends", "tensor<4xi32>")],
        [("result", "tensor<i64>")],
        {"scheme": replace(FP8, source="static")},
    ),
    "advance_rng": (AdvanceRngCall, [("rng", "tensor<2xi64>")], [("result", "tensor<2xi64>")], {}),
}


def make_call(case: str) -> KernelCall:
    """One of the calls of this test, in the current context."""
    kind, operands, results, settings = CASES[case]
    slots = [tuple(Slot(name, ir.Type.parse(type_)) for name, type_ in pairs) for pairs in (operands, results)]
    return kind(operands=slots[0], results=slots[1], **settings)


def test_every_operation_has_a_case():
    assert {kind.OPERATION for kind, *_ in CASES.values()} == set(OPERATIONS)


@pytest.mark.parametrize("case", CASES)
def test_a_call_is_what_its_declaration_says(case):
    with make_context() as context, ir.Location.unknown():
        call = make_call(case)
        types = ", ".join(str(slot.type) for slot in call.operands)
        module = ir.Module.parse(f'func.func @f() {{ "func.return"() : () -> () }}\nfunc.func private @g({types})')
        first = module.body.operations[0].regions[0].blocks[0].operations[0]
        values = [
            ir.Operation.create(
                "builtin.unrealized_conversion_cast", results=[slot.type], ip=ir.InsertionPoint(first)
            ).result
            for slot in call.operands
        ]
        with ir.InsertionPoint(first):
            declarations = Declarations(module.operation)
            for _ in range(2):
                made = declarations.call(call, values)
        assert [value.type for value in made] == [slot.type for slot in call.results]
        symbol = f"{call.OPERATION}_0"
        assert calls_of(module.operation) == {symbol: call}
        assert calls_of(ir.Module.parse(str(module), context).operation) == {symbol: call}


@pytest.mark.parametrize(
    ("case", "changed", "constraint"),
    [
        ("norm for gradients", {"mean": "tensor<2x?xf32>"}, "norm_c3"),
        ("norm for gradients", {"rstd": "tensor<2x?x1xbf16>"}, "norm_c3"),
        ("norm for gradients", {"mean": "tensor<2x?x1xf64>", "rstd": "tensor<2x?x1xf64>"}, "norm_c3"),
        ("norm", {"weight": "tensor<4xf32>"}, "norm_c2"),
        ("norm", {"bias": "tensor<1xf32>"}, "norm_c2"),
        ("norm_backward", {"grad": "tensor<8x32xf32>"}, "norm_backward_c1"),
        ("norm_backward", {"grad_source": "tensor<8x64xf64>"}, "norm_backward_c1"),
        ("norm_backward", {"mean": "tensor<8xf32>"}, "norm_backward_c2"),
        ("norm_backward", {"grad_bias": "tensor<8x64xf32>"}, "norm_backward_c3"),
        ("norm_backward", {"grad_bias": "tensor<7xf32>"}, "norm_backward_c3"),
        ("positions", {"size": "f64"}, "positions_c1"),
        ("positions", {"size": "!torch.float"}, "positions_c1"),
        ("add_rows", {"result": "tensor<8x64xbf16>"}, "add_rows_c1"),
        ("add_rows", {"result": "tensor<?x64xf32>"}, "add_rows_c1"),
        ("add_rows", {"result": "tensor<8x32xf32>"}, "add_rows_c1"),
        ("add_rows", {"indices": "tensor<2xi64>"}, "add_rows_c1"),
        ("add_rows", {"indices": "tensor<2x?xf32>"}, "add_rows_c1"),
    ],
)
def test_types_that_do_not_fit_are_refused(case, changed, constraint):
    with make_context():
        call = make_call(case)
        call.check()
        slots = [
            tuple(Slot(slot.name, ir.Type.parse(changed[slot.name])) if slot.name in changed else slot for slot in own)
            for own in (call.operands, call.results)
        ]
        with pytest.raises(ConstraintError, match=rf"\[{constraint}\]"):
            replace(call, operands=slots[0], results=slots[1]).check()


def test_an_rms_norm_keeps_nothing_for_gradients():
    with make_context(), pytest.raises(ConstraintError, match="norm_c3"):
        replace(make_call("norm for gradients"), kind="rms_norm").check()


@pytest.mark.parametrize(("source", "weight"), [("8x?", "4"), ("8x64", "?"), ("8x?", "?")])
def test_lengths_that_are_not_known_may_be_equal(source, weight):
    with make_context():
        whole, vector = ir.Type.parse(f"tensor<{source}xf32>"), ir.Type.parse(f"tensor<{weight}xf32>")
        operands, results = (Slot("source", whole), Slot("weight", vector)), (Slot("result", whole),)
        NormCall(operands=operands, results=results, kind="rms_norm", epsilon=1e-5).check()


def test_positions_are_those_of_operands_and_then_results():
    with make_context():
        call = make_call("gemm")
        assert isinstance(call, GemmCall)
        assert (call.left.copy.codes, call.left.copy.scales, call.left.copy.amax) == (0, 1, None)
        assert (call.right.copy.codes, call.right.copy.scales) == (2, 3)
        assert (call.bias, call.residual) == (4, 5)
        assert list(range(9))[call.sizes] == [6]
        assert (call.out, call.preactivation) == (7, 8)
        assert call.part_positions == {0, 1, 2, 3}

        made = make_call("quantize")
        assert isinstance(made, QuantizeCall)
        row, col = made.copies
        assert row is not None
        assert col is not None
        assert (row.codes, row.scales, col.codes, col.scales) == (1, 2, 3, 4)
        assert (row.columnwise, col.columnwise) == (False, True)
        assert made.checked_operands == (0,)


def test_kernels_take_dense_tensors_by_their_addresses():
    with make_context():
        call = make_call("elementwise")
        assert isinstance(call, ElementwiseCall)
        assert call.part_positions == {0}
        known = replace(
            call,
            operands=call.operands[:1],
            results=(Slot("result", ir.Type.parse("tensor<64xf32>")),),
            program=("loop [64]", "v0 = load in0[7, d0]", "store v0 out[d0]"),
        )
        known.check()
        assert known.part_positions == {0, 1}
        message = "there must be 0 sizes"
        with pytest.raises(ConstraintError, match=message):
            replace(known, operands=(*call.operands[:1], *call.operands[2:])).check()


@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
def test_which_copies_a_gemm_reads(kind):
    with make_context():
        call = replace(make_call("gemm of batches"), kind=kind, batch_dims=0)
        assert isinstance(call, GemmCall)
        assert (call.left.copy.columnwise, call.right.copy.columnwise) == (kind == "wgrad", kind != "fprop")


@pytest.mark.parametrize(
    ("case", "changes", "constraint"),
    [
        ("attention", {"cached": CACHED}, "call_c3"),
        ("attention over a cache", {"cached": MX}, "attention_c4"),
        ("attention over a cache", {"cached": CACHED_STATIC}, "attention_c4"),
        ("attention over a cache and new tokens", {"cached": CACHED}, "call_c3"),
        ("quantize", {"results": ()}, "call_c3"),
        ("quantize", {"device": "custom"}, "call_c4"),
        ("quantize by a user", {"device": "cpu"}, "call_c4"),
        ("quantize", {"row": None, "col": None}, "call_c2"),
        ("gemm", {"lhs": OWN}, "call_c2"),
        ("gemm", {"lhs_shape": (None, 65)}, "call_c5"),
        ("gemm", {"batch_dims": -1}, "call_c2"),
        ("produce_quantize", {"producer": "rms_norm"}, "call_c3"),
        ("dequantize", {"scheme": TILES, "usage": "columnwise"}, "call_c3"),
        ("transpose", {"shape": (8, 32)}, "call_c5"),
        ("elementwise", {"program": ("loop [4", "store v0 out[d0]")}, "elementwise_c1"),
        (
            "elementwise",
            {"program": ("loop [s0, 64]", "v0 = load in0[8, d1]", "store v0 out[d0, d1]")},
            "elementwise_c2",
        ),
        ("elementwise", {"dense": ("in1",)}, "elementwise_c3"),
        ("elementwise", {"dense": ("in0", "in0")}, "elementwise_c3"),
        ("elementwise", {"results": ()}, "call_c3"),
        ("block", {"number": -1}, "block_c1"),
        ("positions", {"results": ()}, "call_c3"),
        ("pack", {"row": MX}, "call_c2"),
        ("pad", {"multiples": (16,)}, "call_c2"),
    ],
)
def test_what_does_not_fit_is_refused(case, changes, constraint):
    with make_context():
        call = make_call(case)
        call.check()
        with pytest.raises(ConstraintError) as caught:
            replace(call, **changes).check()
    assert caught.value.constraint == constraint
