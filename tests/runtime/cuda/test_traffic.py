"""How accesses of warps coalesce, counted by the interpreter: sectors of global memory, banks of shared memory."""

import pytest
import torch
from kernel_cases import nvfp4
from simulation import Simulator

from steelyard.formats.schemes import Scheme
from steelyard.runtime.cuda.kernels import Kernels

MX = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU"), Scheme("f8E4M3FN", "32x1", "f8E8M0FNU")
PAIRS = {"mx": MX, "nvfp4": (nvfp4(), nvfp4(rht=True)), "tensor": (Scheme("f8E4M3FN", "tensor", "f32"),) * 2}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
def test_quantize_moves_whole_sectors(name, dtype):
    simulator = Simulator("sm_100a", measured=True)
    x = torch.randn(128, 128, dtype=dtype)
    Kernels(simulator).quantize(x, *PAIRS[name], amax=(torch.tensor(4.0), torch.tensor(4.0)))
    ((_, traffic),) = simulator.launches
    codes = "st.global.8" if name == "nvfp4" else "st.global.16"
    for access in ("ld.global.16", codes):
        assert traffic.requested[access] == traffic.sectors[access]
    assert traffic.requested["ld.global.16"] == x.nbytes  # the source is read once for both copies
    # Two columns of the tile are read at once: no bank serves two words. Codes pass two lines at a time.
    columns = "ld.shared.4" if dtype == torch.bfloat16 else "ld.shared.8"
    assert name == "nvfp4" or traffic.conflicts[columns] == 1
    assert max(traffic.conflicts.values()) == 2


def test_transpose_has_no_conflicts_in_columns():
    simulator = Simulator("sm_90a", measured=True)
    codes = torch.randint(0, 256, (128, 64), dtype=torch.uint8)
    assert torch.equal(Kernels(simulator).transpose_codes(codes), codes.t())
    ((_, traffic),) = simulator.launches
    assert traffic.conflicts["ld.shared.1"] == 1
