"""Modules that convert quantized parameters, and assignments to `data`, beside plain tensors."""

import copy
import io
import pickle
import weakref

import pytest
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from steelyard.errors import RecipeError
from steelyard.runtime.cuda import streams
from steelyard.tensor import Float8CurrentScalingQuantizer, MXFP8Quantizer, NVFP4Quantizer, QuantizedTensor
from steelyard.tensor.packed import PackedNVFP4Tensor

E4M3 = torch.float8_e4m3fn
CONVERSIONS = {
    "half": lambda module: module.half(),
    "bfloat16": lambda module: module.bfloat16(),
    "double": lambda module: module.double(),
    "float": lambda module: module.float(),
    "to-half": lambda module: module.to(torch.float16),
    "to-double": lambda module: module.to(torch.float64),
    "to-cpu-bfloat16": lambda module: module.to("cpu", torch.bfloat16),
    "type-half": lambda module: module.type(torch.float16),
    "twice": lambda module: module.double().half(),
    "and-back": lambda module: module.half().float(),
    "widened": lambda module: module.half().double(),
}
DTYPES = [torch.float16, torch.bfloat16, torch.float64, torch.float32]


def part_bytes(tensor) -> list[bytes]:
    return [part.numpy().tobytes() for part in tensor._parts()]


def build(weight) -> torch.nn.Module:
    """Two layers that share their weight, with gradients, and a buffer."""
    module = torch.nn.Sequential(torch.nn.Linear(48, 48), torch.nn.Linear(48, 48))
    module[0].weight = module[1].weight = torch.nn.Parameter(weight)
    module.register_buffer("scale", torch.ones(3))
    for parameter in module.parameters():
        parameter.grad = torch.full(parameter.shape, 0.3)
    return module


@pytest.fixture(params=CONVERSIONS)
def convert(request):
    return CONVERSIONS[request.param]


@pytest.fixture(params=["half", "double", "to-cpu-bfloat16"])
def convert_once(request):
    """One conversion of each kind: by a method, to float64, and by `to`."""
    return CONVERSIONS[request.param]


@pytest.mark.every(4)
def test_a_module_converts_as_a_plain_one(quantizer, convert):
    quantized = quantizer(torch.randn(48, 48))
    module, plain = build(quantized), build(quantized.dequantize())
    before, codes, values = module[0].weight, part_bytes(quantized), quantized.dequantize(dtype=torch.float64)
    convert(module), convert(plain)
    assert [each.dtype for each in module.state_dict().values()] == [each.dtype for each in plain.state_dict().values()]
    assert [each.grad.dtype for each in module.parameters()] == [each.grad.dtype for each in plain.parameters()]
    weight = module[0].weight
    assert weight is before
    assert module[1].weight is weight
    assert isinstance(weight, torch.nn.Parameter)
    assert weight.requires_grad
    assert type(weight) is type(quantized)
    assert part_bytes(weight) == codes
    # The codes are kept, so the values do not pass through the narrower dtype.
    assert torch.equal(weight.dequantize(dtype=torch.float64), values)
    assert torch.equal(weight.dequantize(), values.to(weight.dtype))
    assert torch.equal(weight.grad, plain[0].weight.grad)


def test_a_converted_module_runs_and_trains_as_a_plain_one(quantizer, convert_once):
    quantized = quantizer(torch.randn(48, 48) / 8)
    module = convert_once(build(quantized))
    plain = copy.deepcopy(module)
    plain[0].weight = plain[1].weight = torch.nn.Parameter(module[0].weight.dequantize().detach())
    for one, other in zip(module.parameters(), plain.parameters(), strict=True):
        other.grad = one.grad.clone()
    dtype = plain[0].weight.dtype
    for each in (module, plain):
        torch.optim.SGD(each.parameters(), lr=0.1).step()
    written = plain[0].weight.detach()
    expected = quantizer(written.float() if dtype == torch.float64 else written)
    assert part_bytes(module[0].weight) == part_bytes(expected)
    with torch.no_grad():
        plain[0].weight.copy_(expected)
    x = torch.randn(5, 48, dtype=dtype)
    for each in (module, plain):
        each.zero_grad()
        each(x).square().sum().backward()
    # Two layouts of one product may round differently.
    torch.testing.assert_close(module(x), plain(x))
    torch.testing.assert_close(module[0].weight.grad, plain[0].weight.grad)


