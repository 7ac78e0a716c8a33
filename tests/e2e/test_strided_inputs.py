"""Programs read tensors in any layout as they read contiguous ones."""

import pytest
import torch
from torch import nn

import steelyard

LAYOUTS = {
    "transposed": lambda x: x.mT.contiguous().mT,
    "every other column": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "repeated row": lambda x: x[..., :1, :].expand(x.shape),
    "behind an offset": lambda x: torch.cat([x[:1], x])[1:],
    "negated": lambda x: torch.complex(x, -x).conj().imag,
}


class Net(nn.Module):
    """A quantize of what is given, one of a norm, one of a gated product, GEMMs with a bias and with a residual."""

    def __init__(self):
        super().__init__()
        self.first, self.gate, self.up = (nn.Linear(32, 48) for _ in range(3))
        self.last, self.norm = nn.Linear(48, 32, bias=False), nn.RMSNorm(32)

    def forward(self, x):
        y = self.norm(x)
        gated = nn.functional.silu(self.gate(y)) * self.up(y)
        return self.first(x), x + self.last(gated)


@pytest.mark.every(5)
@pytest.mark.parametrize("shape", [(5, 32), (2, 3, 32)], ids=str)
@pytest.mark.parametrize("recipe", ["fp8-current", "nvfp4", "nvfp4/none"])
def test_layouts_change_nothing(recipe, shape):
    torch.manual_seed(0)
    net = steelyard.compile(Net().eval(), recipe)
    x = torch.randn(shape)
    for name, arrange in LAYOUTS.items():
        given = arrange(x)
        with torch.no_grad():
            found, expected = net(given), net(given.clone(memory_format=torch.contiguous_format))
        assert not given.is_contiguous() or given.storage_offset() or given.is_neg(), name
        # torch takes layers of strided tensors apart in other ways, so that sums may run in another order.
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, msg=name)
