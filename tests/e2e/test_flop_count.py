"""The formulas by which tests count FLOPs, against the same models written with plain matrix products."""

import pytest
import torch
from flop_count import count_flops
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel


class Attention(nn.Module):
    def __init__(self, is_plain: bool):
        super().__init__()
        self.is_plain = is_plain

    def forward(self, q, k, v):
        if not self.is_plain:
            return functional.scaled_dot_product_attention(q, k, v)
        return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v


class Experts(nn.Module):
    """Tokens that are sorted by expert."""

    def __init__(self, is_plain: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 16, 24, dtype=torch.bfloat16))
        self.is_plain = is_plain

    def forward(self, x):
        ends = torch.tensor([8, 8, 32], dtype=torch.int32)
        if not self.is_plain:
            return functional.grouped_mm(x, self.weight, offs=ends)
        return torch.cat([x[:8] @ self.weight[0], x[8:] @ self.weight[2]])


class Recurrent(nn.Module):
    def __init__(self, is_plain: bool):
        super().__init__()
        self.lstm = nn.LSTM(20, 12)
        self.is_plain = is_plain

    def forward(self, x, h, c):
        if not self.is_plain:
            return self.lstm(x, (h, c))[0]
        outputs, (h, c) = [], (h[0], c[0])
        for step in x:
            gates = functional.linear(step, self.lstm.weight_ih_l0, self.lstm.bias_ih_l0)
            gates = gates + functional.linear(h, self.lstm.weight_hh_l0, self.lstm.bias_hh_l0)
            i, f, g, o = gates.chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        return torch.stack(outputs)


def _heads(*sizes):
    return [torch.randn(2, 3, *size, requires_grad=True) for size in sizes]


CASES = {
    "attention": (Attention, lambda: _heads((9, 16), (7, 16), (7, 16))),
    "experts": (Experts, lambda: [torch.randn(32, 16, dtype=torch.bfloat16, requires_grad=True)]),
    "lstm": (Recurrent, lambda: [torch.randn(*s, requires_grad=True) for s in ((5, 4, 20), (1, 4, 12), (1, 4, 12))]),
}


@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_formulas_agree_with_plain_products(name, is_training):
    make, arguments = CASES[name]
    counted, results = [], []
    for is_plain in (False, True):
        torch.manual_seed(0)
        model, values = make(is_plain), arguments()

        def run(model=model, values=values):
            with torch.set_grad_enabled(is_training):
                result = model(*values)
            if is_training:
                result.float().square().sum().backward()
            results.append(result.detach())

        counted.append(count_flops(model, run))
    torch.testing.assert_close(*results)
    assert counted[0] == counted[1] > 0


@torch.no_grad()
def test_the_formula_of_the_fused_encoder_layer_agrees_with_plain_products():
    model = nn.TransformerEncoderLayer(24, 3, 40, batch_first=True).eval()
    x = torch.randn(2, 7, 24)
    fused = count_flops(model, lambda: model(x))
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            assert fused == count_flops(model, lambda: model(x)) > 0
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_an_unknown_op_that_reads_a_parameter_is_an_error():
    model = nn.Bilinear(4, 5, 6)
    with pytest.raises(AssertionError, match="_trilinear"):
        count_flops(model, lambda: model(torch.randn(3, 4), torch.randn(3, 5)))
