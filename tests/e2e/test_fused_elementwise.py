"""Elementwise ops of compiled nets, which kernels of ours compute together, against torch's own."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional

import steelyard

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def values(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Function(nn.Module):
    """A function of tensors as a module, whose one layer stays in high precision."""

    def __init__(self, function, width, dtype=torch.float32):
        super().__init__()
        self.function = function
        self.layer = nn.Linear(width, width, dtype=dtype)

    def forward(self, *inputs):
        made = self.function(self.layer, *inputs)
        # Results whose dims torch leaves in another order are torch's own: an op stands between.
        return made.flip(0) if isinstance(made, torch.Tensor) else made


def compiled(function, width, *inputs, dtype=torch.float32):
    """A function and its compiled self, called with the same inputs, and the latter's program."""
    torch.manual_seed(0)
    model = Function(function, width, dtype).eval()
    net = steelyard.compile(model, "mxfp8", overrides={"*": None})
    with torch.no_grad():
        expected = model(*(one.clone() for one in inputs))
        found = net(*(one.clone() for one in inputs))
    return expected, found, str(net.ir("lowered"))


def rotate_half(x):
    low, high = x.chunk(2, dim=-1)
    return torch.cat((-high, low), dim=-1)


def rotary(layer, x, cos, sin):
    heads = layer(x).view(2, 5, 4, 8).transpose(1, 2)
    return heads * cos + rotate_half(heads) * sin


