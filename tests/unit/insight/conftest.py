"""A report made by hand."""

import pytest

from steelyard.insight.report import (
    HeldBytes,
    KernelTime,
    MemoryUse,
    Program,
    Report,
    ReportRow,
    SharedLayer,
    Shares,
    StageText,
    Timing,
)
from steelyard.insight.results import GemmMeasurement, OperandMeasurement, OutputError


def make_operand(role: str, *, saturated: float = 0.0, flushed: float = 0.0, nans: int = 0) -> OperandMeasurement:
    """An operand in MXFP8, of 64 values that all have the code of 1."""
    codes = [0] * 256
    codes[0x38] = 64
    return OperandMeasurement(
        role,
        "row",
        "#mxfp8_1x32",
        64,
        30.0,
        0.03,
        saturated,
        flushed,
        0.99,
        codes,
        [[0.5, 2]],
        1.5,
        [1.5, 1.25],
        nans,
        0,
    )


def make_row(layer: str, error: float | None, *, reason: str = "", **operand: float) -> ReportRow:
    """A row of a GEMM of 8 x 16 x 32; without an error, nothing was measured."""
    operands = [make_operand("input", **operand), make_operand("weight")]
    measured = GemmMeasurement(
        layer,
        "fprop",
        "model.py:3",
        0,
        2,
        [8, 16, 32],
        8192,
        "cpu mx gemm",
        "e4m3 1x32",
        reason,
        operands,
        error,
        30.0,
        0.5,
        None,
    )
    return ReportRow(
        layer=layer,
        kind="fprop",
        sizes=["8", "16", "32"],
        lhs="f32" if reason else "e4m3 1x32",
        rhs="f32" if reason else "e4m3 1x32",
        kernel="torch" if reason else "cpu mx gemm",
        padding="",
        producer="",
        epilogue="bias",
        reason=reason,
        weight=f"{layer}.weight",
        flops=8192,
        is_quantized=not reason,
        source="model.py:3",
        code="return self.layer(x)",
        number=0,
        measured=None if error is None else measured,
    )


def make_report(*rows: ReportRow) -> Report:
    """A report of some rows."""
    layers = [row.layer for row in rows]
    text = [f'  %{number} = scaled.gemm fprop %x, %w at "{layer}"' for number, layer in enumerate(layers)]
    stages = [
        StageText(name, ["module {", *text, "}"], [-1, *range(len(layers)), -1]) for name in ("raised", "lowered")
    ]
    quantized = sum(row.flops for row in rows if row.is_quantized)
    return Report(
        model="Net",
        recipe="mxfp8",
        target="cpu",
        steelyard="0.1.0",
        steps=2,
        rows=list(rows),
        notes=["a note"],
        shares=Shares(sum(row.flops for row in rows), quantized, 4096, 2048),
        output=OutputError(0.04, 28.0, 0.001, 2.5, 2.25, 0.25),
        attribution=None,
        memory=MemoryUse(
            [HeldBytes("parameters", 4096)], 2600, 4096, ["gemm_0"] * len(rows), layers, [512] * len(rows)
        ),
        timing=Timing(
            0.001, 0.002, 3, 1, [KernelTime("cpu mx gemm fprop 8x16x32", layer, 1, 0.0004) for layer in layers]
        ),
        program=Program(layers, [SharedLayer("twin", layers[0])] if layers else [], stages),
    )


@pytest.fixture
def row():
    """Makes a row."""
    return make_row


@pytest.fixture
def report_of():
    """Makes a report of rows."""
    return make_report