def test_a_module_converts_while_others_refer_to_its_parameters(quantizer, convert_once):
    module = build(quantizer(torch.randn(48, 48)))
    codes, references = part_bytes(module[0].weight), [weakref.ref(each) for each in module.parameters()]
    graph = module(torch.randn(5, 48))
    converted = convert_once(module)
    assert [reference() for reference in references] == list(converted.parameters())
    assert len({each.dtype for each in converted.parameters()}) == 1
    assert part_bytes(converted[0].weight) == codes
    assert graph.grad_fn is not None


@pytest.mark.parametrize("move", [lambda module: module.to("cpu"), lambda module: module.cpu()])
def test_moving_a_module_to_where_it_is_changes_nothing(quantizer, move):
    module = build(quantizer(torch.randn(48, 48)))
    weight, parts, reference = module[0].weight, module[0].weight._parts(), weakref.ref(module[0].weight)
    graph = module(torch.randn(5, 48))
    assert move(module)[0].weight is weight is reference()
    assert all(one is two for one, two in zip(weight._parts(), parts, strict=True))
    module.zero_grad()
    graph.sum().backward()
    assert weight.grad.abs().sum() > 0


def test_a_module_that_converts_in_inference_mode_can_be_trained_later(quantizer, convert_once):
    module = build(quantizer(torch.randn(48, 48)))
    codes = part_bytes(module[0].weight)
    with torch.inference_mode():
        convert_once(module)
        module.to("cpu")
    weight = module[0].weight
    assert part_bytes(weight) == codes
    assert not any(each.is_inference() for each in (weight, *weight._parts()))
    with torch.no_grad():
        weight.mul_(0)
    weight.dequantize().sum().backward()
    assert torch.equal(weight.dequantize(), torch.zeros(48, 48, dtype=weight.dtype))


def test_tools_that_set_the_data_of_parameters(quantizer):
    module, plain = build(quantizer(torch.randn(48, 48))), build(torch.randn(48, 48))
    for each in (module, plain):
        vector = torch.nn.utils.parameters_to_vector(each.parameters())
        torch.nn.utils.vector_to_parameters(torch.full_like(vector, 2.0), each.parameters())
    assert isinstance(module[0].weight, QuantizedTensor)
    assert torch.equal(module[0].weight.dequantize(), quantizer(plain[0].weight.detach()).dequantize())
    averaged = torch.optim.swa_utils.AveragedModel(module)
    averaged.update_parameters(module)
    assert isinstance(averaged.module[0].weight, QuantizedTensor)


def test_the_memory_format_of_a_module(quantizer):
    module, plain = torch.nn.Conv2d(8, 8, 3), torch.nn.Conv2d(8, 8, 3)
    module.weight = torch.nn.Parameter(quantizer(module.weight.detach()))
    values = module.weight.detach().dequantize()
    for each in (module, plain):
        each.to(memory_format=torch.channels_last)
    assert module.weight.stride() == plain.weight.stride()
    assert torch.equal(module.half().weight.detach().dequantize(dtype=torch.float32), values)


def test_moving_a_module_to_meta(quantizer):
    module, plain = build(quantizer(torch.randn(48, 48))).to("meta"), build(torch.randn(48, 48)).to("meta")
    for one, other in zip(module.parameters(), plain.parameters(), strict=True):
        assert (one.device, one.dtype, one.shape) == (other.device, other.dtype, other.shape)
    assert isinstance(module[0].weight, QuantizedTensor)
    again = module.to_empty(device="cpu")[0].weight
    assert (type(again), again.device.type) == (type(module[0].weight), "cpu")


def test_a_function_that_a_module_applies_sees_that_a_tensor_can_be_flattened(quantizer):
    seen = []
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(quantizer(torch.randn(48, 48)))
    module._apply(lambda tensor: (seen.append(is_traceable_wrapper_subclass(tensor)), tensor)[1])
    assert seen == [True]
    names, _ = type(module.weight).__tensor_flatten__(module.weight)
    assert names == module.weight.__tensor_flatten__()[0]