def rotary_of_slices(layer, x, cos, sin):
    heads = layer(x).view(2, 5, 4, 8).transpose(1, 2)
    low, high = heads[..., :4], heads[..., 4:]
    cos, sin = cos[..., :4], sin[..., 4:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def cached(layer, x, cos, sin):
    keys = rotary(layer, x, cos, sin)
    return torch.cat([keys[:, :, 1:], keys], 2) * 2


def interleaved(layer, x, cos, sin):
    pairs = layer(x).view(2, 5, 4, 4, 2)
    even, odd = pairs.unbind(-1)
    turned = torch.stack([even * 2 - odd, odd + even / 3], -1)
    return turned.flatten(2) - cos.sum() + sin[0, 0, 0, 0]


def split_gates(layer, x, cos, sin):
    a, b, c = layer(x).split([8, 8, 16], -1)
    return torch.cat([torch.relu(a) * b, c.abs() / 3 + 1], -1), (a - b).transpose(0, 1).reshape(5, 16)


def masked(layer, x, cos, sin):
    y = layer(x)
    mask = (y > 0.25) & (x <= 0.5)
    return torch.where(mask, y, -x), y.masked_fill(~mask, -1.0).clamp(-0.5, 1.5), mask


def broadcast(layer, x, cos, sin):
    y = layer(x)
    scale = torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (y * scale).float() * 0.5 + y[:1, :1], y[:, 0].unsqueeze(1).expand(2, 5, 32) - 1


def copies(layer, x, cos, sin):
    y = layer(x)
    first, second = y.clone(), y.clone()
    return first, second, y.transpose(0, 1).contiguous(), y.transpose(1, 2).contiguous() + 1


def shared(layer, x, cos, sin):
    y = layer(x) + x
    z = y * y
    return y, z - y, (z + 1).view(10, 32), z[..., ::2] * 3


EXACT = (rotary, rotary_of_slices, cached, interleaved, split_gates, masked, copies, shared)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("function", [*EXACT, broadcast])
def test_ops_between_layers_give_what_torch_gives(function, dtype):
    inputs = [values(2, 5, 32, dtype=dtype), *(values(2, 1, 5, 8, seed=seed, dtype=dtype) for seed in (1, 2))]
    expected, found, program = compiled(function, 32, *inputs, dtype=dtype)
    assert 'scaled.kernel = "elementwise"' in program
    pairs = [(expected, found)] if isinstance(expected, torch.Tensor) else list(zip(expected, found, strict=True))
    for wanted, got in pairs:
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        if function is broadcast:
            unit = {torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9}.get(dtype, 2.0**-20)
            torch.testing.assert_close(got, wanted, rtol=unit, atol=unit)
        else:
            assert torch.equal(got, wanted)


def test_one_program_turns_the_heads_of_a_tensor():
    inputs = [values(2, 5, 32), values(2, 1, 5, 8, seed=1), values(2, 1, 5, 8, seed=2)]
    *_, program = compiled(rotary, 32, *inputs)
    assert program.count("call @elementwise") == 1
    assert "torch.aten.mul" not in program
    assert "torch.aten.cat" not in program


def test_results_have_memory_of_their_own():
    _, (first, second, *_), _ = compiled(copies, 32, values(2, 5, 32), values(1), values(1))
    first.zero_()
    assert second.abs().sum() > 0


def test_sizes_that_are_known_only_at_run_time():
    model = Function(lambda layer, x: torch.sigmoid(layer(x).view(*x.shape[:2], 4, 4)).transpose(1, 2) * 2, 16).eval()
    net = steelyard.compile(model, "mxfp8", overrides={"*": None})
    with torch.no_grad():
        for tokens in (3, 5, 9, 4):
            x = values(2, tokens, 16, seed=tokens)
            torch.testing.assert_close(net(x), model(x))


def test_inputs_that_are_written_keep_what_others_read():
    def function(layer, x):
        before = x * 2
        x.add_(1)
        return layer(before), before + x, x * 3

    expected, found, _ = compiled(function, 16, values(4, 16))
    for wanted, got in zip(expected, found, strict=True):
        assert torch.equal(got, wanted)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        a, b, c = self.up(x).view(-1, 3, 16).unbind(1)
        hidden = functional.silu(a) * b + functional.gelu(c, approximate="tanh") * torch.tanh(a) - torch.erf(c).exp()
        return self.down(functional.relu(hidden)).sigmoid() * x.unsqueeze(0)


def trained(model, dtype):
    """Results and gradients of a model and of its compiled self, and the latter's program."""
    net = steelyard.compile(model.to(dtype), "mxfp8", overrides={"*": None})
    found = []
    for run in (model, net):
        x = values(6, 16, dtype=dtype).requires_grad_()
        model.zero_grad()
        out = run(x)
        (out * values(6, 16, seed=3, dtype=dtype)).sum().backward()
        found.append([out.detach(), x.grad, *(parameter.grad.clone() for parameter in model.parameters())])
    return *found, str(net.ir("lowered"))


class Exact(nn.Module):
    """Slices, products, sums and means, an RMS norm among them, as models spell them."""

    def __init__(self):
        super().__init__()
        self.up, self.down, self.weight = nn.Linear(16, 48), nn.Linear(16, 16), nn.Parameter(torch.ones(16))

    def forward(self, x):
        a, b, c = self.up(x).view(-1, 3, 16).unbind(1)
        turned = torch.cat([-b[..., 8:], b[..., :8]], -1) * c + b / 3
        hidden = a * torch.rsqrt(a.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.down(torch.where(c > 0, self.weight * hidden, turned)) + x - c.sum(-1, keepdim=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_training_has_torchs_bits(dtype):
    """What kernels of ours compute in training is what torch computes, so it does not matter which of them do."""
    torch.manual_seed(0)
    wanted, got, program = trained(Exact(), dtype)
    assert all(map(torch.equal, wanted, got))
    assert all(f'scaled.kernel = "{kernel}"' in program for kernel in ("elementwise", "rows", "columns"))
    left = set(re.findall(r"torch\.aten\.(\w+)", program))
    assert not left & {"add", "mul", "sub", "div", "neg", "where", "cat", "mean", "slice_backward"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_activations_in_training(dtype):
    """Series, as of erf, are torch's: only those of activations are ours wherever they are."""
    torch.manual_seed(0)
    expected, found, program = trained(Gated(), dtype)
    assert all(f"{name}_backward v" in program for name in ("gelu_tanh", "silu", "tanh", "sigmoid"))
    assert all(f"torch.aten.{name}" in program for name in ("erf", "exp"))
    assert not re.search(r"= (erf|exp) v", program)
    for wanted, got in zip(expected, found, strict=True):
        tolerance = {"rtol": 2e-5, "atol": 2e-6} if dtype is torch.float32 else {"rtol": 0.05, "atol": 0.03}
        torch.testing.assert_close(got, wanted, **tolerance)
