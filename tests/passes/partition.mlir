// RUN: steelyard-opt %s --split-input-file -p scaled-partition | FileCheck %s

// Of an input that is quantized twice over, the backward keeps the copy it reads; the high-precision input goes.
// CHECK-LABEL: func.func @forward(%arg0: !torch.vtensor<[8,64],f32>, %arg1: !scaled.tensor<48x64xf32, #mxfp8_1x32, #mxfp8_32x1> {scaled.parameter = "up.weight"})
// CHECK-SAME: -> (!torch.vtensor<[8,48],f32>, !scaled.tensor<8x64xf32, none, #mxfp8_32x1> {scaled.saved})
// CHECK: %[[X:.*]] = scaled.quantize {{\w+}} %arg0
// CHECK: %[[COLUMNS:.*]] = scaled.narrow %[[X]]
// CHECK: %[[Y:.*]] = scaled.gemm {{\w+}} %[[X]], %arg1
// CHECK: return %[[Y]], %[[COLUMNS]]
// CHECK-LABEL: func.func @backward(%arg0: !scaled.tensor<8x64xf32, none, #mxfp8_32x1> {scaled.saved}, %arg1: !torch.vtensor<[8,48],f32> {scaled.tangent})
// CHECK-SAME: -> (!torch.vtensor<[48,64],f32> {scaled.gradient = "up.weight"})
// CHECK: %[[DY:.*]] = scaled.quantize {{\w+}} %arg1
// CHECK: scaled.gemm wgrad %[[DY]], %arg0
func.func @joint(%x: !torch.vtensor<[8,64],f32>, %w: !scaled.tensor<48x64xf32, #mxfp8_1x32, #mxfp8_32x1> {scaled.parameter = "up.weight"}, %dy: !torch.vtensor<[8,48],f32> {scaled.tangent}) -> (!torch.vtensor<[8,48],f32>, !torch.vtensor<[48,64],f32> {scaled.gradient = "up.weight"}) {
  %0 = scaled.quantize input %x : !torch.vtensor<[8,64],f32> -> !scaled.tensor<8x64xf32, #mxfp8_1x32, #mxfp8_32x1>
  %1 = scaled.gemm fprop %0, %w at "up" : !scaled.tensor<8x64xf32, #mxfp8_1x32, #mxfp8_32x1>, !scaled.tensor<48x64xf32, #mxfp8_1x32, #mxfp8_32x1> -> !torch.vtensor<[8,48],f32>
  %2 = scaled.quantize grad_output %dy : !torch.vtensor<[8,48],f32> -> !scaled.tensor<8x48xf32, #mxfp8_1x32, #mxfp8_32x1>
  %3 = scaled.gemm wgrad %2, %0 at "up" : !scaled.tensor<8x48xf32, #mxfp8_1x32, #mxfp8_32x1>, !scaled.tensor<8x64xf32, #mxfp8_1x32, #mxfp8_32x1> -> !torch.vtensor<[48,64],f32>
  return %1, %3 : !torch.vtensor<[8,48],f32>, !torch.vtensor<[48,64],f32>
}

// -----

