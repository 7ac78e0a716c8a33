"""Checkpoints that are written by hand load to the values that their producers' rules give."""

from dataclasses import replace

import numpy
import pytest
import small_folders
import small_gguf
import torch
from published import compressed_values, modelopt_values

from steelyard.checkpoints.gguf_catalog import open_catalog
from steelyard.checkpoints.loading import load_model
from steelyard.checkpoints.methods.choice import read_plan
from steelyard.tensor.quantized_tensor import QuantizedTensor


def assert_loads(folder, expected, quantized):
    """The model in a folder must have these parameters, and keep these quantized."""
    catalog = open_catalog(folder)
    parameters = dict(load_model(catalog, read_plan(catalog)).named_parameters())
    assert set(parameters) == set(expected)
    assert {name for name, each in parameters.items() if isinstance(each, QuantizedTensor)} == quantized
    for name, parameter in parameters.items():
        found = parameter.dequantize() if name in quantized else parameter.detach()
        assert found.dtype == torch.float32
        numpy.testing.assert_array_equal(found.numpy(), expected[name].astype(numpy.float32), err_msg=name)


@pytest.mark.parametrize("kind", small_folders.KINDS, ids=lambda kind: kind.name)
def test_weights_are_what_the_files_mean(kind, tmp_path):
    small_folders.write_folder(tmp_path, kind)
    expected = small_folders.expected_weights(kind, small_folders.tensors_of(kind))
    assert_loads(tmp_path, expected, kind.quantized)


@pytest.mark.parametrize("kind", small_gguf.KINDS, ids=lambda kind: kind.name)
def test_gguf_files_hold_what_their_own_package_reads(kind, tmp_path):
    small_gguf.write_folder(tmp_path, kind)
    assert_loads(tmp_path, small_gguf.expected_in(kind, tmp_path), kind.quantized)


READERS = {"compressed-tensors": compressed_values, "modelopt": modelopt_values}
NOT_READ = ("modelopt-fp8-tiles", "modelopt-mixed")
"""Tiles that are cut off, and formats per layer."""
READ = [
    kind
    for kind in small_folders.KINDS
    if kind.quantization is not None and kind.quantization["quant_method"] in READERS and kind.name not in NOT_READ
]


@pytest.mark.parametrize("kind", READ, ids=lambda kind: kind.name)
def test_weights_are_what_their_producers_read(kind, tmp_path):
    small_folders.write_folder(tmp_path, replace(kind, shards=1))
    decoded = small_folders.decoded_weights(kind, small_folders.tensors_of(kind))
    values = READERS[kind.quantization["quant_method"]](tmp_path)
    assert set(values) == {*kind.model.stacks, *(f"{layer}.weight" for layer in kind.model.layers)}
    for name, value in values.items():
        assert torch.equal(value, torch.from_numpy(decoded[name]).to(value.dtype)), name
