// RUN: steelyard-opt %s -p 'scaled-fuse-elementwise{target=cpu}' | FileCheck %s

func.func private @positions_0(!torch.vtensor<[],si64>) -> !torch.vtensor<[3],si64> attributes {scaled.config = {}, scaled.destinations, scaled.device = "cpu", scaled.kernel = "positions", scaled.operands = ["start"], scaled.results = ["result"]}

// The numbers of positions are whole, whoever counts them: the sines stay torch's.
// CHECK-LABEL: func.func @angles_of_positions
// CHECK: call @positions_0
// CHECK-NOT: call @
// CHECK: torch.aten.sin
// CHECK-NOT: call @
func.func @angles_of_positions(%x: !torch.vtensor<[],si64>, %f: !torch.vtensor<[3],f32>) -> !torch.vtensor<[3],f32> {
  %0 = call @positions_0(%x) : (!torch.vtensor<[],si64>) -> !torch.vtensor<[3],si64>
  %1 = torch.aten.mul.Tensor %0, %f : !torch.vtensor<[3],si64>, !torch.vtensor<[3],f32> -> !torch.vtensor<[3],f32>
  %2 = torch.aten.sin %1 : !torch.vtensor<[3],f32> -> !torch.vtensor<[3],f32>
  return %2 : !torch.vtensor<[3],f32>
}