def test_stochastic_codes_are_kept(convert):
    module = build(NVFP4Quantizer(stochastic_rounding=True)(torch.randn(48, 48)))
    codes = part_bytes(module[0].weight)
    assert part_bytes(convert(module)[0].weight) == codes


def test_packed_weights_are_compact_on_a_gpu(monkeypatch):
    quantizer = NVFP4Quantizer(columnwise=False)
    compact = quantizer(torch.randn(48, 48))
    (data,) = compact.weight_parts(quantizer.row_scheme, is_transposed=False, layout="packed")
    packed = PackedNVFP4Tensor(packed_data=data, shape=(48, 48), quantizer=quantizer)
    assert type(packed.to("meta")) is PackedNVFP4Tensor
    monkeypatch.setattr(streams, "DEVICES", ("meta",))
    moved = build(packed).to("meta")[0].weight
    assert type(moved) is type(compact)
    assert [part.shape for part in moved._parts()] == [part.shape for part in compact._parts()]


def test_packed_weights_convert(convert):
    quantizer = NVFP4Quantizer(columnwise=False)
    compact = quantizer(torch.randn(48, 48))
    (packed,) = compact.weight_parts(quantizer.row_scheme, is_transposed=False, layout="packed")
    module = build(PackedNVFP4Tensor(packed_data=packed, shape=(48, 48), quantizer=quantizer))
    plain = convert(build(compact.dequantize()))
    weight = convert(module)[0].weight
    assert type(weight) is PackedNVFP4Tensor
    assert weight.dtype == plain[0].weight.dtype
    assert part_bytes(weight) == [packed.numpy().tobytes()]
    new = torch.randn(16, 32)
    weight.data = new
    assert torch.equal(weight.dequantize(), quantizer(new).dequantize())
    weight.data = compact
    assert part_bytes(weight) == [packed.numpy().tobytes()]
    compact.data = torch.zeros(3, 4)
    compact.data = weight
    assert torch.equal(compact.dequantize(), weight.dequantize())


def test_an_alias_keeps_its_dtype_and_memory(quantizer):
    module = build(quantizer(torch.randn(48, 48)))
    alias, values = module[0].weight.detach(), module[0].weight.dequantize()
    with torch.no_grad():
        module.half()[0].weight.zero_()
    assert alias.dtype == torch.float32
    assert torch.equal(alias.dequantize(), values)


def saved_and_loaded(value):
    memory = io.BytesIO()
    torch.save(value, memory)
    memory.seek(0)
    return torch.load(memory, weights_only=True)