// A quantized weight is an argument of both: nothing is kept, its parameter comes along, sources are counted again.
// CHECK-LABEL: func.func @forward(%arg0: !torch.vtensor<[8,64],f32>, %arg1: !torch.vtensor<[48,64],f32> {scaled.parameter = "up.weight"}, %arg2: {{.*}}scaled.sources = array<i64: 1>, scaled.weight = @weight_0})
// CHECK-SAME: -> !torch.vtensor<[8,48],f32> {
// CHECK-LABEL: func.func @backward(%arg0: !torch.vtensor<[48,64],f32> {scaled.parameter = "up.weight", scaled.primal = 1 : i64}, %arg1: !torch.vtensor<[8,48],f32> {scaled.tangent}, %arg2: {{.*}}scaled.sources = array<i64: 0>, scaled.weight = @weight_0})
// CHECK: scaled.gemm dgrad {{.*}}, %arg2
func.func @joint(%x: !torch.vtensor<[8,64],f32>, %p: !torch.vtensor<[48,64],f32> {scaled.parameter = "up.weight"}, %dy: !torch.vtensor<[8,48],f32> {scaled.tangent}, %w: !scaled.tensor<48x64xf32, #mxfp8_1x32, #mxfp8_32x1> {scaled.parameter = "up.weight", scaled.sources = array<i64: 1>, scaled.weight = @weight_0}) -> (!torch.vtensor<[8,48],f32>, !torch.vtensor<[8,64],f32> {scaled.gradient = "input 0"}) {
  %0 = scaled.quantize input %x : !torch.vtensor<[8,64],f32> -> !scaled.tensor<8x64xf32, #mxfp8_1x32>
  %1 = scaled.gemm fprop %0, %w at "up" : !scaled.tensor<8x64xf32, #mxfp8_1x32>, !scaled.tensor<48x64xf32, #mxfp8_1x32, #mxfp8_32x1> -> !torch.vtensor<[8,48],f32>
  %2 = scaled.quantize grad_output %dy : !torch.vtensor<[8,48],f32> -> !scaled.tensor<8x48xf32, #mxfp8_1x32>
  %3 = scaled.gemm dgrad %2, %w at "up" : !scaled.tensor<8x48xf32, #mxfp8_1x32>, !scaled.tensor<48x64xf32, #mxfp8_1x32, #mxfp8_32x1> -> !torch.vtensor<[8,64],f32>
  return %1, %3 : !torch.vtensor<[8,48],f32>, !torch.vtensor<[8,64],f32>
}
func.func private @weight_0(%p: !torch.vtensor<[48,64],f32>) -> !scaled.tensor<48x64xf32, #mxfp8_1x32, #mxfp8_32x1>

// -----

// Pointwise values whose operands are kept, or are arguments, are computed again: silu of an input costs nothing.
// CHECK-LABEL: func.func @forward
// CHECK-SAME: -> !torch.vtensor<[8,64],f32> {
// CHECK-LABEL: func.func @backward(%arg0: !torch.vtensor<[8,64],f32> {scaled.primal = 0 : i64}, %arg1: !torch.vtensor<[8,64],f32> {scaled.tangent})
// CHECK: %[[S:.*]] = torch.aten.silu %arg0
// CHECK: torch.aten.mul.Tensor %arg1, %[[S]]
func.func @joint(%x: !torch.vtensor<[8,64],f32>, %dy: !torch.vtensor<[8,64],f32> {scaled.tangent}) -> (!torch.vtensor<[8,64],f32>, !torch.vtensor<[8,64],f32> {scaled.gradient = "input 0"}) {
  %0 = torch.aten.silu %x : !torch.vtensor<[8,64],f32> -> !torch.vtensor<[8,64],f32>
  %1 = torch.aten.mul.Tensor %dy, %0 : !torch.vtensor<[8,64],f32>, !torch.vtensor<[8,64],f32> -> !torch.vtensor<[8,64],f32>
  return %0, %1 : !torch.vtensor<[8,64],f32>, !torch.vtensor<[8,64],f32>
}

// -----

// What is no cheaper to compute again is kept: softmax; and a product of two values that nobody keeps.
// CHECK-LABEL: func.func @forward
// CHECK-SAME: -> (!torch.vtensor<[8,64],f32>, !torch.vtensor<[8,64],f32> {scaled.saved})
// CHECK: %[[A:.*]] = torch.aten._softmax
// CHECK: %[[B:.*]] = torch.aten.cumsum
// CHECK: %[[M:.*]] = torch.aten.mul.Tensor %[[A]], %[[B]]
// CHECK: return %[[M]], %[[M]]
func.func @joint(%x: !torch.vtensor<[8,64],f32>, %dy: !torch.vtensor<[8,64],f32> {scaled.tangent}) -> (!torch.vtensor<[8,64],f32>, !torch.vtensor<[8,64],f32> {scaled.gradient = "input 0"}) {
  %int1 = torch.constant.int 1
  %false = torch.constant.bool false
  %none = torch.constant.none
  %0 = torch.aten._softmax %x, %int1, %false : !torch.vtensor<[8,64],f32>, !torch.int, !torch.bool -> !torch.vtensor<[8,64],f32>
  %1 = torch.aten.cumsum %x, %int1, %none : !torch.vtensor<[8,64],f32>, !torch.int, !torch.none -> !torch.vtensor<[8,64],f32>
  %2 = torch.aten.mul.Tensor %0, %1 : !torch.vtensor<[8,64],f32>, !torch.vtensor<[8,64],f32> -> !torch.vtensor<[8,64],f32>
  %3 = torch.aten.mul.Tensor %dy, %2 : !torch.vtensor<[8,64],f32>, !torch.vtensor<[8,64],f32> -> !torch.vtensor<[8,64],f32>
  return %2, %3 : !torch.vtensor<[8,64],f32>, !torch.vtensor<[8,64],f32>
}

