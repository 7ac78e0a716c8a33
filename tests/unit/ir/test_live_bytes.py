"""The memory that values take while a function runs, counted by hand."""

from steelyard.dialect import make_context, parse_module
from steelyard.ir.functions import functions_of
from steelyard.ir.live_bytes import Step, live_steps

PROGRAM = """
func.func private @gemm_0(!torch.vtensor<[8,64],f32>, !torch.vtensor<[64,16],f32>) -> !torch.vtensor<[8,16],f32>
func.func @forward(%x: !torch.vtensor<[8,64],f32>, %w: !torch.vtensor<[16,64],f32> {scaled.parameter = "a.weight"})
    -> !torch.vtensor<[8,16],f32> {
  %t = torch.aten.t %w : !torch.vtensor<[16,64],f32> -> !torch.vtensor<[64,16],f32>
  %0 = call @gemm_0(%x, %t)
    : (!torch.vtensor<[8,64],f32>, !torch.vtensor<[64,16],f32>) -> !torch.vtensor<[8,16],f32> loc("a"("m.py":3:1))
  scaled.free %x : !torch.vtensor<[8,64],f32>
  scaled.free %t : !torch.vtensor<[64,16],f32>
  %1 = torch.aten.alias %0 : !torch.vtensor<[8,16],f32> -> !torch.vtensor<[8,16],f32>
  scaled.free %0 : !torch.vtensor<[8,16],f32>
  %2 = torch.aten.relu %1 : !torch.vtensor<[8,16],f32> -> !torch.vtensor<[8,16],f32> loc("b"("m.py":4:1))
  scaled.free %1 : !torch.vtensor<[8,16],f32>
  %3 = torch.aten.relu %2 : !torch.vtensor<[8,16],f32> -> !torch.vtensor<[8,16],f32> loc("c"("m.py":4:1))
  return %3 : !torch.vtensor<[8,16],f32>
}
"""


def test_parameters_and_views_take_nothing_and_views_keep_memory_alive():
    module = parse_module(PROGRAM, make_context())
    (function,) = functions_of(module.operation)
    x, y = 8 * 64 * 4, 8 * 16 * 4
    assert live_steps(function) == [
        Step("gemm_0", "a", x + y),
        Step("torch.aten.relu", "b", y + y),
        Step("torch.aten.relu", "c", y + y),
    ]
