// RUN: steelyard-opt %s -p scaled-fuse-epilogue,canonicalize | FileCheck %s

// An activation is fused through the views that torch puts behind a linear layer.
// CHECK-LABEL: func.func @activation_behind_view
// CHECK: %[[Y:.*]] = scaled.gemm {{\w+}} %arg0, %arg1 bias(%arg2) epilogue(gelu) {{.*}} -> !torch.vtensor<[10,48],f32>
// CHECK: %[[V:.*]] = torch.aten.view %[[Y]]
// CHECK-NOT: torch.aten.gelu
// CHECK: return %[[V]]
func.func @activation_behind_view(%x: !scaled.tensor<10x64xf32, #mxfp8_1x32>, %w: !scaled.tensor<48x64xf32, #mxfp8_1x32>, %b: !torch.vtensor<[48],f32>) -> !torch.vtensor<[2,5,48],f32> {
  %y = scaled.gemm fprop %x, %w bias(%b) at "up" : !scaled.tensor<10x64xf32, #mxfp8_1x32>, !scaled.tensor<48x64xf32, #mxfp8_1x32>, !torch.vtensor<[48],f32> -> !torch.vtensor<[10,48],f32>
  %two = torch.constant.int 2
  %five = torch.constant.int 5
  %width = torch.constant.int 48
  %sizes = torch.prim.ListConstruct %two, %five, %width : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %v = torch.aten.view %y, %sizes : !torch.vtensor<[10,48],f32>, !torch.list<int> -> !torch.vtensor<[2,5,48],f32>
  %none = torch.constant.str "none"
  %g = torch.aten.gelu %v, %none : !torch.vtensor<[2,5,48],f32>, !torch.str -> !torch.vtensor<[2,5,48],f32>
  return %g : !torch.vtensor<[2,5,48],f32>
}

// An activation and then a residual, which takes the product's shape.
// CHECK-LABEL: func.func @activation_and_residual
// CHECK: %[[R:.*]] = torch.aten.reshape %arg2, {{.*}} -> !torch.vtensor<[?,48],bf16>
// CHECK: %[[Y:.*]] = scaled.gemm {{\w+}} %arg0, %arg1 epilogue(silu) residual(%[[R]])
// CHECK: %[[V:.*]] = torch.aten.view %[[Y]]
// CHECK: return %[[V]]
func.func @activation_and_residual(%x: !scaled.tensor<?x64xbf16, #mxfp8_1x32>, %w: !scaled.tensor<48x64xbf16, #mxfp8_1x32>, %r: !torch.vtensor<[2,?,48],bf16>, %n: !torch.int) -> !torch.vtensor<[2,?,48],bf16> {
  %y = scaled.gemm fprop %x, %w at "up" : !scaled.tensor<?x64xbf16, #mxfp8_1x32>, !scaled.tensor<48x64xbf16, #mxfp8_1x32> -> !torch.vtensor<[?,48],bf16>
  %s = torch.aten.silu %y : !torch.vtensor<[?,48],bf16> -> !torch.vtensor<[?,48],bf16>
  %two = torch.constant.int 2
  %width = torch.constant.int 48
  %sizes = torch.prim.ListConstruct %two, %n, %width : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %v = torch.aten.view %s, %sizes : !torch.vtensor<[?,48],bf16>, !torch.list<int> -> !torch.vtensor<[2,?,48],bf16>
  %one = torch.constant.int 1
  %a = torch.aten.add.Tensor %r, %v, %one : !torch.vtensor<[2,?,48],bf16>, !torch.vtensor<[2,?,48],bf16>, !torch.int -> !torch.vtensor<[2,?,48],bf16>
  return %a : !torch.vtensor<[2,?,48],bf16>
}

