"""Experts whose weights are stacks of quantized matrices: products read each expert as it is stored."""

import pytest
import torch
from torch import nn

import steelyard
from steelyard.tensor import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    Float8RowQuantizer,
    MXFP4Quantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
    QuantizedStack,
)

E4M3 = torch.float8_e4m3fn
COUNT, ROWS, WIDTH = 3, 152, 136
FORMATS = {
    "tensor": lambda i: Float8CurrentScalingQuantizer(E4M3, columnwise=False),
    "row": lambda i: Float8RowQuantizer(E4M3, columnwise=False),
    "tiles": lambda i: Float8BlockQuantizer(E4M3, block_scaling_dim=2, columnwise=False),
    "mxfp8": lambda i: MXFP8Quantizer(E4M3, columnwise=False),
    "mxfp4": lambda i: MXFP4Quantizer(columnwise=False),
    "nvfp4": lambda i: NVFP4Quantizer(columnwise=False),
    "nvfp4-32": lambda i: NVFP4Quantizer(block_size=32, columnwise=False),
    "nvfp4-given": lambda i: NVFP4Quantizer(tensor_scale_inv=(i + 1) / 700, columnwise=False),
}


class Experts(nn.Module):
    """Two products of experts in bf16, which torch captures; the second weight is stored as [E, K, N]."""

    def __init__(self, up: torch.Tensor, down: torch.Tensor):
        super().__init__()
        self.up, self.down = nn.Parameter(up, requires_grad=False), nn.Parameter(down, requires_grad=False)

    def forward(self, x, ends):
        hidden = torch._grouped_mm(x, self.up.transpose(1, 2), offs=ends)
        return torch._grouped_mm(hidden, self.down, offs=ends)


def make_stack(name: str, rows: int, columns: int, *, transposed: bool) -> QuantizedStack:
    sizes = [torch.randn(rows, columns, dtype=torch.bfloat16) * 2**i for i in range(COUNT)]
    return QuantizedStack([FORMATS[name](i)(values) for i, values in enumerate(sizes)], transposed=transposed)


@pytest.mark.every(3)
@torch.no_grad()
@pytest.mark.parametrize("weights", ["cached", "quantized"])
@pytest.mark.parametrize("name", FORMATS)
def test_products_read_each_expert_as_it_is_stored(name, weights, quantized_shapes):
    torch.manual_seed(0)
    model = Experts(
        make_stack(name, ROWS, WIDTH, transposed=False), make_stack(name, WIDTH, ROWS, transposed=True)
    ).eval()
    before = [part.clone() for part in (*model.up._parts(), *model.down._parts())]
    up, down = model.up.dequantize().double(), model.down.dequantize().double()
    x, ends = torch.randn(9, WIDTH, dtype=torch.bfloat16), torch.tensor([4, 4, 9], dtype=torch.int32)
    # Activations stay as they are, so that the product of decoded weights is the oracle.
    net = steelyard.compile(model, "nvfp4/none", weights=weights)
    results = [net(x, ends) for _ in range(3)]
    begin, expected = 0, []
    for i, end in enumerate(ends.tolist()):
        hidden = (x[begin:end].double() @ up[i].T).bfloat16()
        expected.append(hidden.double() @ down[i])
        begin = end
    expected = torch.cat(expected)
    assert (results[0].double() - expected).norm() <= 0.005 * expected.norm()
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    assert not quantized_shapes
    rows = net.explain().rows
    assert all(row.is_quantized and not row.stays for row in rows)
    assert {row.weight for row in rows} == {"up", "down"}
    stacks = [model.up.unpacked(), model.down.unpacked()]
    assert all(map(torch.equal, [part for stack in stacks for part in stack._parts()], before))
    is_fp4 = "fp4" in name
    assert model.up.is_packed == (is_fp4 and weights == "quantized")
    assert (net.memory()["quantized_weights"] > 0) == (is_fp4 and weights == "cached")
    saved = net.state_dict()
    other = steelyard.compile(
        Experts(torch.randn_like(up.bfloat16()), torch.randn_like(down.bfloat16())).eval(), "mxfp8"
    )
    other.load_state_dict(saved)
    assert torch.equal(other.model.down, model.down.dequantize())


@pytest.mark.every(3)
@torch.no_grad()
@pytest.mark.parametrize("recipe", ["fp8-delayed", "fp8-current", "fp8-block", "mxfp8", "nvfp4", "mxfp4/mxfp8"])
def test_plain_stacks_become_the_codes_that_products_read(recipe):
    torch.manual_seed(0)
    up, down = (torch.randn(COUNT, *sizes, dtype=torch.bfloat16) for sizes in ((ROWS, WIDTH), (ROWS, WIDTH)))
    x, ends = torch.randn(9, WIDTH, dtype=torch.bfloat16), torch.tensor([4, 4, 9], dtype=torch.int32)
    expected = steelyard.compile(Experts(up, down).eval(), recipe)(x, ends)
    model = Experts(up.clone(), down.clone()).eval()
    net = steelyard.compile(model, recipe, weights="quantized")
    assert all(torch.equal(net(x, ends), expected) for _ in range(2))
    assert isinstance(model.up, QuantizedStack)
    assert isinstance(model.down, QuantizedStack)
    assert (model.up.shape, model.down.shape) == (up.shape, down.shape)
    for stack, values in ((model.up, up), (model.down, down)):
        error = (stack.dequantize().float() - values.float()).norm() / values.float().norm()
        assert error < (0.15 if "fp4" in recipe else 0.05)
    memory = net.memory()
    assert memory["quantized_weights"] == 0
    assert memory["quantized_parameters"] == memory["parameters"]
    other = steelyard.compile(Experts(down.clone(), up.clone()).eval(), recipe, weights="quantized")
    other.load_state_dict(net.state_dict())
    assert torch.equal(other(x, ends), expected)
