// RUN: steelyard-opt %s -p 'scaled-lower-concatenation{target=cpu}' | FileCheck %s
// RUN: steelyard-opt %s -p 'scaled-lower-concatenation{target=cuda:sm_100a}' | FileCheck %s --check-prefix=CUDA
// RUN: not steelyard-opt %s -p 'scaled-lower-concatenation{target=abacus}' 2>&1 | FileCheck %s --check-prefix=TARGET

// TARGET: target must be one of {{.*}}, got 'abacus'
// CUDA-NOT: scaled.kernel
// CUDA-COUNT-5: torch.aten.cat

// CHECK: func.func private @concatenate_0(!torch.vtensor<[1,2,?,64],f32>, !torch.vtensor<[1,2,1,64],f32>) -> !torch.vtensor<[1,2,?,64],f32>
// CHECK-SAME: scaled.config = {dim = 2 : i64}, scaled.destinations, scaled.device = "cpu", scaled.kernel = "concatenate", scaled.operands = ["part0", "part1"], scaled.results = ["result"]

// A cache grows by a token.
// CHECK-LABEL: func.func @grow
// CHECK-NOT: torch.prim.ListConstruct
// CHECK: %[[A:.*]] = call @concatenate_0(%arg0, %arg1)
// CHECK: return %[[A]]
func.func @grow(%cache: !torch.vtensor<[1,2,?,64],f32>, %new: !torch.vtensor<[1,2,1,64],f32>) -> !torch.vtensor<[1,2,?,64],f32> {
  %dim = torch.constant.int -2
  %0 = torch.prim.ListConstruct %cache, %new : (!torch.vtensor<[1,2,?,64],f32>, !torch.vtensor<[1,2,1,64],f32>) -> !torch.list<vtensor>
  %1 = torch.operator "torch.aten.cat"(%0, %dim) : (!torch.list<vtensor>, !torch.int) -> !torch.vtensor<[1,2,?,64],f32>
  return %1 : !torch.vtensor<[1,2,?,64],f32>
}

// torch leaves out an empty tensor of one dim: what is left is copied for who called the function.
// CHECK-LABEL: func.func @returned
// CHECK: %[[B:.*]] = call @concatenate_1(%arg1) : (!torch.vtensor<[1,2,1,64],f32>) -> !torch.vtensor<[1,2,1,64],f32>
// CHECK: return %[[B]]
func.func @returned(%empty: !torch.vtensor<[0],f32>, %new: !torch.vtensor<[1,2,1,64],f32>) -> !torch.vtensor<[1,2,1,64],f32> {
  %dim = torch.constant.int 2
  %0 = torch.prim.ListConstruct %empty, %new : (!torch.vtensor<[0],f32>, !torch.vtensor<[1,2,1,64],f32>) -> !torch.list<vtensor>
  %1 = torch.operator "torch.aten.cat"(%0, %dim) : (!torch.list<vtensor>, !torch.int) -> !torch.vtensor<[1,2,1,64],f32>
  return %1 : !torch.vtensor<[1,2,1,64],f32>
}

// Kernels read the only part where it is; the empty tensor, and its copy, are of no use.
// CHECK-LABEL: func.func @read
// CHECK-NOT: torch.aten.clone
// CHECK: %[[C:.*]] = call @concatenate_0(%arg1, %arg2)
// CHECK: return %[[C]]
func.func @read(%empty: !torch.vtensor<[0],f32>, %cache: !torch.vtensor<[1,2,?,64],f32>, %new: !torch.vtensor<[1,2,1,64],f32>) -> !torch.vtensor<[1,2,?,64],f32> {
  %dim = torch.constant.int 2
  %none = torch.constant.none
  %copy = torch.operator "torch.aten.clone"(%empty, %none) : (!torch.vtensor<[0],f32>, !torch.none) -> !torch.vtensor<[0],f32>
  %0 = torch.prim.ListConstruct %copy, %cache : (!torch.vtensor<[0],f32>, !torch.vtensor<[1,2,?,64],f32>) -> !torch.list<vtensor>
  %1 = torch.operator "torch.aten.cat"(%0, %dim) : (!torch.list<vtensor>, !torch.int) -> !torch.vtensor<[1,2,?,64],f32>
  %2 = torch.prim.ListConstruct %1, %new : (!torch.vtensor<[1,2,?,64],f32>, !torch.vtensor<[1,2,1,64],f32>) -> !torch.list<vtensor>
  %3 = torch.operator "torch.aten.cat"(%2, %dim) : (!torch.list<vtensor>, !torch.int) -> !torch.vtensor<[1,2,?,64],f32>
  return %3 : !torch.vtensor<[1,2,?,64],f32>
}

// torch promotes dtypes.
// CHECK-LABEL: func.func @torchs_own
// CHECK: torch.aten.cat
func.func @torchs_own(%low: !torch.vtensor<[1,2,1,64],bf16>, %new: !torch.vtensor<[1,2,1,64],f32>) -> !torch.vtensor<[1,2,2,64],f32> {
  %dim = torch.constant.int 2
  %0 = torch.prim.ListConstruct %low, %new : (!torch.vtensor<[1,2,1,64],bf16>, !torch.vtensor<[1,2,1,64],f32>) -> !torch.list<vtensor>
  %1 = torch.operator "torch.aten.cat"(%0, %dim) : (!torch.list<vtensor>, !torch.int) -> !torch.vtensor<[1,2,2,64],f32>
  return %1 : !torch.vtensor<[1,2,2,64],f32>
}
