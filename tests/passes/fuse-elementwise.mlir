// RUN: steelyard-opt %s -p 'scaled-fuse-elementwise{target=cpu},scaled-plan-memory' | FileCheck %s
// RUN: steelyard-opt %s -p 'scaled-fuse-elementwise{target=cuda:sm_100a}' | FileCheck %s --check-prefix=CUDA
// RUN: not steelyard-opt %s -p 'scaled-fuse-elementwise{target=abacus}' 2>&1 | FileCheck %s --check-prefix=TARGET

// TARGET: target must be one of {{.*}}, got 'abacus'
// CUDA-NOT: scaled.kernel

// Both loads are views of one tensor; what is computed twice alike is computed once, and is in one declaration.
// CHECK: func.func private @elementwise_0(!torch.vtensor<[2,8],f32>, !torch.vtensor<[4],f32>) -> !torch.vtensor<[2,8],f32>
// CHECK-SAME: program = ["loop [2, 4]", "v0 = load in0[d0, d1 + 4]", "v1 = neg v0", "v2 = load in1[d1]", "v3 = mul v1 v2", "store v3 out[d0, d1]", "loop [2, 4]", "v0 = load in0[d0, d1]", "v1 = load in1[d1]", "v2 = mul v0 v1", "store v2 out[d0, d1 + 4]"]
// CHECK-SAME: scaled.destinations, scaled.device = "cpu", scaled.kernel = "elementwise", scaled.operands = ["in0", "in1"], scaled.results = ["result"]

// A value that two others read is kept, in memory that kernels share; what it is made into is read by its address.
// CHECK: func.func private @elementwise_1
// CHECK-SAME: "v2:bf16 = add v0 v1"
// CHECK: func.func private @elementwise_2
// CHECK-SAME: dense = ["in0"], program = ["loop [2, 3]", "v0 = load in0[d0, d1]", "v1:bf16 = gelu_tanh v0", "v2 = cast v1", "store v2 out[d0, d1]"]
// CHECK: func.func private @elementwise_3
// CHECK-SAME: dense = ["in0"], program = ["loop [3, 2]", "v0 = load in0[d1, d0]", "v1:bf16 = mul v0 0.5", "store v1 out[d0, d1]"]

// Gradients of parts are added where they are; a reshape of the sum is what is written.
// CHECK: func.func private @elementwise_4
// CHECK-SAME: program = ["loop [1, 3]", "v0 = load in0[d1]", "v1 = add v0 0.0", "store v1 out[d1]", "loop [1, 3]", "v0 = load in1[d1]", "v1 = add 0.0 v0", "store v1 out[d1 + 3]"]

// Rows that are known only at run time are a size of the call.
// CHECK: func.func private @elementwise_5(!torch.vtensor<[?,8],f32>, !torch.int) -> !torch.vtensor<[?,2,4],f32>
// CHECK-SAME: program = ["loop [s0, 2, 4]", "v0 = load in0[d0, d1 * 4 + d2]", "v1 = sigmoid v0", "store v1 out[d0, d1, d2]"]
// CHECK-SAME: scaled.operands = ["in0", "size"]

// CHECK: func.func private @elementwise_6
// CHECK-SAME: "v1:i1 = gt v0 0.0", "v2 = where v1 v0 1.0"

// CHECK: func.func private @elementwise_7(!torch.vtensor<[],f32>)
// CHECK-NOT: func.func private

