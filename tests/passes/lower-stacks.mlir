// RUN: steelyard-opt %s -p 'scaled-lower-stacks{target=cpu}' | FileCheck %s
// RUN: steelyard-opt %s -p 'scaled-lower-stacks{target=cuda:sm_100a}' | FileCheck %s --check-prefix=CUDA
// RUN: not steelyard-opt %s -p 'scaled-lower-stacks{target=abacus}' 2>&1 | FileCheck %s --check-prefix=TARGET

// TARGET: target must be one of {{.*}}, got 'abacus'
// CUDA-NOT: torch.aten.cat

// Pairs, as rotary embeddings interleave them; a size that is known only at run time may be among the others.
// CHECK-LABEL: func.func @pairs
// CHECK-NOT: torch.aten.stack
// CHECK: %[[A:.*]] = torch.aten.unsqueeze %arg0, %int2{{[_0-9]*}} : {{.*}} -> !torch.vtensor<[2,?,1],f32>
// CHECK: %[[B:.*]] = torch.aten.unsqueeze %arg1, %int2{{[_0-9]*}} : {{.*}} -> !torch.vtensor<[2,?,1],f32>
// CHECK: %[[L:.*]] = torch.prim.ListConstruct %[[A]], %[[B]]
// CHECK: %[[C:.*]] = torch.aten.cat %[[L]], %int2{{[_0-9]*}} : {{.*}} -> !torch.vtensor<[2,?,2],f32>
// CHECK: return %[[C]]
func.func @pairs(%x: !torch.vtensor<[2,?],f32>, %y: !torch.vtensor<[2,?],f32>) -> !torch.vtensor<[2,?,2],f32> {
  %dim = torch.constant.int -1
  %0 = torch.prim.ListConstruct %x, %y : (!torch.vtensor<[2,?],f32>, !torch.vtensor<[2,?],f32>) -> !torch.list<vtensor>
  %1 = torch.operator "torch.aten.stack"(%0, %dim) : (!torch.list<vtensor>, !torch.int) -> !torch.vtensor<[2,?,2],f32>
  return %1 : !torch.vtensor<[2,?,2],f32>
}

// Numbers, of which a tensor of one dim is made.
// CHECK-LABEL: func.func @numbers
// CHECK: torch.aten.unsqueeze {{.*}} -> !torch.vtensor<[1],si64>
// CHECK: torch.aten.cat {{.*}} -> !torch.vtensor<[2],si64>
func.func @numbers(%x: !torch.vtensor<[],si64>) -> !torch.vtensor<[2],si64> {
  %dim = torch.constant.int 0
  %0 = torch.prim.ListConstruct %x, %x : (!torch.vtensor<[],si64>, !torch.vtensor<[],si64>) -> !torch.list<vtensor>
  %1 = torch.operator "torch.aten.stack"(%0, %dim) : (!torch.list<vtensor>, !torch.int) -> !torch.vtensor<[2],si64>
  return %1 : !torch.vtensor<[2],si64>
}

// A dim that is known only at run time.
// CHECK-LABEL: func.func @torchs_own
// CHECK: torch.aten.stack
func.func @torchs_own(%x: !torch.vtensor<[2],f32>, %dim: !torch.int) -> !torch.vtensor<[2,2],f32> {
  %0 = torch.prim.ListConstruct %x, %x : (!torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>) -> !torch.list<vtensor>
  %1 = torch.operator "torch.aten.stack"(%0, %dim) : (!torch.list<vtensor>, !torch.int) -> !torch.vtensor<[2,2],f32>
  return %1 : !torch.vtensor<[2,2],f32>
}
