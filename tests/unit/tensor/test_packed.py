"""A packed FP4 tensor holds the codes of the compact one, and behaves like it."""

import copy
import io

import pytest
import torch
from torch import nn

from steelyard.errors import RecipeError
from steelyard.runtime import cpu
from steelyard.tensor import MXFP4Quantizer, NVFP4Quantizer
from steelyard.tensor.packed import PackedNVFP4Tensor, PackedTensor, packed_tensor

SHAPE = (24, 40)


QUANTIZERS = {
    "nvfp4": (NVFP4Quantizer, {"with_2d_quantization": True}),
    "nvfp4 wide": (NVFP4Quantizer, {"block_size": 32}),
    "mxfp4": (MXFP4Quantizer, {}),
}


@pytest.fixture(params=[(name, columnwise) for name in QUANTIZERS for columnwise in (False, True)], ids=str)
def pair(request):
    """A compact tensor with one copy, and the same tensor packed."""
    name, columnwise = request.param
    make, options = QUANTIZERS[name]
    quantizer = make(rowwise=not columnwise, columnwise=columnwise, **options)
    compact = quantizer(torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)))
    data = cpu.pack(compact._copy(columnwise)).data
    return compact, packed_tensor(data, SHAPE, quantizer.copy(), torch.float32)


def same_parts(one, other) -> bool:
    pairs = [(getattr(one, name), getattr(other, name)) for name in other.PARTS]
    return all(a is b is None or torch.equal(a, b) for a, b in pairs)


def test_values_copies_and_size(pair):
    compact, packed = pair
    assert torch.equal(packed.dequantize(), compact.dequantize())
    assert packed.get_usages() == compact.get_usages()
    assert same_parts(packed.unpacked(), compact)
    # 3 x 3 or 5 x 2 units of 8 x 16 with 64 bytes of codes, 8 bytes of scales for 16 or 32 columns, in lines of 64;
    # then an amax, or four numbers.
    groups, units = (3, 3 * 3) if compact.get_usages()["rowwise"] else (5, 5 * 2)
    scheme = compact._quantizer.row_scheme
    blocks = units if scheme.block_sizes[1] == 16 else groups * (2 if groups == 3 else 1)
    tail = 16 if scheme.family == "mxfp4" else 4
    assert packed._packed_data.numel() == -(-(units * 64 + blocks * 8) // 64) * 64 + tail


@pytest.mark.parametrize("change", [torch.Tensor.detach, torch.clone, copy.deepcopy, lambda t: t.to(torch.bfloat16)])
def test_copies_stay_packed(pair, change):
    compact, packed = pair
    changed = change(packed)
    assert isinstance(changed, PackedTensor)
    assert type(changed) is type(packed)
    assert torch.equal(changed.dequantize(), change(compact).dequantize())


def test_what_is_saved_is_compact(pair):
    compact, packed = pair
    memory = io.BytesIO()
    torch.save({"tensor": packed, "parameter": nn.Parameter(packed, requires_grad=False)}, memory)
    memory.seek(0)
    loaded = torch.load(memory, weights_only=True)
    assert [type(each) for each in loaded.values()] == [type(compact)] * 2
    assert isinstance(loaded["parameter"], nn.Parameter)
    assert all(same_parts(each, compact) for each in loaded.values())


def test_writes_are_packed_again(pair):
    compact, packed = pair
    address = packed._packed_data.data_ptr()
    for tensor in pair:
        tensor.mul_(3)
    assert torch.equal(packed.dequantize(), compact.dequantize())
    compact.copy_(torch.ones(SHAPE))
    packed.copy_(compact)
    assert torch.equal(packed.dequantize(), torch.ones(SHAPE))
    assert packed._packed_data.data_ptr() == address


def test_views_and_products_decode(pair):
    compact, packed = pair
    x = torch.randn(3, SHAPE[1])
    assert torch.equal(packed.t(), compact.dequantize().t())
    assert torch.equal(nn.functional.linear(x, packed), nn.functional.linear(x, compact.dequantize()))


def test_torch_compile_takes_it(pair):
    compact, packed = pair
    torch._dynamo.reset()

    def function(weight, x):
        return x @ weight.t() + 1

    x = torch.randn(3, SHAPE[1])
    got = torch.compile(function, backend="aot_eager")(packed, x)
    assert torch.equal(got, function(compact.dequantize(), x))


def test_errors(pair):
    compact, packed = pair
    usages = compact.get_usages()
    # Tiles could make the other copy, which has no room; blocks cannot even do that.
    with pytest.raises(RecipeError, match=r"keeps the one copy it has|must follow from the codes of the other one"):
        packed.update_usage(rowwise_usage=True, columnwise_usage=True)
    with pytest.raises(RecipeError, match=r"bytes of uint8, got torch\.uint8 of shape"):
        packed_tensor(packed._packed_data[1:], SHAPE, packed._quantizer, torch.float32)
    with pytest.raises(RecipeError, match="must make one copy"):
        packed_tensor(packed._packed_data, SHAPE, type(packed._quantizer)(), torch.float32)
    with pytest.raises(RecipeError, match="must be an NVFP4Quantizer, got a MXFP4Quantizer"):
        PackedNVFP4Tensor(packed_data=packed._packed_data, shape=SHAPE, quantizer=MXFP4Quantizer(columnwise=False))
    assert packed.get_usages() == usages
