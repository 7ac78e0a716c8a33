"""Checkpoints of transformers' fbgemm_fp8."""

import pytest
import torch
from folders import (
    assert_loaded,
    assert_runs,
    fp8_rows,
    fp8_tensor,
    rounded_to_e4m3_rows,
    small_llama,
    write_folder,
    write_quantized,
)

from steelyard.checkpoints.catalog import read_catalog
from steelyard.checkpoints.methods.choice import read_plan
from steelyard.errors import CheckpointError
from steelyard.recipes import Float8RowScaling

METHOD = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}


def by_rows(layer: str, plain: torch.Tensor):
    """A weight with one scale per row."""
    codes, scales, values = fp8_rows(plain)
    return {"weight": fp8_tensor(codes), "weight_scale": torch.from_numpy(scales)}, values


def test_rows_decode_to_code_times_scale(tmp_path):
    values = write_quantized(tmp_path, small_llama(), METHOD, by_rows)
    assert_loaded(tmp_path, values)
    inputs = read_plan(read_catalog(tmp_path)).inputs
    assert {(each.recipe, each.bound) for each in inputs.values()} == {(Float8RowScaling(fp8_format="E4M3"), 1200.0)}


def test_the_amax_of_a_row_of_inputs_counts_up_to_the_bound(tmp_path):
    bound = 1.5
    model = small_llama()
    write_quantized(tmp_path, model, {**METHOD, "activation_scale_ub": bound}, by_rows)
    net = assert_runs(tmp_path, model, rounded_to_e4m3_rows(bound))
    assert str(net.explain()).count("e4m3 row  e4m3 row") == 7


@pytest.mark.parametrize("bound", [0, -1.0, "1200", True, None, float("inf"), 10**400])
def test_a_bound_that_is_no_positive_number_is_refused(tmp_path, bound):
    write_folder(tmp_path, {"quantization_config": {**METHOD, "activation_scale_ub": bound}}, {"a": torch.ones(1)})
    with pytest.raises(CheckpointError, match=r"activation_scale_ub in config\.json must be a positive number"):
        read_plan(read_catalog(tmp_path))


@pytest.mark.parametrize(("kept", "missing"), [("weight", "weight_scale"), ("weight_scale", "weight")])
def test_a_layer_needs_codes_and_scales(tmp_path, kept, missing):
    parts, _ = by_rows("a", torch.randn(8, 16))
    write_folder(tmp_path, {"quantization_config": METHOD}, {f"a.{kept}": parts[kept]})
    with pytest.raises(CheckpointError, match=f"must have a tensor a.{missing},"):
        read_plan(read_catalog(tmp_path))