// A result that something else reads, a factor, a broadcast and another order stay.
// CHECK-LABEL: func.func @stays
// CHECK: scaled.gemm fprop %arg0, %arg1 at "a"
// CHECK: torch.aten.relu
// CHECK: scaled.gemm fprop %arg0, %arg1 at "b"
// CHECK: torch.aten.add.Tensor
// CHECK: scaled.gemm fprop %arg0, %arg1 at "c"
// CHECK: torch.aten.add.Tensor
// CHECK: scaled.gemm fprop %arg0, %arg1 residual(%{{.*}}) at "d"
// CHECK: torch.aten.relu
func.func @stays(%x: !scaled.tensor<10x64xf32, #mxfp8_1x32>, %w: !scaled.tensor<48x64xf32, #mxfp8_1x32>, %r: !torch.vtensor<[10,48],f32>, %row: !torch.vtensor<[1,48],f32>) -> (!torch.vtensor<[10,48],f32>, !torch.vtensor<[10,48],f32>, !torch.vtensor<[10,48],f32>, !torch.vtensor<[10,48],f32>, !torch.vtensor<[10,48],f32>) {
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %0 = scaled.gemm fprop %x, %w at "a" : !scaled.tensor<10x64xf32, #mxfp8_1x32>, !scaled.tensor<48x64xf32, #mxfp8_1x32> -> !torch.vtensor<[10,48],f32>
  %relu = torch.aten.relu %0 : !torch.vtensor<[10,48],f32> -> !torch.vtensor<[10,48],f32>
  %1 = scaled.gemm fprop %x, %w at "b" : !scaled.tensor<10x64xf32, #mxfp8_1x32>, !scaled.tensor<48x64xf32, #mxfp8_1x32> -> !torch.vtensor<[10,48],f32>
  %factor = torch.aten.add.Tensor %r, %1, %two : !torch.vtensor<[10,48],f32>, !torch.vtensor<[10,48],f32>, !torch.int -> !torch.vtensor<[10,48],f32>
  %2 = scaled.gemm fprop %x, %w at "c" : !scaled.tensor<10x64xf32, #mxfp8_1x32>, !scaled.tensor<48x64xf32, #mxfp8_1x32> -> !torch.vtensor<[10,48],f32>
  %broadcast = torch.aten.add.Tensor %2, %row, %one : !torch.vtensor<[10,48],f32>, !torch.vtensor<[1,48],f32>, !torch.int -> !torch.vtensor<[10,48],f32>
  %3 = scaled.gemm fprop %x, %w at "d" : !scaled.tensor<10x64xf32, #mxfp8_1x32>, !scaled.tensor<48x64xf32, #mxfp8_1x32> -> !torch.vtensor<[10,48],f32>
  %sum = torch.aten.add.Tensor %3, %r, %one : !torch.vtensor<[10,48],f32>, !torch.vtensor<[10,48],f32>, !torch.int -> !torch.vtensor<[10,48],f32>
  %late = torch.aten.relu %sum : !torch.vtensor<[10,48],f32> -> !torch.vtensor<[10,48],f32>
  return %0, %relu, %factor, %broadcast, %late : !torch.vtensor<[10,48],f32>, !torch.vtensor<[10,48],f32>, !torch.vtensor<[10,48],f32>, !torch.vtensor<[10,48],f32>, !torch.vtensor<[10,48],f32>
}

// The backward reads what the activation is given: it is a second result, behind the same views.
// CHECK-LABEL: func.func @preactivation
// CHECK: %[[Y:.*]]:2 = scaled.gemm {{\w+}} %arg0, %arg1 epilogue(gelu)
// CHECK-DAG: %[[P:.*]] = torch.aten.view %[[Y]]#1
// CHECK-DAG: %[[G:.*]] = torch.aten.view %[[Y]]#0
// CHECK-NOT: torch.aten.gelu %
// CHECK: torch.aten.neg %[[G]]
// CHECK: torch.aten.gelu_backward %arg2, %[[P]]
func.func @preactivation(%x: !scaled.tensor<10x64xf32, #mxfp8_1x32>, %w: !scaled.tensor<48x64xf32, #mxfp8_1x32>, %dy: !torch.vtensor<[2,5,48],f32> {scaled.tangent}) -> (!torch.vtensor<[2,5,48],f32>, !torch.vtensor<[2,5,48],f32>) {
  %y = scaled.gemm fprop %x, %w at "up" : !scaled.tensor<10x64xf32, #mxfp8_1x32>, !scaled.tensor<48x64xf32, #mxfp8_1x32> -> !torch.vtensor<[10,48],f32>
  %two = torch.constant.int 2
  %five = torch.constant.int 5
  %width = torch.constant.int 48
  %sizes = torch.prim.ListConstruct %two, %five, %width : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %v = torch.aten.view %y, %sizes : !torch.vtensor<[10,48],f32>, !torch.list<int> -> !torch.vtensor<[2,5,48],f32>
  %none = torch.constant.str "none"
  %g = torch.aten.gelu %v, %none : !torch.vtensor<[2,5,48],f32>, !torch.str -> !torch.vtensor<[2,5,48],f32>
  %n = torch.aten.neg %g : !torch.vtensor<[2,5,48],f32> -> !torch.vtensor<[2,5,48],f32>
  %b = torch.aten.gelu_backward %dy, %v, %none : !torch.vtensor<[2,5,48],f32>, !torch.vtensor<[2,5,48],f32>, !torch.str -> !torch.vtensor<[2,5,48],f32>
  return %n, %b : !torch.vtensor<[2,5,48],f32>, !torch.vtensor<[2,5,48],f32>
}

