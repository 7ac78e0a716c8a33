"""Checkpoints that are written by hand load to the values that their producers' rules give."""

import numpy
import pytest
import small_folders
import torch

from steelyard.checkpoints.catalog import read_catalog
from steelyard.checkpoints.loading import load_model
from steelyard.checkpoints.methods.choice import read_plan
from steelyard.tensor.quantized_tensor import QuantizedTensor


@pytest.mark.parametrize("kind", small_folders.KINDS, ids=lambda kind: kind.name)
def test_weights_are_what_the_files_mean(kind, tmp_path):
    small_folders.write_folder(tmp_path, kind)
    catalog = read_catalog(tmp_path)
    plan = read_plan(catalog)
    model = load_model(catalog, plan)
    expected = small_folders.expected_weights(kind, small_folders.tensors_of(kind))
    assert len(plan.weights) == (0 if kind.quantization is None else len(small_folders.LAYERS))
    assert {name for name, _ in model.named_parameters()} == set(expected)
    for name, parameter in model.named_parameters():
        found = parameter.dequantize() if isinstance(parameter, QuantizedTensor) else parameter
        assert found.dtype == torch.float32
        numpy.testing.assert_array_equal(found.detach().numpy(), expected[name].astype(numpy.float32), err_msg=name)
