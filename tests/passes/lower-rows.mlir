// RUN: steelyard-opt %s -p 'scaled-lower-rows{target=cpu}' --split-input-file | FileCheck %s
// RUN: steelyard-opt %s -p 'scaled-lower-rows{target=cuda:sm_100a}' --split-input-file | FileCheck %s --check-prefix=CUDA
// RUN: not steelyard-opt %s -p 'scaled-lower-rows{target=abacus}' --split-input-file 2>&1 | FileCheck %s --check-prefix=TARGET

// TARGET: target must be one of {{.*}}, got 'abacus'
// CUDA-NOT: scaled.kernel

// CHECK-DAG: func.func private @norm_0(!torch.vtensor<[2,?,16],f32>, !torch.vtensor<[16],f32>) -> !torch.vtensor<[2,?,16],f32> attributes {scaled.config = {epsilon = 1.000000e-05 : f64, kind = "rms_norm"}, scaled.destinations, scaled.device = "cpu", scaled.kernel = "norm", scaled.operands = ["source", "weight"], scaled.results = ["result"]}
// CHECK-DAG: func.func private @norm_1({{.*}}scaled.config = {epsilon = 1.000000e-05 : f64, kind = "layer_norm"}, {{.*}} scaled.operands = ["source", "weight", "bias"]
// CHECK-DAG: func.func private @norm_2({{.*}} scaled.operands = ["source"]
// CHECK-DAG: func.func private @norm_3({{.*}}) -> (!torch.vtensor<[3,16],f16>, !torch.vtensor<[3,1],f32>, !torch.vtensor<[3,1],f32>) {{.*}} scaled.results = ["result", "mean", "rstd"]}
// CHECK-DAG: func.func private @rows_0(!torch.vtensor<[2,?,16],bf16>) -> !torch.vtensor<[2,?,1],f32> attributes {scaled.config = {function = "mean"}
// CHECK-DAG: func.func private @rows_1({{.*}}scaled.config = {function = "sum"}
// CHECK-DAG: func.func private @rows_2({{.*}}scaled.config = {function = "softmax"}
// CHECK-DAG: func.func private @columns_0(!torch.vtensor<[2,?,16],bf16>) -> !torch.vtensor<[1,1,16],bf16> attributes {scaled.config = {dims = 2 : i64, function = "sum"}
// CHECK-DAG: func.func private @columns_1(!torch.vtensor<[4,8],f32>) -> !torch.vtensor<[8],f32> attributes {scaled.config = {dims = 1 : i64, function = "mean"}

// An RMS norm that two ops read.
// CHECK-LABEL: func.func @rms_norm
// CHECK-NOT: torch.aten
// CHECK: %[[A:.*]] = call @norm_0(%arg0, %arg1)
// CHECK: return %[[A]], %[[A]]
func.func @rms_norm(%x: !torch.vtensor<[2,?,16],f32>, %weight: !torch.vtensor<[16],f32>) -> (!torch.vtensor<[2,?,16],f32>, !torch.vtensor<[2,?,16],f32>) {
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %last = torch.constant.int -1
  %true = torch.constant.bool true
  %none = torch.constant.none
  %epsilon = torch.constant.float 1.000000e-05
  %dims = torch.prim.ListConstruct %last : (!torch.int) -> !torch.list<int>
  %0 = torch.aten.pow.Tensor_Scalar %x, %two : !torch.vtensor<[2,?,16],f32>, !torch.int -> !torch.vtensor<[2,?,16],f32>
  %1 = torch.aten.mean.dim %0, %dims, %true, %none : !torch.vtensor<[2,?,16],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[2,?,1],f32>
  %2 = torch.aten.add.Scalar %1, %epsilon, %one : !torch.vtensor<[2,?,1],f32>, !torch.float, !torch.int -> !torch.vtensor<[2,?,1],f32>
  %3 = torch.aten.rsqrt %2 : !torch.vtensor<[2,?,1],f32> -> !torch.vtensor<[2,?,1],f32>
  %4 = torch.aten.mul.Tensor %x, %3 : !torch.vtensor<[2,?,16],f32>, !torch.vtensor<[2,?,1],f32> -> !torch.vtensor<[2,?,16],f32>
  %5 = torch.aten.mul.Tensor %weight, %4 : !torch.vtensor<[16],f32>, !torch.vtensor<[2,?,16],f32> -> !torch.vtensor<[2,?,16],f32>
  return %5, %5 : !torch.vtensor<[2,?,16],f32>, !torch.vtensor<[2,?,16],f32>
}