// CHECK-LABEL: func.func @rotated
// CHECK-NEXT: %[[OUT:.*]] = call @elementwise_0(%arg0, %arg1)
// CHECK-NEXT: scaled.free %arg0
// CHECK-NEXT: scaled.free %arg1
// CHECK-NEXT: return %[[OUT]]
func.func @rotated(%x: !torch.vtensor<[2,8],f32>, %sin: !torch.vtensor<[4],f32>) -> !torch.vtensor<[2,8],f32> {
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %four = torch.constant.int 4
  %eight = torch.constant.int 8
  %low = torch.aten.slice.Tensor %x, %one, %zero, %four, %one : !torch.vtensor<[2,8],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[2,4],f32>
  %high = torch.aten.slice.Tensor %x, %one, %four, %eight, %one : !torch.vtensor<[2,8],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[2,4],f32>
  %negated = torch.aten.neg %high : !torch.vtensor<[2,4],f32> -> !torch.vtensor<[2,4],f32>
  %first = torch.aten.mul.Tensor %negated, %sin : !torch.vtensor<[2,4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[2,4],f32>
  %second = torch.aten.mul.Tensor %low, %sin : !torch.vtensor<[2,4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[2,4],f32>
  %halves = torch.prim.ListConstruct %first, %second : (!torch.vtensor<[2,4],f32>, !torch.vtensor<[2,4],f32>) -> !torch.list<vtensor>
  %whole = torch.operator "torch.aten.cat"(%halves, %one) : (!torch.list<vtensor>, !torch.int) -> !torch.vtensor<[2,8],f32>
  return %whole : !torch.vtensor<[2,8],f32>
}

// CHECK-LABEL: func.func @kept
// CHECK-SAME: attributes {scaled.arena = 64 : i64}
// CHECK: %[[SUM:.*]] = call @elementwise_1(%arg0, %arg1) {scaled.offsets = array<i64: 0>}
// CHECK: %[[A:.*]] = call @elementwise_2(%[[SUM]])
// CHECK: %[[B:.*]] = call @elementwise_3(%[[SUM]])
func.func @kept(%x: !torch.vtensor<[2,3],bf16>, %y: !torch.vtensor<[2,3],bf16>) -> (!torch.vtensor<[2,3],f32>, !torch.vtensor<[6],bf16>) {
  %one = torch.constant.int 1
  %zero = torch.constant.int 0
  %six = torch.constant.int 6
  %f32 = torch.constant.int 6
  %half = torch.constant.float 0.5
  %false = torch.constant.bool false
  %none = torch.constant.none
  %tanh = torch.constant.str "tanh"
  %sum = torch.aten.add.Tensor %x, %y, %one : !torch.vtensor<[2,3],bf16>, !torch.vtensor<[2,3],bf16>, !torch.int -> !torch.vtensor<[2,3],bf16>
  %gelu = torch.aten.gelu %sum, %tanh : !torch.vtensor<[2,3],bf16>, !torch.str -> !torch.vtensor<[2,3],bf16>
  %cast = torch.aten.to.dtype %gelu, %f32, %false, %false, %none : !torch.vtensor<[2,3],bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !torch.vtensor<[2,3],f32>
  %turned = torch.aten.transpose.int %sum, %zero, %one : !torch.vtensor<[2,3],bf16>, !torch.int, !torch.int -> !torch.vtensor<[3,2],bf16>
  %scaled = torch.aten.mul.Scalar %turned, %half : !torch.vtensor<[3,2],bf16>, !torch.float -> !torch.vtensor<[3,2],bf16>
  %used = torch.operator "torch.steelyard.other"(%scaled) : (!torch.vtensor<[3,2],bf16>) -> !torch.vtensor<[6],bf16>
  return %cast, %used : !torch.vtensor<[2,3],f32>, !torch.vtensor<[6],bf16>
}

// CHECK-LABEL: func.func @parts
// CHECK: call @elementwise_4(%arg0, %arg1)
func.func @parts(%a: !torch.vtensor<[3],f32>, %b: !torch.vtensor<[3],f32>) -> !torch.vtensor<[6],f32> {
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %three = torch.constant.int 3
  %all = torch.constant.int -1
  %sizes = torch.prim.ListConstruct %two, %three : (!torch.int, !torch.int) -> !torch.list<int>
  %flat = torch.prim.ListConstruct %all : (!torch.int) -> !torch.list<int>
  %0 = torch.operator "torch.aten.select_backward"(%a, %sizes, %zero, %zero) : (!torch.vtensor<[3],f32>, !torch.list<int>, !torch.int, !torch.int) -> !torch.vtensor<[2,3],f32>
  %1 = torch.operator "torch.aten.select_backward"(%b, %sizes, %zero, %one) : (!torch.vtensor<[3],f32>, !torch.list<int>, !torch.int, !torch.int) -> !torch.vtensor<[2,3],f32>
  %2 = torch.aten.add.Tensor %0, %1, %one : !torch.vtensor<[2,3],f32>, !torch.vtensor<[2,3],f32>, !torch.int -> !torch.vtensor<[2,3],f32>
  %3 = torch.aten.reshape %2, %flat : !torch.vtensor<[2,3],f32>, !torch.list<int> -> !torch.vtensor<[6],f32>
  return %3 : !torch.vtensor<[6],f32>
}

// CHECK-LABEL: func.func @rows
// CHECK: %[[ROWS:.*]] = torch.aten.size.int %arg0
// CHECK: call @elementwise_5(%arg0, %[[ROWS]])
func.func @rows(%x: !torch.vtensor<[?,8],f32>) -> !torch.vtensor<[?,2,4],f32> {
  %all = torch.constant.int -1
  %two = torch.constant.int 2
  %four = torch.constant.int 4
  %sizes = torch.prim.ListConstruct %all, %two, %four : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %0 = torch.aten.view %x, %sizes : !torch.vtensor<[?,8],f32>, !torch.list<int> -> !torch.vtensor<[?,2,4],f32>
  %1 = torch.aten.sigmoid %0 : !torch.vtensor<[?,2,4],f32> -> !torch.vtensor<[?,2,4],f32>
  return %1 : !torch.vtensor<[?,2,4],f32>
}

// CHECK-LABEL: func.func @chosen
// CHECK: call @elementwise_6
func.func @chosen(%x: !torch.vtensor<[3],f32>) -> !torch.vtensor<[3],f32> {
  %zero = torch.constant.int 0
  %one = torch.constant.float 1.0
  %0 = torch.aten.gt.Scalar %x, %zero : !torch.vtensor<[3],f32>, !torch.int -> !torch.vtensor<[3],i1>
  %1 = torch.aten.where.ScalarOther %0, %x, %one : !torch.vtensor<[3],i1>, !torch.vtensor<[3],f32>, !torch.float -> !torch.vtensor<[3],f32>
  return %1 : !torch.vtensor<[3],f32>
}

// What programs do not have stays torch's: a factor of what is added, another dtype, integers, a result whose dims torch
// leaves in another order, a cast to what a tensor is already, and what reads a weight, which may be quantized.
// CHECK-LABEL: func.func @torchs_own
// CHECK-NOT: call @
// CHECK: torch.aten.add.Tensor
// CHECK: torch.aten.mul.Tensor
// CHECK: torch.aten.add.Tensor
// CHECK: torch.aten.neg
// CHECK: torch.aten.to.dtype
// CHECK: torch.aten.relu
func.func @torchs_own(%x: !torch.vtensor<[2,3],f32>, %d: !torch.vtensor<[2,3],f64>, %i: !torch.vtensor<[2,3],si64>, %w: !torch.vtensor<[2,3],f32> {scaled.parameter = "w"}) -> (!torch.vtensor<[2,3],f32>, !torch.vtensor<[2,3],f64>, !torch.vtensor<[2,3],si64>, !torch.vtensor<[3,2],f32>, !torch.vtensor<[2,3],f32>, !torch.vtensor<[2,3],f32>) {
  %f32 = torch.constant.int 6
  %false = torch.constant.bool false
  %none = torch.constant.none
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %0 = torch.aten.add.Tensor %x, %x, %two : !torch.vtensor<[2,3],f32>, !torch.vtensor<[2,3],f32>, !torch.int -> !torch.vtensor<[2,3],f32>
  %1 = torch.aten.mul.Tensor %d, %d : !torch.vtensor<[2,3],f64>, !torch.vtensor<[2,3],f64> -> !torch.vtensor<[2,3],f64>
  %2 = torch.aten.add.Tensor %i, %i, %one : !torch.vtensor<[2,3],si64>, !torch.vtensor<[2,3],si64>, !torch.int -> !torch.vtensor<[2,3],si64>
  %3 = torch.aten.transpose.int %x, %zero, %one : !torch.vtensor<[2,3],f32>, !torch.int, !torch.int -> !torch.vtensor<[3,2],f32>
  %4 = torch.aten.neg %3 : !torch.vtensor<[3,2],f32> -> !torch.vtensor<[3,2],f32>
  %5 = torch.aten.to.dtype %x, %f32, %false, %false, %none : !torch.vtensor<[2,3],f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !torch.vtensor<[2,3],f32>
  %6 = torch.aten.relu %w : !torch.vtensor<[2,3],f32> -> !torch.vtensor<[2,3],f32>
  return %0, %1, %2, %4, %5, %6 : !torch.vtensor<[2,3],f32>, !torch.vtensor<[2,3],f64>, !torch.vtensor<[2,3],si64>, !torch.vtensor<[3,2],f32>, !torch.vtensor<[2,3],f32>, !torch.vtensor<[2,3],f32>
}

// Cosines of what no kernel made, and what leads to them: code around repeated blocks has the same.
// CHECK-LABEL: func.func @angles
// CHECK-NOT: call @
// CHECK: torch.aten.mul.Tensor
// CHECK: torch.aten.cos
func.func @angles(%x: !torch.vtensor<[2,3],f32>) -> !torch.vtensor<[2,3],f32> {
  %0 = torch.aten.mul.Tensor %x, %x : !torch.vtensor<[2,3],f32>, !torch.vtensor<[2,3],f32> -> !torch.vtensor<[2,3],f32>
  %1 = torch.aten.cos %0 : !torch.vtensor<[2,3],f32> -> !torch.vtensor<[2,3],f32>
  return %1 : !torch.vtensor<[2,3],f32>
}

// A number has no dims that swap, or that gradients of parts are along, though torch swaps its first one with its last.
// CHECK-LABEL: func.func @no_such_dims
// CHECK: torch.aten.select_backward
// CHECK: %[[SWAPPED:.*]] = torch.aten.transpose.int %arg0
// CHECK: call @elementwise_7(%[[SWAPPED]])
func.func @no_such_dims(%x: !torch.vtensor<[],f32>) -> (!torch.vtensor<[],f32>, !torch.vtensor<[],f32>) {
  %zero = torch.constant.int 0
  %last = torch.constant.int -1
  %sizes = torch.prim.ListConstruct  : () -> !torch.list<int>
  %0 = torch.operator "torch.aten.select_backward"(%x, %sizes, %zero, %zero) : (!torch.vtensor<[],f32>, !torch.list<int>, !torch.int, !torch.int) -> !torch.vtensor<[],f32>
  %1 = torch.aten.transpose.int %x, %zero, %last : !torch.vtensor<[],f32>, !torch.int, !torch.int -> !torch.vtensor<[],f32>
  %2 = torch.aten.relu %1 : !torch.vtensor<[],f32> -> !torch.vtensor<[],f32>
  return %0, %2 : !torch.vtensor<[],f32>, !torch.vtensor<[],f32>
}
