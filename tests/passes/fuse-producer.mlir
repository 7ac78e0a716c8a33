// RUN: steelyard-opt %s -p scaled-fuse-producer,canonicalize | FileCheck %s

// A layer norm is quantized as it is computed; its input takes the shape that was quantized.
// CHECK-LABEL: func.func @layer_norm
// CHECK: %[[X:.*]] = torch.aten.reshape %arg0, {{.*}} -> !torch.vtensor<[10,64],f32>
// CHECK: scaled.produce_quantize input layer_norm %[[X]] weight(%arg1) bias(%arg2) epsilon(1.000000e-05) {{.*}} -> !scaled.tensor<10x64xf32, #mxfp8_1x32>
// CHECK-NOT: native_layer_norm
// CHECK-NOT: scaled.quantize
func.func @layer_norm(%x: !torch.vtensor<[2,5,64],f32>, %w: !torch.vtensor<[64],f32>, %b: !torch.vtensor<[64],f32>) -> !scaled.tensor<10x64xf32, #mxfp8_1x32> {
  %ten = torch.constant.int 10
  %width = torch.constant.int 64
  %norm_sizes = torch.prim.ListConstruct %width : (!torch.int) -> !torch.list<int>
  %epsilon = torch.constant.float 1.000000e-05
  %n, %mean, %inverse = torch.aten.native_layer_norm %x, %norm_sizes, %w, %b, %epsilon : !torch.vtensor<[2,5,64],f32>, !torch.list<int>, !torch.vtensor<[64],f32>, !torch.vtensor<[64],f32>, !torch.float -> !torch.vtensor<[2,5,64],f32>, !torch.vtensor<[2,5,1],f32>, !torch.vtensor<[2,5,1],f32>
  %sizes = torch.prim.ListConstruct %ten, %width : (!torch.int, !torch.int) -> !torch.list<int>
  %v = torch.aten.view %n, %sizes : !torch.vtensor<[2,5,64],f32>, !torch.list<int> -> !torch.vtensor<[10,64],f32>
  %q = scaled.quantize input %v : !torch.vtensor<[10,64],f32> -> !scaled.tensor<10x64xf32, #mxfp8_1x32>
  return %q : !scaled.tensor<10x64xf32, #mxfp8_1x32>
}

// CHECK-LABEL: func.func @rms_norm
// CHECK-NEXT: %[[Q:.*]] = scaled.produce_quantize {{\w+}} rms_norm %arg0 weight(%arg1) epsilon(9.99{{.*}})
// CHECK-NEXT: return %[[Q]]
func.func @rms_norm(%x: !torch.vtensor<[?,64],f32>, %w: !torch.vtensor<[64],f32>) -> !scaled.tensor<?x64xf32, #mxfp8_1x32> {
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %minus_one = torch.constant.int -1
  %true = torch.constant.bool true
  %none = torch.constant.none
  %epsilon = torch.constant.float 9.99999997E-7
  %square = torch.aten.pow.Tensor_Scalar %x, %two : !torch.vtensor<[?,64],f32>, !torch.int -> !torch.vtensor<[?,64],f32>
  %dims = torch.prim.ListConstruct %minus_one : (!torch.int) -> !torch.list<int>
  %mean = torch.aten.mean.dim %square, %dims, %true, %none : !torch.vtensor<[?,64],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[?,1],f32>
  %add = torch.aten.add.Scalar %mean, %epsilon, %one : !torch.vtensor<[?,1],f32>, !torch.float, !torch.int -> !torch.vtensor<[?,1],f32>
  %rsqrt = torch.aten.rsqrt %add : !torch.vtensor<[?,1],f32> -> !torch.vtensor<[?,1],f32>
  %normal = torch.aten.mul.Tensor %x, %rsqrt : !torch.vtensor<[?,64],f32>, !torch.vtensor<[?,1],f32> -> !torch.vtensor<[?,64],f32>
  %y = torch.aten.mul.Tensor %w, %normal : !torch.vtensor<[64],f32>, !torch.vtensor<[?,64],f32> -> !torch.vtensor<[?,64],f32>
  %q = scaled.quantize input %y : !torch.vtensor<[?,64],f32> -> !scaled.tensor<?x64xf32, #mxfp8_1x32>
  return %q : !scaled.tensor<?x64xf32, #mxfp8_1x32>
}