// CHECK-LABEL: func.func @layer_norms
// CHECK: call @norm_1(%arg0, %arg1, %arg2)
// CHECK: call @norm_2(%arg0)
// Its statistics are read, too.
// CHECK: %[[A:.*]]:3 = call @norm_3(%arg0, %arg1, %arg2)
// CHECK: return {{.*}}, %[[A]]#0, %[[A]]#1
func.func @layer_norms(%x: !torch.vtensor<[3,16],f16>, %weight: !torch.vtensor<[16],f16>, %bias: !torch.vtensor<[16],f16>) -> (!torch.vtensor<[3,16],f16>, !torch.vtensor<[3,16],f16>, !torch.vtensor<[3,16],f16>, !torch.vtensor<[3,1],f32>) {
  %size = torch.constant.int 16
  %none = torch.constant.none
  %epsilon = torch.constant.float 1.000000e-05
  %sizes = torch.prim.ListConstruct %size : (!torch.int) -> !torch.list<int>
  %0:3 = torch.aten.native_layer_norm %x, %sizes, %weight, %bias, %epsilon : !torch.vtensor<[3,16],f16>, !torch.list<int>, !torch.vtensor<[16],f16>, !torch.vtensor<[16],f16>, !torch.float -> !torch.vtensor<[3,16],f16>, !torch.vtensor<[3,1],f32>, !torch.vtensor<[3,1],f32>
  %1:3 = torch.aten.native_layer_norm %x, %sizes, %none, %none, %epsilon : !torch.vtensor<[3,16],f16>, !torch.list<int>, !torch.none, !torch.none, !torch.float -> !torch.vtensor<[3,16],f16>, !torch.vtensor<[3,1],f32>, !torch.vtensor<[3,1],f32>
  %2:3 = torch.aten.native_layer_norm %x, %sizes, %weight, %bias, %epsilon : !torch.vtensor<[3,16],f16>, !torch.list<int>, !torch.vtensor<[16],f16>, !torch.vtensor<[16],f16>, !torch.float -> !torch.vtensor<[3,16],f16>, !torch.vtensor<[3,1],f32>, !torch.vtensor<[3,1],f32>
  return %0#0, %1#0, %2#0, %2#1 : !torch.vtensor<[3,16],f16>, !torch.vtensor<[3,16],f16>, !torch.vtensor<[3,16],f16>, !torch.vtensor<[3,1],f32>
}

// CHECK-LABEL: func.func @functions
// CHECK: call @rows_0(%arg0)
// CHECK: call @rows_1(%arg1)
// CHECK: call @rows_2(%arg1)
// Another dim is torch's affair.
// CHECK: torch.aten._softmax
func.func @functions(%x: !torch.vtensor<[2,?,16],bf16>, %y: !torch.vtensor<[4,8],f32>) -> (!torch.vtensor<[2,?,1],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4,8],f32>, !torch.vtensor<[4,8],f32>) {
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %last = torch.constant.int -1
  %f32 = torch.constant.int 6
  %true = torch.constant.bool true
  %false = torch.constant.bool false
  %none = torch.constant.none
  %dims = torch.prim.ListConstruct %last : (!torch.int) -> !torch.list<int>
  %0 = torch.aten.mean.dim %x, %dims, %true, %f32 : !torch.vtensor<[2,?,16],bf16>, !torch.list<int>, !torch.bool, !torch.int -> !torch.vtensor<[2,?,1],f32>
  %1 = torch.aten.sum.dim_IntList %y, %dims, %false, %none : !torch.vtensor<[4,8],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[4],f32>
  %2 = torch.aten._softmax %y, %one, %false : !torch.vtensor<[4,8],f32>, !torch.int, !torch.bool -> !torch.vtensor<[4,8],f32>
  %3 = torch.aten._softmax %y, %zero, %false : !torch.vtensor<[4,8],f32>, !torch.int, !torch.bool -> !torch.vtensor<[4,8],f32>
  return %0, %1, %2, %3 : !torch.vtensor<[2,?,1],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4,8],f32>, !torch.vtensor<[4,8],f32>
}

