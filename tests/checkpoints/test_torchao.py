"""Checkpoints of torchao: made by hand, and by torchao itself where it is installed."""

import importlib
import json

import numpy as np
import pytest
import torch
from folders import (
    assert_loaded,
    assert_runs,
    e4m3,
    fp8_rows,
    fp8_tensor,
    from_e4m3,
    mxfp4,
    mxfp8,
    nvfp4,
    rounded_to_e4m3,
    rounded_to_mxfp8,
    small_llama,
    write_folder,
    write_quantized,
)

from steelyard.checkpoints.catalog import read_catalog
from steelyard.checkpoints.loading import load_model
from steelyard.checkpoints.methods.choice import read_plan
from steelyard.checkpoints.tensors import read_parts, stored_parts
from steelyard.errors import CheckpointError
from steelyard.recipes import Float8RowScaling, MXFP4BlockScaling, MXFP8BlockScaling, NVFP4BlockScaling

METHOD = {"quant_method": "torchao", "quant_type": {"default": {"_type": "Float8WeightOnlyConfig"}}}
CHOICES = {"floor": "FLOOR", "rceil": "RCEIL"}


def object_of(kind: str, **data):
    """An object as torchao writes it."""
    return {"_type": kind, "_data": data}


def dtype_of(name: str):
    return {"_type": "torch.dtype", "_data": name}


def mx_inputs(element: str, rule: str):
    mode = {"_type": "ScaleCalculationMode", "_data": CHOICES[rule]}
    return object_of("QuantizeTensorToMXKwargs", elem_dtype=dtype_of(element), block_size=32, scaling_mode=mode)


