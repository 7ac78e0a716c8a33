"""Parameters that are quantized already are multiplied in the format that they are stored in, whatever the recipe."""

import copy

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

import steelyard
from steelyard.tensor import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    Float8RowQuantizer,
    MXFP4Quantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
    NVFP4Tensor,
    QuantizedTensor,
)

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FORMATS = {
    "tensor": lambda **usage: Float8CurrentScalingQuantizer(E5M2, **usage),
    "delayed": lambda **usage: Float8Quantizer(torch.tensor(2.5), torch.zeros(1), E4M3, **usage),
    "row": lambda **usage: Float8RowQuantizer(E4M3, **usage),
    "block": lambda **usage: Float8BlockQuantizer(E4M3, block_scaling_dim=1, **usage),
    "tiles": lambda **usage: Float8BlockQuantizer(E4M3, block_scaling_dim=2, **usage),
    "mxfp8": lambda **usage: MXFP8Quantizer(E5M2, scale_rule="floor", **usage),
    "mxfp8-tiles": lambda **usage: MXFP8Quantizer(E4M3, with_2d_quantization=True, **usage),
    "mxfp4": lambda **usage: MXFP4Quantizer(scale_rule="even", **usage),
    "nvfp4": lambda **usage: NVFP4Quantizer(**usage),
    "nvfp4-tiles": lambda **usage: NVFP4Quantizer(with_2d_quantization=True, **usage),
    "nvfp4-32": lambda **usage: NVFP4Quantizer(block_size=32, **usage),
    "nvfp4-given": lambda **usage: NVFP4Quantizer(tensor_scale_inv=1 / 300, **usage),
    "nvfp4-4over6": lambda **usage: NVFP4Quantizer(four_over_six="mse", **usage),
    "nvfp4-stochastic": lambda **usage: NVFP4Quantizer(stochastic_rounding=True, **usage),
}
ROWS, WIDTH = 150, 136

pytestmark = pytest.mark.usefixtures("_no_grad")


@pytest.fixture
def _no_grad():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def make_model(weight: torch.Tensor, other: torch.Tensor) -> nn.Module:
    """Two layers; the second stores its weight as [K, N]."""
    model = nn.Sequential(nn.Linear(WIDTH, ROWS, bias=False), Conv1D(WIDTH, ROWS))
    model[0].weight = nn.Parameter(weight, requires_grad=False)
    model[1].weight = nn.Parameter(other, requires_grad=False)
    return model.requires_grad_(False)


def make_stored(name: str) -> nn.Module:
    make = FORMATS[name]
    weight, other = torch.randn(ROWS, WIDTH), torch.randn(WIDTH, ROWS)
    return make_model(make(columnwise=False)(weight), make(columnwise=False)(other).t())


def parts_of(tensor: QuantizedTensor) -> list[torch.Tensor]:
    """The codes, scales and amaxes as they were before a net packed them."""
    compact = tensor.unpacked() if hasattr(tensor, "unpacked") else tensor
    return [part.clone() for name in type(compact).PARTS if (part := getattr(compact, name)) is not None]


# Recipes of other formats than the weights', with activations that are quantized and such that are not.
@pytest.mark.every(3)
@pytest.mark.parametrize("recipe", ["mxfp8", "nvfp4/none"])
@pytest.mark.parametrize("name", FORMATS)
def test_products_read_the_parameter_as_it_is(name, recipe, gemm_calls, quantized_shapes):
    model = make_stored(name)
    before, x = copy.deepcopy(model), torch.randn(5, WIDTH)
    net = steelyard.compile(model, recipe, weights="quantized")
    results = [net(x), net(x)]
    assert torch.equal(*results)
    assert not set(quantized_shapes) & {(ROWS, WIDTH), (WIDTH, ROWS)}
    decoded = [layer.weight.dequantize() for layer in before]
    expected = [decoded[0], decoded[1].T]
    for index, (left, right, _, result) in enumerate(gemm_calls):
        weight = steelyard.reference.dequantize(right)
        assert torch.equal(weight, expected[index % 2])
        if recipe != "mxfp8":
            exact = left.double() @ weight.double().T
            assert (result.double() - exact).norm() <= 1e-6 * exact.norm()
    for layer, was in zip(model, before, strict=True):
        assert all(map(torch.equal, parts_of(layer.weight), parts_of(was.weight)))
    memory = net.memory()
    assert memory["quantized_weights"] == 0
    assert all(row.is_quantized and not row.stays for row in net.explain().rows)