// -----

// A checkpointed region is computed again, but for its random numbers: the mask is kept.
// CHECK-LABEL: func.func @forward
// CHECK-SAME: !torch.vtensor<[8,64],i1> {scaled.saved})
// CHECK-LABEL: func.func @backward
// CHECK: torch.aten._softmax
// CHECK-NOT: torch.aten.native_dropout
// CHECK: return
func.func @joint(%x: !torch.vtensor<[8,64],f32>, %dy: !torch.vtensor<[8,64],f32> {scaled.tangent}) -> (!torch.vtensor<[8,64],f32>, !torch.vtensor<[8,64],f32> {scaled.gradient = "input 0"}) {
  %int1 = torch.constant.int 1
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %p = torch.constant.float 0.5
  %0 = torch.aten._softmax %x, %int1, %false : !torch.vtensor<[8,64],f32>, !torch.int, !torch.bool -> !torch.vtensor<[8,64],f32> loc("up"("recompute"("model.py":1:1)))
  %1, %mask = torch.aten.native_dropout %0, %p, %true : !torch.vtensor<[8,64],f32>, !torch.float, !torch.bool -> !torch.vtensor<[8,64],f32>, !torch.vtensor<[8,64],i1> loc("up"("recompute"("model.py":2:1)))
  %2 = torch.aten.mul.Tensor %dy, %mask : !torch.vtensor<[8,64],f32>, !torch.vtensor<[8,64],i1> -> !torch.vtensor<[8,64],f32>
  %3 = torch.aten.mul.Tensor %2, %0 : !torch.vtensor<[8,64],f32>, !torch.vtensor<[8,64],f32> -> !torch.vtensor<[8,64],f32>
  return %1, %3 : !torch.vtensor<[8,64],f32>, !torch.vtensor<[8,64],f32>
}

// -----