// CHECK-LABEL: func.func @rms_norm_of_dim_1
// CHECK-NEXT: %[[Q:.*]] = scaled.produce_quantize {{\w+}} rms_norm %arg0 weight(%arg1) epsilon(9.99{{.*}})
// CHECK-NEXT: return %[[Q]]
func.func @rms_norm_of_dim_1(%x: !torch.vtensor<[?,64],f32>, %w: !torch.vtensor<[64],f32>) -> !scaled.tensor<?x64xf32, #mxfp8_1x32> {
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %true = torch.constant.bool true
  %none = torch.constant.none
  %epsilon = torch.constant.float 9.99999997E-7
  %square = torch.aten.pow.Tensor_Scalar %x, %two : !torch.vtensor<[?,64],f32>, !torch.int -> !torch.vtensor<[?,64],f32>
  %dims = torch.prim.ListConstruct %one : (!torch.int) -> !torch.list<int>
  %mean = torch.aten.mean.dim %square, %dims, %true, %none : !torch.vtensor<[?,64],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[?,1],f32>
  %add = torch.aten.add.Scalar %mean, %epsilon, %one : !torch.vtensor<[?,1],f32>, !torch.float, !torch.int -> !torch.vtensor<[?,1],f32>
  %rsqrt = torch.aten.rsqrt %add : !torch.vtensor<[?,1],f32> -> !torch.vtensor<[?,1],f32>
  %normal = torch.aten.mul.Tensor %x, %rsqrt : !torch.vtensor<[?,64],f32>, !torch.vtensor<[?,1],f32> -> !torch.vtensor<[?,64],f32>
  %y = torch.aten.mul.Tensor %w, %normal : !torch.vtensor<[64],f32>, !torch.vtensor<[?,64],f32> -> !torch.vtensor<[?,64],f32>
  %q = scaled.quantize input %y : !torch.vtensor<[?,64],f32> -> !scaled.tensor<?x64xf32, #mxfp8_1x32>
  return %q : !scaled.tensor<?x64xf32, #mxfp8_1x32>
}

// CHECK-LABEL: func.func @mean_over_columns
// CHECK: %[[Q:.*]] = scaled.quantize {{\w+}} 
func.func @mean_over_columns(%x: !torch.vtensor<[?,64],f32>, %w: !torch.vtensor<[64],f32>) -> !scaled.tensor<?x64xf32, #mxfp8_1x32> {
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %zero = torch.constant.int 0
  %true = torch.constant.bool true
  %none = torch.constant.none
  %epsilon = torch.constant.float 9.99999997E-7
  %square = torch.aten.pow.Tensor_Scalar %x, %two : !torch.vtensor<[?,64],f32>, !torch.int -> !torch.vtensor<[?,64],f32>
  %dims = torch.prim.ListConstruct %zero : (!torch.int) -> !torch.list<int>
  %mean = torch.aten.mean.dim %square, %dims, %true, %none : !torch.vtensor<[?,64],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[1,64],f32>
  %add = torch.aten.add.Scalar %mean, %epsilon, %one : !torch.vtensor<[1,64],f32>, !torch.float, !torch.int -> !torch.vtensor<[1,64],f32>
  %rsqrt = torch.aten.rsqrt %add : !torch.vtensor<[1,64],f32> -> !torch.vtensor<[1,64],f32>
  %normal = torch.aten.mul.Tensor %x, %rsqrt : !torch.vtensor<[?,64],f32>, !torch.vtensor<[1,64],f32> -> !torch.vtensor<[?,64],f32>
  %y = torch.aten.mul.Tensor %w, %normal : !torch.vtensor<[64],f32>, !torch.vtensor<[?,64],f32> -> !torch.vtensor<[?,64],f32>
  %q = scaled.quantize input %y : !torch.vtensor<[?,64],f32> -> !scaled.tensor<?x64xf32, #mxfp8_1x32>
  return %q : !scaled.tensor<?x64xf32, #mxfp8_1x32>
}

// CHECK-LABEL: func.func @silu_and_multiply
// CHECK: scaled.produce_quantize {{\w+}} silu_and_multiply %arg1 other(%arg0)
func.func @silu_and_multiply(%up: !torch.vtensor<[8,64],bf16>, %gate: !torch.vtensor<[8,64],bf16>) -> !scaled.tensor<8x64xbf16, #mxfp8_1x32> {
  %s = torch.aten.silu %gate : !torch.vtensor<[8,64],bf16> -> !torch.vtensor<[8,64],bf16>
  %m = torch.aten.mul.Tensor %up, %s : !torch.vtensor<[8,64],bf16>, !torch.vtensor<[8,64],bf16> -> !torch.vtensor<[8,64],bf16>
  %q = scaled.quantize input %m : !torch.vtensor<[8,64],bf16> -> !scaled.tensor<8x64xbf16, #mxfp8_1x32>
  return %q : !scaled.tensor<8x64xbf16, #mxfp8_1x32>
}

