// RUN: steelyard-opt %s -p 'scaled-fuse-elementwise{target=cpu}' | FileCheck %s

// What has torch's bits is computed together with its neighbours; so are gelu, silu, tanh and sigmoid, which are never
// torch's. What only the backward sees has the order of kernels.
// CHECK: func.func private @elementwise_0
// CHECK-SAME: "v1 = gelu_tanh v0", {{.*}} "v3 = mul v1 v2", "v4 = tanh v3"
// CHECK: func.func private @elementwise_1
// CHECK-SAME: "v0 = load in0[d1, d0]", "v1 = neg v0"
// CHECK: func.func private @elementwise_2
// CHECK-SAME: "v2 = gelu_backward v0 v1", "v3 = add v2 v2"
// CHECK: func.func private @elementwise_3
// CHECK-SAME: "v2 = silu_backward v0 v1"

// Other series have torch's bits.
// CHECK-LABEL: func.func @forward
// CHECK: %[[G:.*]] = call @elementwise_0(%arg0, %arg1)
// CHECK-DAG: %[[T:.*]] = torch.aten.erf %[[G]]
// CHECK-DAG: %[[S:.*]] = call @elementwise_1(%arg0)
// CHECK: return %[[T]], %[[S]]
func.func @forward(%x: !torch.vtensor<[2,3],f32>, %y: !torch.vtensor<[2,3],f32>) -> (!torch.vtensor<[2,3],f32>, !torch.vtensor<[3,2],f32> {scaled.saved}) {
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %tanh = torch.constant.str "tanh"
  %0 = torch.aten.gelu %x, %tanh : !torch.vtensor<[2,3],f32>, !torch.str -> !torch.vtensor<[2,3],f32>
  %1 = torch.aten.mul.Tensor %0, %y : !torch.vtensor<[2,3],f32>, !torch.vtensor<[2,3],f32> -> !torch.vtensor<[2,3],f32>
  %2 = torch.aten.tanh %1 : !torch.vtensor<[2,3],f32> -> !torch.vtensor<[2,3],f32>
  %3 = torch.aten.transpose.int %x, %zero, %one : !torch.vtensor<[2,3],f32>, !torch.int, !torch.int -> !torch.vtensor<[3,2],f32>
  %4 = torch.aten.neg %3 : !torch.vtensor<[3,2],f32> -> !torch.vtensor<[3,2],f32>
  %5 = torch.aten.erf %2 : !torch.vtensor<[2,3],f32> -> !torch.vtensor<[2,3],f32>
  return %5, %4 : !torch.vtensor<[2,3],f32>, !torch.vtensor<[3,2],f32>
}

// The last result has an order that torch would not give it: as a sum it would stay torch's.
// CHECK-LABEL: func.func @backward
// CHECK: call @elementwise_2(%arg0, %arg1)
// CHECK: %[[X:.*]] = torch.aten.transpose.int %arg0
// CHECK: %[[Y:.*]] = torch.aten.transpose.int %arg1
// CHECK: call @elementwise_3(%[[X]], %[[Y]])
// CHECK: torch.aten.add.Tensor %[[X]], %[[Y]]
func.func @backward(%x: !torch.vtensor<[2,3],f32>, %y: !torch.vtensor<[2,3],f32>) -> (!torch.vtensor<[2,3],f32>, !torch.vtensor<[3,2],f32>, !torch.vtensor<[3,2],f32>) {
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %none = torch.constant.str "none"
  %0 = torch.aten.gelu_backward %x, %y, %none : !torch.vtensor<[2,3],f32>, !torch.vtensor<[2,3],f32>, !torch.str -> !torch.vtensor<[2,3],f32>
  %1 = torch.aten.add.Tensor %0, %0, %one : !torch.vtensor<[2,3],f32>, !torch.vtensor<[2,3],f32>, !torch.int -> !torch.vtensor<[2,3],f32>
  %2 = torch.aten.transpose.int %x, %zero, %one : !torch.vtensor<[2,3],f32>, !torch.int, !torch.int -> !torch.vtensor<[3,2],f32>
  %3 = torch.aten.transpose.int %y, %zero, %one : !torch.vtensor<[2,3],f32>, !torch.int, !torch.int -> !torch.vtensor<[3,2],f32>
  %4 = torch.operator "torch.aten.silu_backward"(%2, %3) : (!torch.vtensor<[3,2],f32>, !torch.vtensor<[3,2],f32>) -> !torch.vtensor<[3,2],f32>
  %5 = torch.aten.add.Tensor %2, %3, %one : !torch.vtensor<[3,2],f32>, !torch.vtensor<[3,2],f32>, !torch.int -> !torch.vtensor<[3,2],f32>
  return %1, %4, %5 : !torch.vtensor<[2,3],f32>, !torch.vtensor<[3,2],f32>, !torch.vtensor<[3,2],f32>
}