// CHECK-LABEL: func.func @first_dims
// CHECK: call @columns_0(%arg0)
// CHECK: call @columns_1(%arg1)
// Neither the first dims nor the last.
// CHECK: torch.aten.sum.dim_IntList
func.func @first_dims(%x: !torch.vtensor<[2,?,16],bf16>, %y: !torch.vtensor<[4,8],f32>) -> (!torch.vtensor<[1,1,16],bf16>, !torch.vtensor<[8],f32>, !torch.vtensor<[2,16],bf16>) {
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %true = torch.constant.bool true
  %false = torch.constant.bool false
  %none = torch.constant.none
  %both = torch.prim.ListConstruct %one, %zero : (!torch.int, !torch.int) -> !torch.list<int>
  %first = torch.prim.ListConstruct %zero : (!torch.int) -> !torch.list<int>
  %second = torch.prim.ListConstruct %one : (!torch.int) -> !torch.list<int>
  %0 = torch.aten.sum.dim_IntList %x, %both, %true, %none : !torch.vtensor<[2,?,16],bf16>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[1,1,16],bf16>
  %1 = torch.aten.mean.dim %y, %first, %false, %none : !torch.vtensor<[4,8],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[8],f32>
  %2 = torch.aten.sum.dim_IntList %x, %second, %false, %none : !torch.vtensor<[2,?,16],bf16>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[2,16],bf16>
  return %0, %1, %2 : !torch.vtensor<[1,1,16],bf16>, !torch.vtensor<[8],f32>, !torch.vtensor<[2,16],bf16>
}

// A number has no dims to sum over, though torch takes the first one or the last, and other dims are none of a tensor.
// CHECK-LABEL: func.func @no_such_dims
// CHECK-NOT: call @
// CHECK: torch.aten.sum.dim_IntList
// CHECK: torch.aten.sum.dim_IntList
// CHECK: torch.aten.sum.dim_IntList
// CHECK: return
func.func @no_such_dims(%x: !torch.vtensor<[],f32>, %y: !torch.vtensor<[4,8],f32>) -> (!torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.vtensor<[8],f32>) {
  %zero = torch.constant.int 0
  %last = torch.constant.int -1
  %two = torch.constant.int 2
  %false = torch.constant.bool false
  %none = torch.constant.none
  %dims0 = torch.prim.ListConstruct %zero : (!torch.int) -> !torch.list<int>
  %dims1 = torch.prim.ListConstruct %last : (!torch.int) -> !torch.list<int>
  %dims2 = torch.prim.ListConstruct %two : (!torch.int) -> !torch.list<int>
  %0 = torch.aten.sum.dim_IntList %x, %dims0, %false, %none : !torch.vtensor<[],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[],f32>
  %1 = torch.aten.sum.dim_IntList %x, %dims1, %false, %none : !torch.vtensor<[],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[],f32>
  %2 = torch.aten.sum.dim_IntList %y, %dims2, %false, %none : !torch.vtensor<[4,8],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[8],f32>
  return %0, %1, %2 : !torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.vtensor<[8],f32>
}

// Vectors that are not as long as rows stay with their ops, which refuse them.
// CHECK-LABEL: func.func @other_lengths
// CHECK-NOT: call @
// CHECK: torch.aten.native_layer_norm_backward
// CHECK: torch.aten.native_layer_norm_backward
// CHECK: torch.aten.native_layer_norm %
func.func @other_lengths(%x: !torch.vtensor<[3,40],f32>, %statistic: !torch.vtensor<[3,1],f32>, %short: !torch.vtensor<[4],f32>, %weight: !torch.vtensor<[40],f32>) -> (!torch.vtensor<[3,40],f32>, !torch.vtensor<[7],f32>, !torch.vtensor<[3,40],f32>) {
  %size = torch.constant.int 40
  %true = torch.constant.bool true
  %none = torch.constant.none
  %epsilon = torch.constant.float 1.000000e-05
  %sizes = torch.prim.ListConstruct %size : (!torch.int) -> !torch.list<int>
  %read = torch.prim.ListConstruct %true, %true, %true : (!torch.bool, !torch.bool, !torch.bool) -> !torch.list<bool>
  %0:3 = torch.aten.native_layer_norm_backward %x, %x, %sizes, %statistic, %statistic, %short, %none, %read : !torch.vtensor<[3,40],f32>, !torch.vtensor<[3,40],f32>, !torch.list<int>, !torch.vtensor<[3,1],f32>, !torch.vtensor<[3,1],f32>, !torch.vtensor<[4],f32>, !torch.none, !torch.list<bool> -> !torch.vtensor<[3,40],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[7],f32>
  %1:3 = torch.aten.native_layer_norm_backward %x, %x, %sizes, %statistic, %statistic, %weight, %none, %read : !torch.vtensor<[3,40],f32>, !torch.vtensor<[3,40],f32>, !torch.list<int>, !torch.vtensor<[3,1],f32>, !torch.vtensor<[3,1],f32>, !torch.vtensor<[40],f32>, !torch.none, !torch.list<bool> -> !torch.vtensor<[3,40],f32>, !torch.vtensor<[40],f32>, !torch.vtensor<[7],f32>
  %2:3 = torch.aten.native_layer_norm %x, %sizes, %weight, %short, %epsilon : !torch.vtensor<[3,40],f32>, !torch.list<int>, !torch.vtensor<[40],f32>, !torch.vtensor<[4],f32>, !torch.float -> !torch.vtensor<[3,40],f32>, !torch.vtensor<[3,1],f32>, !torch.vtensor<[3,1],f32>
  return %0#0, %1#2, %2#0 : !torch.vtensor<[3,40],f32>, !torch.vtensor<[7],f32>, !torch.vtensor<[3,40],f32>
}