// CHECK-LABEL: func.func @gelu
// CHECK: scaled.produce_quantize {{\w+}} gelu_tanh %arg0
func.func @gelu(%x: !torch.vtensor<[8,64],f16>) -> !scaled.tensor<8x64xf16, #mxfp8_1x32> {
  %tanh = torch.constant.str "tanh"
  %g = torch.aten.gelu %x, %tanh : !torch.vtensor<[8,64],f16>, !torch.str -> !torch.vtensor<[8,64],f16>
  %q = scaled.quantize input %g : !torch.vtensor<[8,64],f16> -> !scaled.tensor<8x64xf16, #mxfp8_1x32>
  return %q : !scaled.tensor<8x64xf16, #mxfp8_1x32>
}

// A value that something else reads, and a norm without weight and bias, stay.
// CHECK-LABEL: func.func @stays
// CHECK: torch.aten.relu
// CHECK: scaled.quantize
// CHECK: torch.aten.native_layer_norm
// CHECK: scaled.quantize
func.func @stays(%x: !torch.vtensor<[8,64],f32>) -> (!torch.vtensor<[8,64],f32>, !scaled.tensor<8x64xf32, #mxfp8_1x32>, !scaled.tensor<8x64xf32, #mxfp8_1x32>) {
  %r = torch.aten.relu %x : !torch.vtensor<[8,64],f32> -> !torch.vtensor<[8,64],f32>
  %q = scaled.quantize input %r : !torch.vtensor<[8,64],f32> -> !scaled.tensor<8x64xf32, #mxfp8_1x32>
  %width = torch.constant.int 64
  %sizes = torch.prim.ListConstruct %width : (!torch.int) -> !torch.list<int>
  %epsilon = torch.constant.float 1.000000e-05
  %none = torch.constant.none
  %n, %mean, %inverse = torch.aten.native_layer_norm %x, %sizes, %none, %none, %epsilon : !torch.vtensor<[8,64],f32>, !torch.list<int>, !torch.none, !torch.none, !torch.float -> !torch.vtensor<[8,64],f32>, !torch.vtensor<[8,1],f32>, !torch.vtensor<[8,1],f32>
  %p = scaled.quantize input %n : !torch.vtensor<[8,64],f32> -> !scaled.tensor<8x64xf32, #mxfp8_1x32>
  return %r, %q, %p : !torch.vtensor<[8,64],f32>, !scaled.tensor<8x64xf32, #mxfp8_1x32>, !scaled.tensor<8x64xf32, #mxfp8_1x32>
}

// The norm of a head, where all heads are quantized as one row: its weight is shorter.
// CHECK-LABEL: func.func @heads
// CHECK: torch.aten.native_layer_norm
// CHECK: scaled.quantize
func.func @heads(%x: !torch.vtensor<[6,4,8],f32>, %w: !torch.vtensor<[8],f32>, %b: !torch.vtensor<[8],f32>) -> !scaled.tensor<6x32xf32, #mxfp8_1x32> {
  %eight = torch.constant.int 8
  %minus_one = torch.constant.int -1
  %width = torch.constant.int 32
  %norm_sizes = torch.prim.ListConstruct %eight : (!torch.int) -> !torch.list<int>
  %epsilon = torch.constant.float 1.000000e-05
  %n, %mean, %inverse = torch.aten.native_layer_norm %x, %norm_sizes, %w, %b, %epsilon : !torch.vtensor<[6,4,8],f32>, !torch.list<int>, !torch.vtensor<[8],f32>, !torch.vtensor<[8],f32>, !torch.float -> !torch.vtensor<[6,4,8],f32>, !torch.vtensor<[6,4,1],f32>, !torch.vtensor<[6,4,1],f32>
  %sizes = torch.prim.ListConstruct %minus_one, %width : (!torch.int, !torch.int) -> !torch.list<int>
  %v = torch.aten.reshape %n, %sizes : !torch.vtensor<[6,4,8],f32>, !torch.list<int> -> !torch.vtensor<[6,32],f32>
  %q = scaled.quantize input %v : !torch.vtensor<[6,32],f32> -> !scaled.tensor<6x32xf32, #mxfp8_1x32>
  return %q : !scaled.tensor<6x32xf32, #mxfp8_1x32>
}
