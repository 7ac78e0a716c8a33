// RUN: steelyard-opt %s -p 'scaled-lower-blocks{target=cpu}' | FileCheck %s
// RUN: steelyard-opt %s -p 'scaled-lower-blocks{target=cuda:sm_100a}' | FileCheck %s --check-prefix=CUDA
// RUN: not steelyard-opt %s -p 'scaled-lower-blocks{target=abacus}' 2>&1 | FileCheck %s --check-prefix=TARGET

// TARGET: target must be one of {{.*}}, got 'abacus'
// CUDA-COUNT-2: torch.steelyard.call_block

// CHECK-DAG: func.func private @block_0(!torch.vtensor<[2,8],f32>, !torch.vtensor<[4],f32>) -> (!torch.vtensor<[4],f32>, !torch.vtensor<[2,8],f32>) attributes {scaled.config = {number = 0 : i64}, scaled.destinations, scaled.device = "cpu", scaled.kernel = "block", scaled.operands = ["argument0", "argument1"], scaled.results = ["result0", "result1"]}
// CHECK-DAG: func.func private @block_1(!torch.vtensor<[2,8],f32>) -> !torch.vtensor<[2,8],f32> attributes {scaled.config = {number = 1 : i64}

// CHECK-LABEL: func.func @step
// CHECK-NOT: torch.prim.ListConstruct
// CHECK: %[[A:.*]]:2 = call @block_0(%arg0, %arg1)
// CHECK: %[[B:.*]] = call @block_1(%[[A]]#1)
// CHECK: return %[[A]]#0, %[[B]]
func.func @step(%x: !torch.vtensor<[2,8],f32>, %cache: !torch.vtensor<[4],f32>) -> (!torch.vtensor<[4],f32>, !torch.vtensor<[2,8],f32>) {
  %first = torch.constant.int 0
  %0 = torch.prim.ListConstruct %x, %cache : (!torch.vtensor<[2,8],f32>, !torch.vtensor<[4],f32>) -> !torch.list<vtensor>
  %1:2 = torch.operator "torch.steelyard.call_block.r2"(%first, %0) : (!torch.int, !torch.list<vtensor>) -> (!torch.vtensor<[4],f32>, !torch.vtensor<[2,8],f32>)
  %second = torch.constant.int 1
  %2 = torch.prim.ListConstruct %1#1 : (!torch.vtensor<[2,8],f32>) -> !torch.list<vtensor>
  %3 = torch.operator "torch.steelyard.call_block.r1"(%second, %2) : (!torch.int, !torch.list<vtensor>) -> !torch.vtensor<[2,8],f32>
  return %1#0, %3 : !torch.vtensor<[4],f32>, !torch.vtensor<[2,8],f32>
}
