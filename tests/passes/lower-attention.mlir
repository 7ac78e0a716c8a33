// RUN: steelyard-opt %s -p 'scaled-lower-attention{target=cpu}' | FileCheck %s
// RUN: steelyard-opt %s -p 'scaled-lower-attention{target=cpu},scaled-select-kernels{target=cpu},scaled-plan-memory' | FileCheck %s --check-prefix=PLANNED
// RUN: steelyard-opt %s -p 'scaled-lower-attention{target=cuda:sm_100a}' | FileCheck %s --check-prefix=CUDA
// RUN: not steelyard-opt %s -p 'scaled-lower-attention{target=abacus}' 2>&1 | FileCheck %s --check-prefix=TARGET

// TARGET: target must be one of {{.*}}, got 'abacus'
// CUDA-NOT: scaled.kernel
// CUDA-COUNT-6: torch.aten._scaled_dot_product_flash_attention_for_cpu

// Both layers share a kernel; a mask, or another scale, makes another.
// CHECK: func.func private @attention_0(!torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,2,7,16],f32>, !torch.vtensor<[2,2,7,16],f32>) -> (!torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5],f32>)
// CHECK-SAME: scaled.config = {causal = true}, scaled.kernel = "attention", scaled.operands = ["query", "key", "value"], scaled.results = ["result", "logsumexp"]
// CHECK: func.func private @attention_1
// CHECK-SAME: scaled.config = {scale = 5.000000e-01 : f64}, scaled.kernel = "attention", scaled.operands = ["query", "key", "value", "mask"]
// CHECK: func.func private @attention_backward_0
// CHECK-SAME: scaled.config = {causal = true, scale = 5.000000e-01 : f64}, scaled.kernel = "attention_backward", scaled.operands = ["grad_out", "query", "key", "value", "out", "logsumexp", "mask"], scaled.results = ["grad_query", "grad_key", "grad_value"]
// CHECK-NOT: func.func private

// The kernel writes its results where it is told.
// PLANNED: func.func private @attention_0
// PLANNED-SAME: scaled.destinations, scaled.device = "cpu"

// CHECK-LABEL: func.func @two_layers
// CHECK: %[[A:.*]]:2 = call @attention_0(%arg0, %arg1, %arg1)
// CHECK: %[[B:.*]]:2 = call @attention_0(%[[A]]#0, %arg1, %arg1)
// CHECK: return %[[B]]#0, %[[A]]#1
func.func @two_layers(%q: !torch.vtensor<[2,4,5,16],f32>, %k: !torch.vtensor<[2,2,7,16],f32>) -> (!torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5],f32>) {
  %zero = torch.constant.float 0.0
  %true = torch.constant.bool true
  %none = torch.constant.none
  %0:2 = torch.operator "torch.aten._scaled_dot_product_flash_attention_for_cpu"(%q, %k, %k, %zero, %true, %none, %none) : (!torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,2,7,16],f32>, !torch.vtensor<[2,2,7,16],f32>, !torch.float, !torch.bool, !torch.none, !torch.none) -> (!torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5],f32>)
  %1:2 = torch.operator "torch.aten._scaled_dot_product_flash_attention_for_cpu"(%0#0, %k, %k, %zero, %true, %none, %none) : (!torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,2,7,16],f32>, !torch.vtensor<[2,2,7,16],f32>, !torch.float, !torch.bool, !torch.none, !torch.none) -> (!torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5],f32>)
  return %1#0, %0#1 : !torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5],f32>
}

// CHECK-LABEL: func.func @mask_and_scale
// CHECK: call @attention_1(%arg0, %arg0, %arg0, %arg1)
func.func @mask_and_scale(%q: !torch.vtensor<[?,4,?,16],bf16>, %mask: !torch.vtensor<[?,?],f32>) -> !torch.vtensor<[?,4,?,16],bf16> {
  %zero = torch.constant.float 0.0
  %false = torch.constant.bool false
  %half = torch.constant.float 0.5
  %0:2 = torch.operator "torch.aten._scaled_dot_product_flash_attention_for_cpu"(%q, %q, %q, %zero, %false, %mask, %half) : (!torch.vtensor<[?,4,?,16],bf16>, !torch.vtensor<[?,4,?,16],bf16>, !torch.vtensor<[?,4,?,16],bf16>, !torch.float, !torch.bool, !torch.vtensor<[?,?],f32>, !torch.float) -> (!torch.vtensor<[?,4,?,16],bf16>, !torch.vtensor<[?,4,?],f32>)
  return %0#0 : !torch.vtensor<[?,4,?,16],bf16>
}