// -----

// In training, which ops are torch's must not depend on where a model is cut. Sums have torch's bits, but for a sum of
// all there is, whose order depends on torch's threads.
// CHECK-LABEL: func.func @forward
// CHECK: torch.aten._softmax
func.func @forward(%y: !torch.vtensor<[4,8],f32>) -> !torch.vtensor<[4,8],f32> {
  %one = torch.constant.int 1
  %false = torch.constant.bool false
  %0 = torch.aten._softmax %y, %one, %false : !torch.vtensor<[4,8],f32>, !torch.int, !torch.bool -> !torch.vtensor<[4,8],f32>
  return %0 : !torch.vtensor<[4,8],f32>
}
// CHECK-LABEL: func.func @backward
// CHECK: call @columns_0(%arg0)
// CHECK: torch.aten.sum.dim_IntList %arg1
func.func @backward(%y: !torch.vtensor<[4,8],f32>, %z: !torch.vtensor<[8],f32>) -> (!torch.vtensor<[1,8],f32>, !torch.vtensor<[],f32>) {
  %zero = torch.constant.int 0
  %true = torch.constant.bool true
  %false = torch.constant.bool false
  %none = torch.constant.none
  %first = torch.prim.ListConstruct %zero : (!torch.int) -> !torch.list<int>
  %0 = torch.aten.sum.dim_IntList %y, %first, %true, %none : !torch.vtensor<[4,8],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[1,8],f32>
  %1 = torch.aten.sum.dim_IntList %z, %first, %false, %none : !torch.vtensor<[8],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[],f32>
  return %0, %1 : !torch.vtensor<[1,8],f32>, !torch.vtensor<[],f32>
}

// -----

// Gradients of norms are ours wherever a model is cut: those that are read.
// CHECK-DAG: func.func private @norm_0(!torch.vtensor<[2,?,16],bf16>, !torch.vtensor<[16],f32>) -> (!torch.vtensor<[2,?,16],bf16>, !torch.vtensor<[2,?,1],f32>, !torch.vtensor<[2,?,1],f32>)
// CHECK-DAG: func.func private @norm_backward_0(!torch.vtensor<[2,?,16],bf16>, !torch.vtensor<[2,?,16],bf16>, !torch.vtensor<[2,?,1],f32>, !torch.vtensor<[2,?,1],f32>, !torch.vtensor<[16],f32>) -> (!torch.vtensor<[2,?,16],bf16>, !torch.vtensor<[16],f32>) attributes {scaled.config = {}, {{.*}} scaled.operands = ["grad", "source", "mean", "rstd", "weight"], scaled.results = ["grad_source", "grad_weight"]}
// CHECK-DAG: func.func private @norm_backward_1({{.*}} scaled.operands = ["grad", "source", "mean", "rstd"], scaled.results = ["grad_source"]}

