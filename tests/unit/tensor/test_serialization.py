"""Quantized tensors survive saving, pickling, copying and flattening with their bytes."""

import copy
import io
import pickle

import pytest
import safetensors.torch
import torch

from steelyard.tensor import Float8Quantizer, MXFP8Quantizer, NVFP4Quantizer, QuantizedTensor
from steelyard.tensor.quantized_tensor import rebuild_tensor
from steelyard.tensor.quantizer import rebuild_quantizer

E4M3 = torch.float8_e4m3fn


def same_tensor(one, other) -> bool:
    described = [(type(each), each.shape, each.dtype, each.requires_grad) for each in (one, other)]
    return described[0] == described[1] and all(
        torch.equal(getattr(one, name), getattr(other, name)) for name in one.PARTS
    )


def saved_and_loaded(value):
    memory = io.BytesIO()
    torch.save(value, memory)
    memory.seek(0)
    return torch.load(memory, weights_only=True)


def pickled(value):
    return pickle.loads(pickle.dumps(value))


@pytest.fixture(params=[saved_and_loaded, pickled, copy.deepcopy])
def round_trip(request):
    return request.param


def test_tensors_and_parameters(quantizer, round_trip):
    tensor = quantizer(torch.randn(2, 16, 48).bfloat16())
    parameter = torch.nn.Parameter(quantizer(torch.randn(32, 48)))
    loaded = round_trip({"tensor": tensor, "parameter": parameter})
    assert same_tensor(loaded["tensor"], tensor)
    assert same_tensor(loaded["parameter"], parameter)
    assert isinstance(loaded["parameter"], torch.nn.Parameter)
    assert not isinstance(loaded["tensor"], torch.nn.Parameter)
    before = tensor.dequantize()
    loaded["tensor"].zero_()
    assert torch.equal(tensor.dequantize(), before)
    loaded["parameter"].detach().copy_(torch.ones(32, 48))
    assert same_tensor(loaded["parameter"].detach(), quantizer(torch.ones(32, 48)))


def test_views(quantizer, round_trip):
    quantized = quantizer(torch.randn(64, 48))
    for view in (quantized.t(), quantized.view(-1), quantized[32:]):
        loaded = round_trip(view)
        assert loaded.shape == view.shape
        values = loaded.dequantize() if isinstance(loaded, QuantizedTensor) else loaded
        assert torch.equal(values, view.dequantize() if isinstance(view, QuantizedTensor) else view)


def test_delayed_state_is_saved(round_trip):
    tensor = Float8Quantizer(torch.tensor(4.0), torch.zeros(()), E4M3)(torch.ones(2, 2))
    loaded = round_trip(tensor)
    loaded.copy_(torch.full((2, 2), 9.0))
    assert (loaded._quantizer.scale, loaded._quantizer.amax) == (4.0, 9.0)
    assert tensor._quantizer.amax == 1.0


def test_storages_are_pickled(make_quantizer):
    storage = make_quantizer(internal=True)(torch.randn(16, 16))
    loaded = pickled(storage)
    assert type(loaded) is type(storage)
    assert torch.equal(loaded.dequantize(), storage.dequantize())


def test_modules_and_state_dicts(quantizer):
    layer = torch.nn.Linear(48, 32)
    layer.weight = torch.nn.Parameter(quantizer(layer.weight.detach()))
    twin = copy.deepcopy(layer)
    assert same_tensor(twin.weight, layer.weight)
    state = saved_and_loaded(layer.state_dict())
    assert same_tensor(state["weight"], layer.weight.detach())
    with torch.no_grad():
        twin.weight.zero_()
    twin.load_state_dict(state)
    assert same_tensor(twin.weight, layer.weight)
    empty = torch.nn.Linear(48, 32)
    empty.load_state_dict(state, assign=True)
    assert same_tensor(empty.weight, layer.weight)


def test_a_deep_copy_keeps_the_gradient_and_refuses_what_is_not_a_leaf(quantizer):
    parameter = torch.nn.Parameter(quantizer(torch.randn(16, 16)))
    parameter.grad = torch.ones(16, 16)
    twin = copy.deepcopy([parameter, parameter])
    assert twin[0] is twin[1]
    assert torch.equal(twin[0].grad, parameter.grad)
    assert twin[0].grad is not parameter.grad
    with pytest.raises(RuntimeError, match="leaves"):
        copy.deepcopy(parameter.view(-1))


def test_safetensors_of_the_parts(quantizer, tmp_path):
    quantized = quantizer(torch.randn(16, 48))
    metadata = quantized.get_metadata()
    parts = {name: value for name, value in metadata.items() if isinstance(value, torch.Tensor)}
    assert len(parts) == len(quantized.PARTS)
    safetensors.torch.save_file(parts, tmp_path / "parts.safetensors")
    loaded = safetensors.torch.load_file(tmp_path / "parts.safetensors")
    again = type(quantized)(**{**metadata, **loaded})
    assert same_tensor(again, quantized)


def test_flatten_and_unflatten(quantizer):
    quantized = quantizer(torch.randn(64, 48))
    quantized.update_usage(columnwise_usage=False)
    for tensor in (quantized, quantized.t(), quantized.view(-1)):
        names, metadata = tensor.__tensor_flatten__()
        inner = {name: getattr(tensor, name) for name in names}
        assert all(type(part) is torch.Tensor for part in inner.values())
        again = type(tensor).__tensor_unflatten__(inner, metadata, tensor.shape, tensor.stride())
        assert again.get_usages() == tensor.get_usages()
        assert (again.shape, again.stride()) == (tensor.shape, tensor.stride())
        assert torch.equal(again.dequantize(), tensor.dequantize())


def test_repr_shows_values_and_copies(quantizer):
    quantized = quantizer(torch.tensor([[2.0, -2.0]]).bfloat16())
    assert repr(quantized) == f"{type(quantized).__name__}({quantized.dequantize()!r}, rowwise and columnwise)"
    quantized.update_usage(columnwise_usage=False)
    shown = repr(torch.nn.Parameter(quantized))
    assert shown.endswith("rowwise, requires_grad=True)")


def test_pickles_that_name_other_classes_are_refused():
    with pytest.raises(TypeError, match="QuantizedTensor class"):
        rebuild_tensor(dict, {}, (), False, False)
    with pytest.raises(ValueError, match="Quantizer class"):
        rebuild_quantizer(dict, {})


def test_a_process_group_is_left_behind():
    quantizer = NVFP4Quantizer(amax_reduction_group=object())
    assert pickled(quantizer).amax_reduction_group is None
    assert quantizer == NVFP4Quantizer()
    assert MXFP8Quantizer() != quantizer


def test_sharing_memory_shares_the_parts(quantizer):
    quantized = quantizer(torch.randn(64, 32))
    values, alias = quantized.dequantize(), quantized.detach()
    assert not quantized.is_shared()
    assert quantized.share_memory_() is quantized
    assert quantized.is_shared()
    assert alias.is_shared()
    assert torch.equal(quantized.dequantize(), values)


def test_sharing_a_module_shares_its_quantized_parameters():
    module = torch.nn.Linear(32, 64)
    module.weight = torch.nn.Parameter(MXFP8Quantizer()(torch.randn(64, 32)))
    assert module.share_memory().weight.is_shared()
    assert module.weight._rowwise_data.is_shared()