@pytest.mark.every(4)
@pytest.mark.parametrize(
    "round_trip", [saved_and_loaded, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_presented_dtype_is_kept(quantizer, round_trip, dtype):
    parameter = torch.nn.Parameter(quantizer(torch.randn(16, 48)).to_dtype(dtype))
    loaded = round_trip(parameter)
    assert (type(loaded), loaded.dtype, loaded.requires_grad) == (type(parameter), dtype, True)
    assert part_bytes(loaded) == part_bytes(parameter)
    for same in (
        loaded.clone(),
        loaded.detach(),
        loaded.view(-1),
        loaded.to("cpu", copy=True),
        torch.empty_like(loaded),
    ):
        assert (type(same), same.dtype) == (type(parameter), dtype)


@pytest.mark.parametrize(
    "operation",
    [
        lambda t: t.mul_(3),
        lambda t: t.copy_(torch.arange(48.0)),
        lambda t: t.__setitem__(slice(3, 5), 7.0),
        lambda t: t[32:].add_(1),
        lambda t: t.t().neg_(),
        lambda t: t.quantize_(torch.ones(64, 48)),
    ],
)
def test_a_tensor_that_presents_float64_is_written_to(quantizer, operation):
    double, single = quantizer(torch.randn(64, 48)), quantizer(torch.randn(64, 48))
    single.copy_(double)
    double = double.to_dtype(torch.float64)
    operation(double), operation(single)
    assert double.dtype == torch.float64
    assert part_bytes(double) == part_bytes(single)


SHAPES = [(64, 48), (32, 48), (3, 16, 32), (5,), (0, 32)]


@pytest.mark.every(4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_data_becomes_the_value(quantizer, shape, dtype):
    quantized, plain = (torch.nn.Parameter(each) for each in (quantizer(torch.randn(64, 48)), torch.randn(64, 48)))
    quantized.grad = plain.grad = torch.ones(64, 48)
    value = torch.randn(shape, dtype=dtype)
    quantized.data = plain.data = value
    for name in ("shape", "dtype", "requires_grad", "is_leaf", "device"):
        assert getattr(quantized, name) == getattr(plain, name)
    assert quantized.stride() == plain.stride()
    assert quantized.grad is plain.grad
    assert isinstance(quantized, QuantizedTensor)
    expected = quantizer(value.float() if dtype == torch.float64 else value)
    assert part_bytes(quantized) == part_bytes(expected)
    assert torch.equal(quantized.dequantize(), expected.dequantize(dtype=dtype))


@pytest.mark.parametrize("shape", SHAPES)
def test_data_of_another_quantized_tensor_is_shared(quantizer, shape):
    quantized, other = quantizer(torch.randn(64, 48)), quantizer(torch.randn(shape)).to(torch.bfloat16)
    other.update_usage(columnwise_usage=False)
    quantized.data = other
    assert (quantized.shape, quantized.dtype) == (other.shape, other.dtype)
    assert quantized.get_usages() == {"rowwise": True, "columnwise": False}
    assert all(one is two for one, two in zip(quantized._parts(), other._parts(), strict=True))
    quantized.fill_(2)
    assert torch.equal(other.dequantize(), quantized.dequantize())


def test_data_of_a_view_is_a_view(quantizer):
    quantized, other = quantizer(torch.randn(64, 48)), quantizer(torch.randn(64, 48))
    quantized.data = other.t()
    assert (quantized.shape, quantized.stride()) == ((48, 64), (1, 48))
    quantized.fill_(3)
    assert torch.equal(other.dequantize(), quantized.dequantize().T)


def test_data_of_a_part_writes_to_the_whole():
    quantizer = Float8CurrentScalingQuantizer(E4M3)
    quantized, other = quantizer(torch.randn(8, 8)), quantizer(torch.randn(64, 48))
    whole = other.dequantize()
    quantized.data = other[32:]
    quantized.mul_(100)
    whole[32:] *= 100
    # The scale is that of the whole tensor, so the other half is quantized again, too.
    assert part_bytes(other) == part_bytes(quantizer(whole))


def test_data_of_another_format_is_quantized():
    quantized, other = MXFP8Quantizer()(torch.randn(64, 48)), Float8CurrentScalingQuantizer(E4M3)(torch.randn(32, 64))
    quantized.data = other
    assert part_bytes(quantized) == part_bytes(MXFP8Quantizer()(other.dequantize()))


def test_an_alias_does_not_see_new_data(quantizer):
    quantized, plain = quantizer(torch.ones(64, 48)), torch.ones(64, 48)
    view, plain_view = quantized.view(-1), plain.view(-1)
    quantized.data = plain.data = torch.full((64, 48), 2.0)
    assert torch.equal(view.dequantize(), plain_view)
    view.data = torch.zeros(3, 4)
    assert view.shape == (3, 4)
    view.fill_(1)
    assert torch.equal(quantized.dequantize().sign(), plain.sign())


def test_a_cleared_tensor_takes_data_again(quantizer):
    quantized, value = quantizer(torch.ones(64, 48)), torch.randn(16, 32)
    quantized.clear()
    quantized.data = value
    assert part_bytes(quantized) == part_bytes(quantizer(value))


@pytest.mark.parametrize(
    ("value", "error", "says"),
    [
        (3.0, TypeError, "tensor"),
        (torch.ones(64, 48, dtype=torch.int64), RecipeError, r"data of a \w+ must be .* got torch.int64; convert it"),
        (torch.ones(64, 48, dtype=torch.cfloat), RecipeError, r"got torch.complex64"),
        (torch.ones(64, 48, device="meta"), RuntimeError, "incompatible tensor type"),
    ],
)
def test_other_data_is_refused_untouched(quantizer, value, error, says):
    quantized = quantizer(torch.randn(64, 48))
    codes = part_bytes(quantized)
    with pytest.raises(error, match=says):
        quantized.data = value
    assert (quantized.shape, quantized.dtype, quantized.device.type) == ((64, 48), torch.float32, "cpu")
    assert part_bytes(quantized) == codes
