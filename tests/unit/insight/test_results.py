"""Results as JSON: they come back as they were, and what is not a result is refused."""

import json
import math
from dataclasses import fields, replace
from pathlib import Path

import pytest

from steelyard.errors import FileError, ResultError
from steelyard.insight.results import (
    Attribution,
    GemmMeasurement,
    GradientMeasurement,
    LayerAttribution,
    Measurement,
    OperandMeasurement,
    OutputError,
)

OPERAND = OperandMeasurement(
    role="input",
    usage="row",
    scheme="e4m3 1x32",
    elements=64,
    snr_db=math.inf,
    relative_error=0.0,
    saturated_share=0.0,
    flushed_share=0.25,
    unused_codes_share=0.9,
    code_histogram=[64, *[0] * 255],
    scale_histogram=[[0.0078125, 2.0]],
    amax=3.5,
    amax_history=[3.5, -math.inf],
    nan_count=0,
    inf_count=1,
)
GRADIENT = GradientMeasurement(cosine=0.99, relative_error=0.1, norm=2.0, underflow_share=0.0)
GEMM = GemmMeasurement(
    layer="blocks.0.up",
    kind="wgrad",
    source_line="model.py:12",
    graph=1,
    calls=2,
    shape=[8, 16, 32],
    flops=8192,
    kernel="cpu mxfp8 gemm",
    formats="e4m3 1x32 * e4m3 1x32",
    reason="",
    operands=[OPERAND],
    relative_error=None,
    snr_db=12.5,
    max_error=0.5,
    gradient=GRADIENT,
)
OUTPUT = OutputError(0.1, 20.0, None, 1.5, 1.0, 0.5)
MEASUREMENT = Measurement("GPT", "mxfp8", 3, [GEMM, replace(GEMM, gradient=None, number=1)], OUTPUT)
ATTRIBUTION = Attribution("nvfp4", 2, [LayerAttribution("up", 0.1, 0.2, None)], 0.3, None, "kl_divergence")


@pytest.mark.parametrize("result", [MEASUREMENT, ATTRIBUTION, replace(MEASUREMENT, output=None)])
def test_results_come_back_from_json(result):
    assert type(result).from_json(result.to_json()) == result
    assert type(result).from_dict(result.to_dict()) == result


def test_a_nan_comes_back_from_json():
    read = OperandMeasurement.from_json(replace(OPERAND, amax=math.nan).to_json())
    assert math.isnan(read.amax)


def test_json_holds_each_field_and_no_word_that_json_lacks():
    values = json.loads(MEASUREMENT.to_json(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert values["version"] == 1
    assert list(values["rows"][0]) == [each.name for each in fields(GemmMeasurement)]
    assert values["rows"][0]["operands"][0]["snr_db"] == "inf"
    assert values["rows"][0]["operands"][0]["amax_history"] == [3.5, "-inf"]


def test_results_come_back_from_files(tmp_path: Path):
    path = MEASUREMENT.save(tmp_path / "measured.json")
    assert Measurement.load(path) == MEASUREMENT


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, r"Measurement\.version must be 1, got 2; measure again"),
        ({"steps": "3"}, r"Measurement\.steps must be int, got '3'"),
        ({"steps": True}, r"Measurement\.steps must be int, got True"),
        ({"rows": None}, r"Measurement\.rows must be list, got None"),
        ({"rows": [{}]}, r"Measurement\.rows\[0\] must have the fields calls, .*, got no field calls"),
        ({"colour": 1}, r"Measurement must have the fields .*, got a field colour"),
    ],
)
def test_other_values_are_refused(change: dict, message: str):
    with pytest.raises(ResultError, match=message):
        Measurement.from_dict(MEASUREMENT.to_dict() | change)


def test_a_missing_field_is_refused():
    values = MEASUREMENT.to_dict()
    del values["recipe"]
    with pytest.raises(ResultError, match="got no field recipe"):
        Measurement.from_dict(values)


def test_text_that_is_no_json_is_refused():
    with pytest.raises(ResultError, match="Attribution must be JSON text"):
        Attribution.from_json("{")


def test_a_file_that_is_missing_is_refused(tmp_path: Path):
    with pytest.raises(FileError, match=r"nothing\.json cannot be read"):
        Measurement.load(tmp_path / "nothing.json")
