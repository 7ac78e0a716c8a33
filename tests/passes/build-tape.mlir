// RUN: steelyard-opt %s -p 'steelyard-raised,steelyard-quantized,steelyard-fused,steelyard-partitioned,steelyard-lowered' | FileCheck %s
// RUN: steelyard-opt %s -p 'steelyard-raised,steelyard-quantized,steelyard-fused,steelyard-partitioned,steelyard-lowered{target=cuda:sm_100a}' | FileCheck %s --check-prefix=CUDA

// Kernels of other targets are launched by Python.
// CUDA-NOT: scaled.tape

// A view among the kernels is a step, and so is what it reads from the arena. An op of torch's that reads no result of
// the tape does not end it. One that does, ends it, and a view that only such ops read is no step.
// CHECK-LABEL: func.func @forward
// CHECK: call @quantize_0({{.*}}scaled.tape = 0 : i64
// CHECK: %[[A:.*]] = call @gemm_0({{.*}}scaled.offsets = array<i64: 2112>, scaled.tape = 0 : i64
// CHECK: torch.aten.atan %arg0 : {{.*}}
// CHECK: torch.aten.transpose.int %[[A]], %{{.*}}, %{{.*}} {scaled.tape = 0 : i64}
// CHECK: call @quantize_1({{.*}}scaled.tape = 0 : i64
// CHECK: %[[B:.*]] = call @gemm_1({{.*}}scaled.offsets = array<i64: -1>, scaled.tape = 0 : i64
// CHECK: torch.aten.transpose.int %[[B]], %{{[^ ]*}}, %{{[^ ]*}} :
// CHECK: torch.aten.atan
// CHECK: call @quantize_0({{.*}}scaled.tape = 1 : i64
// CHECK: call @gemm_0({{.*}}scaled.tape = 1 : i64
func.func @forward(%x: !torch.vtensor<[2,16,64],f32>, %w: !torch.vtensor<[64,64],f32> {scaled.parameter = "w"}, %v: !torch.vtensor<[64,64],f32> {scaled.parameter = "v"}) -> (!torch.vtensor<[2,16,64],f32>, !torch.vtensor<[2,16,64],f32>) {
  %none = torch.constant.none
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %0 = torch.aten.linear %x, %w, %none : !torch.vtensor<[2,16,64],f32>, !torch.vtensor<[64,64],f32>, !torch.none -> !torch.vtensor<[2,16,64],f32>
  %side = torch.aten.atan %x : !torch.vtensor<[2,16,64],f32> -> !torch.vtensor<[2,16,64],f32>
  %t = torch.aten.transpose.int %0, %int0, %int1 : !torch.vtensor<[2,16,64],f32>, !torch.int, !torch.int -> !torch.vtensor<[16,2,64],f32>
  %1 = torch.aten.linear %t, %v, %none : !torch.vtensor<[16,2,64],f32>, !torch.vtensor<[64,64],f32>, !torch.none -> !torch.vtensor<[16,2,64],f32>
  %u = torch.aten.transpose.int %1, %int0, %int1 : !torch.vtensor<[16,2,64],f32>, !torch.int, !torch.int -> !torch.vtensor<[2,16,64],f32>
  %2 = torch.aten.atan %u : !torch.vtensor<[2,16,64],f32> -> !torch.vtensor<[2,16,64],f32>
  %3 = torch.aten.linear %2, %v, %none : !torch.vtensor<[2,16,64],f32>, !torch.vtensor<[64,64],f32>, !torch.none -> !torch.vtensor<[2,16,64],f32>
  return %3, %side : !torch.vtensor<[2,16,64],f32>, !torch.vtensor<[2,16,64],f32>
}

// A function that is one kernel is a tape.
// CHECK-LABEL: func.func @one
// CHECK: call @norm_0({{.*}}scaled.tape = 0 : i64
func.func @one(%x: !torch.vtensor<[2,64],f32>, %w: !torch.vtensor<[64],f32> {scaled.parameter = "n.weight"}) -> !torch.vtensor<[2,64],f32> {
  %none = torch.constant.none
  %int64 = torch.constant.int 64
  %float = torch.constant.float 1.000000e-05
  %sizes = torch.prim.ListConstruct %int64 : (!torch.int) -> !torch.list<int>
  %0:3 = torch.aten.native_layer_norm %x, %sizes, %w, %none, %float : !torch.vtensor<[2,64],f32>, !torch.list<int>, !torch.vtensor<[64],f32>, !torch.none, !torch.float -> !torch.vtensor<[2,64],f32>, !torch.vtensor<[2,1],f32>, !torch.vtensor<[2,1],f32>
  return %0#0 : !torch.vtensor<[2,64],f32>
}

// It is none between ops of torch's.
// CHECK-LABEL: func.func @between
// CHECK: call @norm_0(
// CHECK-NOT: scaled.tape
func.func @between(%x: !torch.vtensor<[2,64],f32>, %w: !torch.vtensor<[64],f32> {scaled.parameter = "n.weight"}) -> !torch.vtensor<[2,64],f32> {
  %none = torch.constant.none
  %int64 = torch.constant.int 64
  %float = torch.constant.float 1.000000e-05
  %sizes = torch.prim.ListConstruct %int64 : (!torch.int) -> !torch.list<int>
  %0:3 = torch.aten.native_layer_norm %x, %sizes, %w, %none, %float : !torch.vtensor<[2,64],f32>, !torch.list<int>, !torch.vtensor<[64],f32>, !torch.none, !torch.float -> !torch.vtensor<[2,64],f32>, !torch.vtensor<[2,1],f32>, !torch.vtensor<[2,1],f32>
  %1 = torch.aten.atan %0#0 : !torch.vtensor<[2,64],f32> -> !torch.vtensor<[2,64],f32>
  return %1 : !torch.vtensor<[2,64],f32>
}

// Weights are made once: no tape is worth its making.
// CHECK: func.func private @weight_0
// CHECK-NOT: scaled.tape