// The backward reads both: it computes the activation again, and one of them is kept.
// CHECK-LABEL: func.func @both_read
// CHECK: scaled.gemm fprop %arg0, %arg1 at "up"
// CHECK: torch.aten.silu
func.func @both_read(%x: !scaled.tensor<10x64xf32, #mxfp8_1x32>, %w: !scaled.tensor<48x64xf32, #mxfp8_1x32>, %dy: !torch.vtensor<[10,48],f32> {scaled.tangent}) -> (!torch.vtensor<[10,48],f32>, !torch.vtensor<[10,48],f32>, !torch.vtensor<[10,48],f32>) {
  %y = scaled.gemm fprop %x, %w at "up" : !scaled.tensor<10x64xf32, #mxfp8_1x32>, !scaled.tensor<48x64xf32, #mxfp8_1x32> -> !torch.vtensor<[10,48],f32>
  %s = torch.aten.silu %y : !torch.vtensor<[10,48],f32> -> !torch.vtensor<[10,48],f32>
  %0 = torch.aten.mul.Tensor %dy, %s : !torch.vtensor<[10,48],f32>, !torch.vtensor<[10,48],f32> -> !torch.vtensor<[10,48],f32>
  %1 = torch.aten.mul.Tensor %dy, %y : !torch.vtensor<[10,48],f32>, !torch.vtensor<[10,48],f32> -> !torch.vtensor<[10,48],f32>
  return %s, %0, %1 : !torch.vtensor<[10,48],f32>, !torch.vtensor<[10,48],f32>, !torch.vtensor<[10,48],f32>
}

// One op of the backward reads what two activations are given.
// CHECK-LABEL: func.func @two_preactivations
// CHECK: %[[A:.*]]:2 = scaled.gemm{{.*}}epilogue(gelu)
// CHECK: %[[B:.*]]:2 = scaled.gemm{{.*}}epilogue(silu)
// CHECK: torch.aten.addcmul %arg2, %[[A]]#1, %[[B]]#1
func.func @two_preactivations(%x: !scaled.tensor<10x64xf32, #mxfp8_1x32>, %w: !scaled.tensor<48x64xf32, #mxfp8_1x32>, %dy: !torch.vtensor<[10,48],f32> {scaled.tangent}) -> (!torch.vtensor<[10,48],f32>, !torch.vtensor<[10,48],f32>, !torch.vtensor<[10,48],f32>) {
  %a = scaled.gemm fprop %x, %w at "up" : !scaled.tensor<10x64xf32, #mxfp8_1x32>, !scaled.tensor<48x64xf32, #mxfp8_1x32> -> !torch.vtensor<[10,48],f32>
  %b = scaled.gemm fprop %x, %w at "gate" : !scaled.tensor<10x64xf32, #mxfp8_1x32>, !scaled.tensor<48x64xf32, #mxfp8_1x32> -> !torch.vtensor<[10,48],f32>
  %none = torch.constant.str "none"
  %one = torch.constant.int 1
  %g = torch.aten.gelu %a, %none : !torch.vtensor<[10,48],f32>, !torch.str -> !torch.vtensor<[10,48],f32>
  %s = torch.aten.silu %b : !torch.vtensor<[10,48],f32> -> !torch.vtensor<[10,48],f32>
  %d = torch.aten.addcmul %dy, %a, %b, %one : !torch.vtensor<[10,48],f32>, !torch.vtensor<[10,48],f32>, !torch.vtensor<[10,48],f32>, !torch.int -> !torch.vtensor<[10,48],f32>
  return %g, %s, %d : !torch.vtensor<[10,48],f32>, !torch.vtensor<[10,48],f32>, !torch.vtensor<[10,48],f32>
}