// What the kernel has no part of stays torch's: dropout, another dtype, a scale that is not known.
// CHECK-LABEL: func.func @torchs_own
// CHECK-NOT: call
// CHECK-COUNT-3: torch.aten._scaled_dot_product_flash_attention_for_cpu"
func.func @torchs_own(%q: !torch.vtensor<[2,4,5,16],f32>, %d: !torch.vtensor<[2,4,5,16],f64>, %scale: !torch.float) -> (!torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5,16],f64>, !torch.vtensor<[2,4,5,16],f32>) {
  %zero = torch.constant.float 0.0
  %tenth = torch.constant.float 0.1
  %true = torch.constant.bool true
  %none = torch.constant.none
  %0:2 = torch.operator "torch.aten._scaled_dot_product_flash_attention_for_cpu"(%q, %q, %q, %tenth, %true, %none, %none) : (!torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5,16],f32>, !torch.float, !torch.bool, !torch.none, !torch.none) -> (!torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5],f32>)
  %1:2 = torch.operator "torch.aten._scaled_dot_product_flash_attention_for_cpu"(%d, %d, %d, %zero, %true, %none, %none) : (!torch.vtensor<[2,4,5,16],f64>, !torch.vtensor<[2,4,5,16],f64>, !torch.vtensor<[2,4,5,16],f64>, !torch.float, !torch.bool, !torch.none, !torch.none) -> (!torch.vtensor<[2,4,5,16],f64>, !torch.vtensor<[2,4,5],f64>)
  %2:2 = torch.operator "torch.aten._scaled_dot_product_flash_attention_for_cpu"(%q, %q, %q, %zero, %true, %none, %scale) : (!torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5,16],f32>, !torch.float, !torch.bool, !torch.none, !torch.float) -> (!torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5],f32>)
  return %0#0, %1#0, %2#0 : !torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5,16],f64>, !torch.vtensor<[2,4,5,16],f32>
}

// CHECK-LABEL: func.func @backward
// CHECK: %[[G:.*]]:3 = call @attention_backward_0(%arg0, %arg1, %arg1, %arg1, %arg2, %arg3, %arg4)
// CHECK: torch.aten._scaled_dot_product_flash_attention_for_cpu_backward
// CHECK: return %[[G]]#0
func.func @backward(%grad: !torch.vtensor<[2,4,5,16],f32>, %q: !torch.vtensor<[2,4,5,16],f32>, %out: !torch.vtensor<[2,4,5,16],f32>, %sums: !torch.vtensor<[2,4,5],f32>, %mask: !torch.vtensor<[5,5],f32>) -> (!torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5,16],f32>) {
  %zero = torch.constant.float 0.0
  %tenth = torch.constant.float 0.1
  %true = torch.constant.bool true
  %half = torch.constant.float 0.5
  %0:3 = torch.operator "torch.aten._scaled_dot_product_flash_attention_for_cpu_backward"(%grad, %q, %q, %q, %out, %sums, %zero, %true, %mask, %half) : (!torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5],f32>, !torch.float, !torch.bool, !torch.vtensor<[5,5],f32>, !torch.float) -> (!torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5,16],f32>)
  %1:3 = torch.operator "torch.aten._scaled_dot_product_flash_attention_for_cpu_backward"(%grad, %q, %q, %q, %out, %sums, %tenth, %true, %mask, %half) : (!torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5],f32>, !torch.float, !torch.bool, !torch.vtensor<[5,5],f32>, !torch.float) -> (!torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5,16],f32>)
  return %0#0, %1#0 : !torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5,16],f32>
}