def swizzled(scales: np.ndarray) -> np.ndarray:
    """Bytes of scales in the order that GPU GEMMs read, by the place of each; the rest is zero."""
    rows, columns = scales.shape
    tiles_down, tiles_across = -(-rows // 128), -(-columns // 4)
    placed = np.zeros(tiles_down * tiles_across * 512, np.uint8)
    for row in range(rows):
        for column in range(columns):
            tile = row // 128 * tiles_across + column // 4
            placed[tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4] = scales[row, column]
    return placed.reshape(tiles_down * 32, tiles_across * 16)


def write_described(folder, model, about, quantize):
    """Write a model whose weights torchao would describe so; `about` may depend on the shape of a weight."""
    shapes = {name: list(each.shape) for name, each in model.state_dict().items() if name.endswith("_proj.weight")}
    described = {name: json.dumps(about(shape)) for name, shape in shapes.items()}
    described["tensor_names"] = json.dumps(list(shapes))
    return write_quantized(folder, model, METHOD, quantize, described, prefix="_weight_")


def float8_by_rows(layer: str, plain: torch.Tensor):
    codes, scales, values = fp8_rows(plain)
    return {"qdata": fp8_tensor(codes), "scale": torch.from_numpy(scales)}, values


def float8_per_tensor(layer: str, plain: torch.Tensor):
    scale = np.float32(np.abs(plain.numpy()).max() / 448)
    codes = e4m3(plain.numpy() / scale)
    return {"qdata": fp8_tensor(codes), "scale": torch.full((1, 1), scale)}, from_e4m3(codes) * scale


def test_float8_by_rows_with_inputs_by_rows(tmp_path):
    inputs = object_of("QuantizeTensorToFloat8Kwargs", granularity=object_of("PerRow", dim=-1))

    def about(shape):
        return object_of("Float8Tensor", block_size=[1, shape[1]], act_quant_kwargs=inputs)

    model = small_llama()
    assert_loaded(tmp_path, write_described(tmp_path, model, about, float8_by_rows))
    found = {each.recipe for each in read_plan(read_catalog(tmp_path)).inputs.values()}
    assert found == {Float8RowScaling(fp8_format="E4M3")}
    assert_runs(tmp_path, model, rounded_to_e4m3((1, 0)))


def test_float8_per_tensor_with_plain_inputs(tmp_path):
    model = small_llama()
    values = write_described(
        tmp_path, model, lambda shape: object_of("Float8Tensor", block_size=shape), float8_per_tensor
    )
    assert_loaded(tmp_path, values)
    assert_runs(tmp_path, model, None)


def test_mxfp8_with_swizzled_scales(tmp_path):
    about = object_of(
        "MXTensor",
        elem_dtype=dtype_of("float8_e4m3fn"),
        block_size=32,
        is_swizzled_scales=True,
        act_quant_kwargs=mx_inputs("float8_e4m3fn", "rceil"),
    )

    def quantize(layer: str, plain: torch.Tensor):
        codes, scales, values = mxfp8(plain)
        return {
            "qdata": fp8_tensor(codes),
            "scale": torch.from_numpy(swizzled(scales)).view(torch.float8_e8m0fnu),
        }, values

    model = small_llama()
    assert_loaded(tmp_path, write_described(tmp_path, model, lambda shape: about, quantize))
    assert_runs(tmp_path, model, rounded_to_mxfp8)


def test_mxfp4_has_the_rule_of_its_inputs(tmp_path):
    codes, scales, _ = mxfp4(torch.randn(16, 64))
    about = object_of(
        "MXTensor",
        elem_dtype=dtype_of("float4_e2m1fn_x2"),
        block_size=32,
        is_swizzled_scales=False,
        act_quant_kwargs=mx_inputs("float4_e2m1fn_x2", "floor"),
    )
    tensors = {"a._weight_qdata": torch.from_numpy(codes)}
    tensors["a._weight_scale"] = torch.from_numpy(scales).view(torch.float8_e8m0fnu)
    write_folder(tmp_path, {"quantization_config": METHOD}, tensors, {"a.weight": json.dumps(about)})
    plan = read_plan(read_catalog(tmp_path))
    parts = read_parts(plan.weights["a.weight"])
    np.testing.assert_array_equal(parts.codes.numpy(), codes)
    np.testing.assert_array_equal(parts.scales.numpy(), scales)
    assert plan.inputs["a"].recipe == MXFP4BlockScaling(scale_rule="floor")


@pytest.mark.every(2)
@pytest.mark.parametrize("second", [np.float32(3 / 4096), None], ids=["second level", "none"])
def test_nvfp4_decodes_to_code_times_both_scales(tmp_path, second):
    about = object_of("NVFP4Tensor", block_size=16, is_swizzled_scales=True, act_quant_kwargs=None)

    def quantize(layer: str, plain: torch.Tensor):
        codes, scales, values = nvfp4(plain, np.float32(1) if second is None else second)
        placed = torch.from_numpy(swizzled(scales)).view(torch.float8_e4m3fn)
        parts = {"qdata": torch.from_numpy(codes), "scale": placed}
        if second is not None:
            parts["per_tensor_scale"] = torch.tensor(second)
        return parts, values

    model = small_llama()
    assert_loaded(tmp_path, write_described(tmp_path, model, lambda shape: about, quantize))
    assert_runs(tmp_path, model, None)


def test_inputs_of_nvfp4(tmp_path):
    codes, scales, _ = nvfp4(torch.randn(16, 64), np.float32(0.01))
    tensors = {
        "a._weight_qdata": torch.from_numpy(codes),
        "a._weight_scale": torch.from_numpy(scales).view(torch.float8_e4m3fn),
        "a._weight_act_per_tensor_scale": torch.tensor(0.5),
    }
    inputs = object_of("QuantizeTensorToNVFP4Kwargs", block_size=16, use_dynamic_per_tensor_scale=False)
    about = object_of("NVFP4Tensor", block_size=16, is_swizzled_scales=False, act_quant_kwargs=inputs)
    write_folder(tmp_path, {"quantization_config": METHOD}, tensors, {"a.weight": json.dumps(about)})
    found = read_plan(read_catalog(tmp_path)).inputs["a"]
    assert found.recipe == NVFP4BlockScaling(weight_tiles=False)
    assert found.scale.name == "a._weight_act_per_tensor_scale"
    del tensors["a._weight_act_per_tensor_scale"]
    write_folder(tmp_path, {"quantization_config": METHOD}, tensors, {"a.weight": json.dumps(about)})
    with pytest.raises(CheckpointError, match=r"inputs of a\.weight without a scale per tensor"):
        read_plan(read_catalog(tmp_path))


@pytest.mark.parametrize("shape", [(16, 32), (192, 160), (128, 256)])
def test_swizzled_scales_are_written_byte_for_byte(tmp_path, shape):
    codes, scales, _ = nvfp4(torch.randn(shape), np.float32(0.01))
    tensors = {
        "a._weight_qdata": torch.from_numpy(codes),
        "a._weight_scale": torch.from_numpy(swizzled(scales)).view(torch.float8_e4m3fn),
        "a._weight_per_tensor_scale": torch.tensor(0.01),
    }
    about = object_of("NVFP4Tensor", block_size=16, is_swizzled_scales=True, act_quant_kwargs=None)
    write_folder(tmp_path, {"quantization_config": METHOD}, tensors, {"a.weight": json.dumps(about)})
    weight = read_plan(read_catalog(tmp_path)).weights["a.weight"]
    parts = read_parts(weight)
    np.testing.assert_array_equal(parts.scales.numpy(), scales)
    stored = stored_parts(weight, parts)
    assert set(stored) == set(tensors)
    for name, tensor in stored.items():
        assert tensor.dtype == tensors[name].dtype
        assert torch.equal(tensor.reshape(-1).view(torch.uint8), tensors[name].reshape(-1).view(torch.uint8))


@pytest.mark.parametrize(
    ("about", "message"),
    [
        (object_of("Int4Tensor", block_size=[1, 128]), r"a\.weight as 'Int4Tensor'.*quantize it to Float8Tensor"),
        (object_of("Float8Tensor", block_size=[1, 16]), r"blocks of \[1, 16\]"),
        (object_of("MXTensor", elem_dtype=dtype_of("float8_e5m2"), block_size=32), "in 'float8_e5m2' by 32"),
        (object_of("MXTensor", elem_dtype=dtype_of("float8_e4m3fn"), block_size=16), "in 'float8_e4m3fn' by 16"),
        (object_of("NVFP4Tensor", block_size=32), "blocks of 32"),
        (
            object_of(
                "Float8Tensor", block_size=[1, 64], act_quant_kwargs=object_of("", granularity=object_of("PerAxis"))
            ),
            r"inputs of a\.weight by 'PerAxis'",
        ),
        (
            object_of(
                "Float8Tensor",
                block_size=[1, 64],
                act_quant_kwargs=object_of("", granularity=object_of("PerRow"), hp_value_ub="big"),
            ),
            r"hp_value_ub of a\.weight must be a positive number, got 'big'",
        ),
        (
            object_of("Float8Tensor", block_size=[1, 64], act_quant_kwargs=object_of("", granularity={"_type": [1]})),
            r"inputs of a\.weight by '\[1\]'",
        ),
        (
            object_of(
                "Float8Tensor",
                block_size=[1, 64],
                act_quant_kwargs=object_of("", granularity=object_of("PerRow"), hp_value_ub=10**400),
            ),
            r"hp_value_ub of a\.weight must be a positive number",
        ),
        (object_of("MXTensor", elem_dtype=dtype_of(["float8_e4m3fn"]), block_size=32), r"in .*float8_e4m3fn.* by 32"),
        ({"_type": "Float8Tensor"}, "must say what a._weight_qdata is"),
        ([], "must say what a._weight_qdata is"),
    ],
)
def test_what_cannot_be_run_is_refused(tmp_path, about, message):
    tensors = {"a._weight_qdata": torch.zeros(32, 64, dtype=torch.uint8).view(torch.float8_e4m3fn)}
    tensors["a._weight_scale"] = torch.ones(32, 1)
    write_folder(tmp_path, {"quantization_config": METHOD}, tensors, {"a.weight": json.dumps(about)})
    with pytest.raises(CheckpointError, match=message):
        read_plan(read_catalog(tmp_path))


@pytest.mark.parametrize("metadata", [{}, {"a.weight": "[" * 100_000}, {"a.weight": "no JSON"}])
def test_codes_that_nothing_describes_are_refused(tmp_path, metadata):
    write_folder(tmp_path, {"quantization_config": METHOD}, {"a._weight_qdata": torch.zeros(32, 64)}, metadata)
    with pytest.raises(CheckpointError, match=r"metadata of model\.safetensors must say what a\._weight_qdata is"):
        read_plan(read_catalog(tmp_path))


@pytest.mark.parametrize("kind", ["float8 by rows", "float8 per tensor", "mxfp8", "mxfp4", "nvfp4"])
def test_files_of_torchao_itself(tmp_path, kind):
    pytest.importorskip("torchao")
    quantization = importlib.import_module("torchao.quantization")
    mx = importlib.import_module("torchao.prototype.mx_formats.inference_workflow")
    common = importlib.import_module("torchao.quantization.quantize_.common")
    support = importlib.import_module("torchao.prototype.safetensors.safetensors_support")
    model = small_llama().to(torch.bfloat16)
    emulated = {"kernel_preference": common.KernelPreference.EMULATED}
    fp4 = {"activation_dtype": torch.float4_e2m1fn_x2, "weight_dtype": torch.float4_e2m1fn_x2}
    configs = {
        "float8 by rows": lambda: quantization.Float8WeightOnlyConfig(),
        "mxfp8": lambda: mx.MXDynamicActivationMXWeightConfig(**emulated),
        "mxfp4": lambda: mx.MXDynamicActivationMXWeightConfig(**fp4, **emulated),
        "nvfp4": lambda: mx.NVFP4WeightOnlyConfig(),
    }
    if kind in configs:
        quantization.quantize_(model, configs[kind](), lambda module, name: name.endswith("_proj"))
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if kind == "float8 per tensor":
        layers = [name for name in state if name.endswith("_proj.weight")]
        make = quantization.Float8Tensor.from_hp
        state.update({name: make(state[name], granularity=quantization.PerTensor()) for name in layers})
    tensors, metadata = support.flatten_tensor_state_dict(state)
    config = {**model.config.to_dict(), "quantization_config": METHOD, "dtype": "bfloat16"}
    write_folder(tmp_path, config, tensors, metadata)
    catalog = read_catalog(tmp_path)
    loaded = load_model(catalog, read_plan(catalog), torch.float32)
    names = [name for name in state if name.endswith("_proj.weight")]
    assert len(names) == 7
    for name in names:
        found = loaded.get_parameter(name).dequantize()
        # Two factors may be multiplied in another order.
        tolerance = 2.0**-22 if kind == "nvfp4" else 0
        assert torch.allclose(found, state[name].dequantize(torch.float32), tolerance, 0), name
    assert MXFP8BlockScaling() in {each.recipe for each in read_plan(catalog).inputs.values()} or kind != "mxfp8"