// Only tensors are kept: a size is computed again even if a checkpointed region asks to keep it.
// CHECK-LABEL: func.func @forward
// CHECK-NOT: !torch.int {scaled.saved}
// CHECK-LABEL: func.func @backward
// CHECK: torch.aten.size.int
func.func @joint(%x: !torch.vtensor<[?,64],f32>, %dy: !torch.vtensor<[?],f32> {scaled.tangent}) -> (!torch.vtensor<[?],f32>, !torch.vtensor<[?,64],f32> {scaled.gradient = "input 0"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int64 = torch.constant.int 64
  %false = torch.constant.bool false
  %none = torch.constant.none
  %size = torch.aten.size.int %x, %int0 : !torch.vtensor<[?,64],f32>, !torch.int -> !torch.int loc("up"("keep"("model.py":1:1)))
  %dims = torch.prim.ListConstruct %int1 : (!torch.int) -> !torch.list<int>
  %sum = torch.aten.sum.dim_IntList %x, %dims, %false, %none : !torch.vtensor<[?,64],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[?],f32>
  %column = torch.aten.unsqueeze %dy, %int1 : !torch.vtensor<[?],f32>, !torch.int -> !torch.vtensor<[?,1],f32>
  %sizes = torch.prim.ListConstruct %size, %int64 : (!torch.int, !torch.int) -> !torch.list<int>
  %dx = torch.aten.expand %column, %sizes, %false : !torch.vtensor<[?,1],f32>, !torch.list<int>, !torch.bool -> !torch.vtensor<[?,64],f32>
  return %sum, %dx : !torch.vtensor<[?],f32>, !torch.vtensor<[?,64],f32>
}

// -----

// What is computed again reads the scale that the forward read, not the next one; state is updated once.
// CHECK-LABEL: func.func @forward(%arg0: !torch.vtensor<[8,64],f32>, %arg1: !torch.vtensor<[],f32> {scaled.state = "up.input.scale"}
// CHECK-SAME: -> (!torch.vtensor<[8,64],f32>, !torch.vtensor<[],f32> {scaled.state = "up.input.scale"}, !torch.vtensor<[],f32> {scaled.saved})
// CHECK-LABEL: func.func @backward(%arg0: !torch.vtensor<[],f32> {scaled.saved}
// CHECK-NOT: scaled.state
// CHECK: %[[Q:.*]] = scaled.quantize {{\w+}} %{{.*}} scale(%arg0)
func.func @joint(%x: !torch.vtensor<[8,64],f32>, %dy: !torch.vtensor<[8,64],f32> {scaled.tangent}, %scale: !torch.vtensor<[],f32> {scaled.state = "up.input.scale"}) -> (!torch.vtensor<[8,64],f32>, !torch.vtensor<[8,64],f32> {scaled.gradient = "input 0"}, !torch.vtensor<[],f32> {scaled.state = "up.input.scale"}) {
  %0 = scaled.quantize input %x scale(%scale) at "up" : !torch.vtensor<[8,64],f32>, !torch.vtensor<[],f32> -> !scaled.tensor<8x64xf32, #fp8_tensor_delayed> loc("up"("recompute"("model.py":1:1)))
  %1 = scaled.dequantize rowwise %0 : !scaled.tensor<8x64xf32, #fp8_tensor_delayed> -> !torch.vtensor<[8,64],f32>
  %2 = torch.aten.mul.Tensor %dy, %1 : !torch.vtensor<[8,64],f32>, !torch.vtensor<[8,64],f32> -> !torch.vtensor<[8,64],f32>
  %3 = torch.aten.reciprocal %scale : !torch.vtensor<[],f32> -> !torch.vtensor<[],f32>
  return %1, %2, %3 : !torch.vtensor<[8,64],f32>, !torch.vtensor<[8,64],f32>, !torch.vtensor<[],f32>
}

// -----

// Random bits are those of the backward: their state is updated there.
// CHECK-LABEL: func.func @forward
// CHECK-NOT: scaled.advance_rng
// CHECK-LABEL: func.func @backward(%arg0: !torch.vtensor<[8,64],f32> {scaled.tangent}, %arg1: !torch.vtensor<[2],si64> {scaled.state = "rng"})
// CHECK: %[[R:.*]] = scaled.advance_rng %arg1
// CHECK: return %{{.*}}, %[[R]]
func.func @joint(%x: !torch.vtensor<[8,64],f32>, %dy: !torch.vtensor<[8,64],f32> {scaled.tangent}, %rng: !torch.vtensor<[2],si64> {scaled.state = "rng"}) -> (!torch.vtensor<[8,64],f32>, !torch.vtensor<[8,64],f32> {scaled.gradient = "input 0"}, !torch.vtensor<[2],si64> {scaled.state = "rng"}) {
  %0 = torch.aten.relu %x : !torch.vtensor<[8,64],f32> -> !torch.vtensor<[8,64],f32>
  %1 = torch.aten.neg %dy : !torch.vtensor<[8,64],f32> -> !torch.vtensor<[8,64],f32>
  %2 = scaled.advance_rng %rng : !torch.vtensor<[2],si64> -> !torch.vtensor<[2],si64>
  return %0, %1, %2 : !torch.vtensor<[8,64],f32>, !torch.vtensor<[8,64],f32>, !torch.vtensor<[2],si64>
}