def test_rows_say_the_format_of_the_parameter():
    make = FORMATS["nvfp4-given"]
    model = make_model(make(columnwise=False)(torch.randn(ROWS, WIDTH)), torch.randn(ROWS, WIDTH))
    net = steelyard.compile(model, "mxfp8", overrides={"1": "fp8-row"})
    net(torch.randn(3, WIDTH))
    assert [(row.lhs, row.rhs) for row in net.explain().rows] == [
        ("e4m3 1x32", "e2m1 1x16 static"),
        ("e4m3 row", "e4m3 row"),
    ]


def test_a_layer_in_high_precision_decodes_its_parameter():
    model, x = make_stored("nvfp4-given"), torch.randn(3, WIDTH)
    net = steelyard.compile(model, "mxfp8", overrides={"*": None}, weights="quantized")
    exact = (x.double() @ model[0].weight.dequantize().double().T) @ model[1].weight.dequantize().double()
    assert (net(x).double() - exact - model[1].bias).norm() <= 1e-5 * exact.norm()
    assert {row.reason for row in net.explain().rows} == {"override '*' asks for high precision"}
    assert all(type(layer.weight) is NVFP4Tensor for layer in model)


@pytest.mark.parametrize("weights", ["cached", "quantized"])
def test_nothing_is_packed_at_later_calls(weights, monkeypatch):
    from steelyard.tensor import traced

    packed, pack = [], traced.pack
    monkeypatch.setattr(traced, "pack", lambda *given: packed.append(given) or pack(*given))
    model, x = make_stored("nvfp4-given"), torch.randn(5, WIDTH)
    net = steelyard.compile(model, "mxfp8", weights=weights)
    first = net(x)
    net(x)
    count = len(packed)
    assert count >= 2
    assert torch.equal(net(x), first)
    assert len(packed) == count
    # A write is seen, whether the packed form is the parameter's own or kept beside it.
    model[0].weight.zero_()
    assert torch.equal(net(x), model[1].bias.expand(5, WIDTH))


def test_alike_layers_in_different_formats_have_programs_of_their_own():
    class Block(nn.Module):
        def __init__(self, name):
            super().__init__()
            weight = FORMATS[name](columnwise=False)(torch.randn(WIDTH, WIDTH))
            self.up = nn.Linear(WIDTH, WIDTH, bias=False)
            self.up.weight = nn.Parameter(weight, requires_grad=False)

        def forward(self, x):
            return x + self.up(x)

    names = ["row", "nvfp4-given", "row", "tiles", "nvfp4", "nvfp4-given"]
    model, x = nn.Sequential(*map(Block, names)), torch.randn(4, WIDTH)
    expected = x.double()
    for block in model:
        expected = expected + expected @ block.up.weight.dequantize().double().T
    for blocks in (False, "auto"):
        net = steelyard.compile(copy.deepcopy(model), "nvfp4/none", weights="quantized", blocks=blocks)
        for _ in range(2):
            assert (net(x).double() - expected).norm() <= 1e-5 * expected.norm()
        found = [row.rhs for row in net.explain().rows]
        given, row = "e2m1 1x16 static", "e4m3 row"
        assert sorted(found) == sorted([row, given, row, "e4m3 128x128", "e2m1 1x16", given])


def test_checkpoints_keep_the_second_level_to_the_bit():
    model, x = make_stored("nvfp4-given"), torch.randn(5, WIDTH)
    before = [parts_of(layer.weight) for layer in model]
    net = steelyard.compile(model, "mxfp8", weights="quantized")
    expected = net(x)
    state = net.state_dict()
    assert torch.equal(state["0.weight"], before[0][0].reshape(-1))
    assert torch.equal(state["0.weight.amax"], torch.tensor(1 / 300))
    other = steelyard.compile(
        make_model(torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)), "mxfp8", weights="quantized"
    )
    other.load_state_dict(state)
    assert torch.equal(other(x), expected)
    assert torch.equal(other(x), expected)
    plain = steelyard.plain_state_dict(state)
    assert torch.equal(plain["1.weight"], model[1].weight.dequantize())