// CHECK-LABEL: func.func @forward
// CHECK: %[[A:.*]]:3 = call @norm_0(%arg0, %arg1)
// CHECK: return %[[A]]#0, %[[A]]#1, %[[A]]#2
func.func @forward(%x: !torch.vtensor<[2,?,16],bf16>, %weight: !torch.vtensor<[16],f32>) -> (!torch.vtensor<[2,?,16],bf16>, !torch.vtensor<[2,?,1],f32>, !torch.vtensor<[2,?,1],f32>) {
  %size = torch.constant.int 16
  %none = torch.constant.none
  %epsilon = torch.constant.float 1.000000e-05
  %sizes = torch.prim.ListConstruct %size : (!torch.int) -> !torch.list<int>
  %0:3 = torch.aten.native_layer_norm %x, %sizes, %weight, %none, %epsilon : !torch.vtensor<[2,?,16],bf16>, !torch.list<int>, !torch.vtensor<[16],f32>, !torch.none, !torch.float -> !torch.vtensor<[2,?,16],bf16>, !torch.vtensor<[2,?,1],f32>, !torch.vtensor<[2,?,1],f32>
  return %0#0, %0#1, %0#2 : !torch.vtensor<[2,?,16],bf16>, !torch.vtensor<[2,?,1],f32>, !torch.vtensor<[2,?,1],f32>
}
// CHECK-LABEL: func.func @backward
// CHECK: %[[A:.*]]:2 = call @norm_backward_0(%arg3, %arg0, %arg1, %arg2, %arg4)
// CHECK: %[[B:.*]] = call @norm_backward_1(%arg3, %arg0, %arg1, %arg2)
// Norms over two dims are torch's, and so are their gradients.
// CHECK: torch.aten.native_layer_norm_backward
// CHECK: return %[[A]]#0, %[[A]]#1, %[[B]]
func.func @backward(%x: !torch.vtensor<[2,?,16],bf16> {scaled.saved}, %mean: !torch.vtensor<[2,?,1],f32> {scaled.saved}, %rstd: !torch.vtensor<[2,?,1],f32> {scaled.saved}, %grad: !torch.vtensor<[2,?,16],bf16>, %weight: !torch.vtensor<[16],f32>, %y: !torch.vtensor<[2,4,16],f32>, %statistic: !torch.vtensor<[2,1,1],f32>) -> (!torch.vtensor<[2,?,16],bf16>, !torch.vtensor<[16],f32>, !torch.vtensor<[2,?,16],bf16>, !torch.vtensor<[2,4,16],f32>) {
  %size = torch.constant.int 16
  %four = torch.constant.int 4
  %none = torch.constant.none
  %true = torch.constant.bool true
  %false = torch.constant.bool false
  %sizes = torch.prim.ListConstruct %size : (!torch.int) -> !torch.list<int>
  %both = torch.prim.ListConstruct %four, %size : (!torch.int, !torch.int) -> !torch.list<int>
  %two_read = torch.prim.ListConstruct %true, %true, %false : (!torch.bool, !torch.bool, !torch.bool) -> !torch.list<bool>
  %one_read = torch.prim.ListConstruct %true, %false, %false : (!torch.bool, !torch.bool, !torch.bool) -> !torch.list<bool>
  %0:3 = torch.aten.native_layer_norm_backward %grad, %x, %sizes, %mean, %rstd, %weight, %none, %two_read : !torch.vtensor<[2,?,16],bf16>, !torch.vtensor<[2,?,16],bf16>, !torch.list<int>, !torch.vtensor<[2,?,1],f32>, !torch.vtensor<[2,?,1],f32>, !torch.vtensor<[16],f32>, !torch.none, !torch.list<bool> -> !torch.vtensor<[2,?,16],bf16>, !torch.vtensor<[16],f32>, !torch.none
  %1:3 = torch.aten.native_layer_norm_backward %grad, %x, %sizes, %mean, %rstd, %none, %none, %one_read : !torch.vtensor<[2,?,16],bf16>, !torch.vtensor<[2,?,16],bf16>, !torch.list<int>, !torch.vtensor<[2,?,1],f32>, !torch.vtensor<[2,?,1],f32>, !torch.none, !torch.none, !torch.list<bool> -> !torch.vtensor<[2,?,16],bf16>, !torch.none, !torch.none
  %2:3 = torch.aten.native_layer_norm_backward %y, %y, %both, %statistic, %statistic, %none, %none, %one_read : !torch.vtensor<[2,4,16],f32>, !torch.vtensor<[2,4,16],f32>, !torch.list<int>, !torch.vtensor<[2,1,1],f32>, !torch.vtensor<[2,1,1],f32>, !torch.none, !torch.none, !torch.list<bool> -> !torch.vtensor<[2,4,16],f32>, !torch.none, !torch.none
  return %0#0, %0#1, %1#0, %2#0 : !torch.vtensor<[2,?,16],bf16>, !torch.vtensor<[16],f32>, !torch.vtensor<[2,?,16],bf16>, !torch.vtensor<[2,4,16],f32>
}
