// RUN: steelyard-opt %s -p scaled-raise-gemms | FileCheck %s

// A weight is read as [N, K], through the transpose that torch puts before mm.
// CHECK-LABEL: func.func @addmm_of_transposed_weight
// CHECK: %[[Y:.*]] = scaled.matmul fprop %arg0, %arg1 bias(%arg2) at "mlp.up" {{.*}} -> !torch.vtensor<[10,48],f32>
// CHECK: return %[[Y]]
func.func @addmm_of_transposed_weight(%x: !torch.vtensor<[10,64],f32>, %w: !torch.vtensor<[48,64],f32>, %b: !torch.vtensor<[48],f32>) -> !torch.vtensor<[10,48],f32> {
  %t = torch.aten.t %w : !torch.vtensor<[48,64],f32> -> !torch.vtensor<[64,48],f32>
  %one = torch.constant.int 1
  %y = torch.aten.addmm %b, %x, %t, %one, %one : !torch.vtensor<[48],f32>, !torch.vtensor<[10,64],f32>, !torch.vtensor<[64,48],f32>, !torch.int, !torch.int -> !torch.vtensor<[10,48],f32> loc("mlp.up"("model.py":3:0))
  return %y : !torch.vtensor<[10,48],f32>
}

// A weight that is stored [K, N] gets a transpose.
// CHECK-LABEL: func.func @addmm_of_stored_transpose
// CHECK: %[[T:.*]] = torch.aten.transpose.int %arg1, {{.*}} -> !torch.vtensor<[48,64],f32>
// CHECK: scaled.matmul {{\w+}} %arg0, %[[T]] bias(%arg2)
func.func @addmm_of_stored_transpose(%x: !torch.vtensor<[10,64],f32>, %w: !torch.vtensor<[64,48],f32>, %b: !torch.vtensor<[48],f32>) -> !torch.vtensor<[10,48],f32> {
  %one = torch.constant.int 1
  %y = torch.aten.addmm %b, %x, %w, %one, %one : !torch.vtensor<[48],f32>, !torch.vtensor<[10,64],f32>, !torch.vtensor<[64,48],f32>, !torch.int, !torch.int -> !torch.vtensor<[10,48],f32>
  return %y : !torch.vtensor<[10,48],f32>
}

// CHECK-LABEL: func.func @linear
// CHECK: scaled.matmul {{\w+}} %arg0, %arg1 {{.*}} -> !torch.vtensor<[2,?,48],bf16>
func.func @linear(%x: !torch.vtensor<[2,?,64],bf16>, %w: !torch.vtensor<[48,64],bf16>) -> !torch.vtensor<[2,?,48],bf16> {
  %none = torch.constant.none
  %y = torch.aten.linear %x, %w, %none : !torch.vtensor<[2,?,64],bf16>, !torch.vtensor<[48,64],bf16>, !torch.none -> !torch.vtensor<[2,?,48],bf16>
  return %y : !torch.vtensor<[2,?,48],bf16>
}

// CHECK-LABEL: func.func @mm_of_permuted_weight
// CHECK: scaled.matmul {{\w+}} %arg0, %arg1
func.func @mm_of_permuted_weight(%x: !torch.vtensor<[10,64],f16>, %w: !torch.vtensor<[48,64],f16>) -> !torch.vtensor<[10,48],f16> {
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %order = torch.prim.ListConstruct %one, %zero : (!torch.int, !torch.int) -> !torch.list<int>
  %t = torch.aten.permute %w, %order : !torch.vtensor<[48,64],f16>, !torch.list<int> -> !torch.vtensor<[64,48],f16>
  %y = torch.aten.mm %x, %t : !torch.vtensor<[10,64],f16>, !torch.vtensor<[64,48],f16> -> !torch.vtensor<[10,48],f16>
  return %y : !torch.vtensor<[10,48],f16>
}

// CHECK-LABEL: func.func @attention_scores
// CHECK: scaled.matmul {{\w+}} %arg0, %arg1 batch_dims(2) {{.*}} -> !torch.vtensor<[2,4,?,?],f32>
// CHECK: %[[V:.*]] = torch.aten.transpose.int %arg2
// CHECK: scaled.matmul {{\w+}} {{.*}}, %[[V]] batch_dims(1)
func.func @attention_scores(%q: !torch.vtensor<[2,4,?,16],f32>, %k: !torch.vtensor<[2,4,?,16],f32>, %v: !torch.vtensor<[8,5,16],f32>, %p: !torch.vtensor<[8,5,5],f32>) -> (!torch.vtensor<[2,4,?,?],f32>, !torch.vtensor<[8,5,16],f32>) {
  %minus_one = torch.constant.int -1
  %minus_two = torch.constant.int -2
  %t = torch.aten.transpose.int %k, %minus_one, %minus_two : !torch.vtensor<[2,4,?,16],f32>, !torch.int, !torch.int -> !torch.vtensor<[2,4,16,?],f32>
  %s = torch.aten.matmul %q, %t : !torch.vtensor<[2,4,?,16],f32>, !torch.vtensor<[2,4,16,?],f32> -> !torch.vtensor<[2,4,?,?],f32>
  %o = torch.aten.bmm %p, %v : !torch.vtensor<[8,5,5],f32>, !torch.vtensor<[8,5,16],f32> -> !torch.vtensor<[8,5,16],f32>
  return %s, %o : !torch.vtensor<[2,4,?,?],f32>, !torch.vtensor<[8,5,16],f32>
}

// An einsum with a parameter comes to a bmm of one batch entry; the parameter is seen through views and copies.
// CHECK-LABEL: func.func @einsum_with_parameter
// CHECK: %[[X:.*]] = torch.aten.squeeze.dim %arg0, {{.*}} -> !torch.vtensor<[10,33],f32>
// CHECK: %[[W:.*]] = torch.aten.transpose.int {{.*}} -> !torch.vtensor<[24,33],f32>
// CHECK: %[[Y:.*]] = scaled.matmul {{\w+}} %[[X]], %[[W]] {{.*}} -> !torch.vtensor<[10,24],f32>
// CHECK: torch.aten.unsqueeze %[[Y]], {{.*}} -> !torch.vtensor<[1,10,24],f32>
func.func @einsum_with_parameter(%x: !torch.vtensor<[1,10,33],f32>, %w: !torch.vtensor<[33,4,6],f32> {scaled.parameter = "w"}) -> !torch.vtensor<[1,10,24],f32> {
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %33 = torch.constant.int 33
  %24 = torch.constant.int 24
  %sizes = torch.prim.ListConstruct %one, %33, %24 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %c = torch.operator "torch.aten.clone"(%w, %zero) : (!torch.vtensor<[33,4,6],f32>, !torch.int) -> !torch.vtensor<[33,4,6],f32>
  %v = torch.aten.view %c, %sizes : !torch.vtensor<[33,4,6],f32>, !torch.list<int> -> !torch.vtensor<[1,33,24],f32>
  %y = torch.aten.bmm %x, %v : !torch.vtensor<[1,10,33],f32>, !torch.vtensor<[1,33,24],f32> -> !torch.vtensor<[1,10,24],f32>
  return %y : !torch.vtensor<[1,10,24],f32>
}

// A weight on the left: the product is that of the transposes, so that the weight is the second operand.
// CHECK-LABEL: func.func @weight_on_the_left
// CHECK: %[[X:.*]] = torch.aten.transpose.int %arg1, {{.*}} -> !torch.vtensor<[7,33],f32>
// CHECK: %[[Y:.*]] = scaled.matmul {{\w+}} %[[X]], %arg0 {{.*}} -> !torch.vtensor<[7,20],f32>
// CHECK: %[[T:.*]] = torch.aten.transpose.int %[[Y]], {{.*}} -> !torch.vtensor<[20,7],f32>
// CHECK: torch.operator "torch.aten.clone"(%[[T]], {{.*}}) : {{.*}} -> !torch.vtensor<[20,7],f32>
func.func @weight_on_the_left(%w: !torch.vtensor<[20,33],f32> {scaled.parameter = "w"}, %x: !torch.vtensor<[33,7],f32>) -> !torch.vtensor<[20,7],f32> {
  %y = torch.aten.mm %w, %x : !torch.vtensor<[20,33],f32>, !torch.vtensor<[33,7],f32> -> !torch.vtensor<[20,7],f32>
  return %y : !torch.vtensor<[20,7],f32>
}

// One batch entry is looked at through the swap that makes it, so that a later pass sees what is swapped.
// CHECK-LABEL: func.func @batch_of_one
// CHECK: %[[X:.*]] = torch.aten.squeeze.dim %arg0, {{.*}} -> !torch.vtensor<[33,10],f32>
// CHECK: %[[T:.*]] = torch.aten.transpose.int %[[X]], {{.*}} -> !torch.vtensor<[10,33],f32>
// CHECK: scaled.matmul {{\w+}} %[[T]], {{.*}}
func.func @batch_of_one(%x: !torch.vtensor<[1,33,10],f32>, %y: !torch.vtensor<[1,33,24],f32>) -> !torch.vtensor<[1,10,24],f32> {
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %t = torch.aten.transpose.int %x, %one, %two : !torch.vtensor<[1,33,10],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,10,33],f32>
  %z = torch.aten.bmm %t, %y : !torch.vtensor<[1,10,33],f32>, !torch.vtensor<[1,33,24],f32> -> !torch.vtensor<[1,10,24],f32>
  return %z : !torch.vtensor<[1,10,24],f32>
}

// What stays says why.
// CHECK-LABEL: func.func @not_raised
// CHECK: torch.aten.addmm {{.*}} {scaled.high_precision = "addmm with alpha or beta other than 1"}
// CHECK: torch.aten.mm {{.*}} {scaled.high_precision = "operands of si64: recipes take f32, bf16 and f16"}
// CHECK: torch.aten.matmul {{.*}} {scaled.high_precision = "matmul of !torch.vtensor<[64],f32> and !torch.vtensor<[2,64,48],f32>: batch dims broadcast, or an operand is a vector"}
// CHECK: torch.aten.mv {{.*}} {scaled.high_precision = "a product with a vector"}
// CHECK: torch.operator "torch.aten._scaled_dot_product_flash_attention_for_cpu"({{.*}}) {scaled.high_precision = "attention is one fused op, whose products have no parameter operand"}
func.func @not_raised(%x: !torch.vtensor<[10,64],f32>, %w: !torch.vtensor<[64,48],f32>, %b: !torch.vtensor<[48],f32>, %i: !torch.vtensor<[8,8],si64>, %v: !torch.vtensor<[64],f32>, %m: !torch.vtensor<[2,64,48],f32>, %q: !torch.vtensor<[2,4,5,16],f32>) {
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %0 = torch.aten.addmm %b, %x, %w, %one, %two : !torch.vtensor<[48],f32>, !torch.vtensor<[10,64],f32>, !torch.vtensor<[64,48],f32>, !torch.int, !torch.int -> !torch.vtensor<[10,48],f32>
  %1 = torch.aten.mm %i, %i : !torch.vtensor<[8,8],si64>, !torch.vtensor<[8,8],si64> -> !torch.vtensor<[8,8],si64>
  %2 = torch.aten.matmul %v, %m : !torch.vtensor<[64],f32>, !torch.vtensor<[2,64,48],f32> -> !torch.vtensor<[2,48],f32>
  %mv = torch.aten.mv %x, %v : !torch.vtensor<[10,64],f32>, !torch.vtensor<[64],f32> -> !torch.vtensor<[10],f32>
  %zero = torch.constant.float 0.000000e+00
  %false = torch.constant.bool false
  %none = torch.constant.none
  %3:2 = torch.operator "torch.aten._scaled_dot_product_flash_attention_for_cpu"(%q, %q, %q, %zero, %false, %none, %none) : (!torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5,16],f32>, !torch.float, !torch.bool, !torch.none, !torch.none) -> (!torch.vtensor<[2,4,5,16],f32>, !torch.vtensor<[2,4,5],f32>)
  return
}

// The backward of a linear layer: dx = dy w, dw = dy^T x; a weight that is stored transposed gets its gradient so.
// CHECK-LABEL: func.func @gradients
// CHECK: scaled.matmul fprop %arg0, %arg1
// CHECK: scaled.matmul dgrad %arg2, %arg1
// CHECK: scaled.matmul wgrad %arg2, %arg0 {{.*}} -> !torch.vtensor<[48,64],f32>
// CHECK: %[[DW:.*]] = scaled.matmul wgrad %arg2, %arg0 {{.*}} -> !torch.vtensor<[48,64],f32>
// CHECK: torch.aten.transpose.int %[[DW]]
// No parameter, and no input of a product of this layer: just a product.
// CHECK: scaled.matmul fprop {{.*}}
func.func @gradients(%x: !torch.vtensor<[8,64],f32>, %w: !torch.vtensor<[48,64],f32> {scaled.parameter = "up.weight"}, %dy: !torch.vtensor<[8,48],f32> {scaled.tangent}, %z: !torch.vtensor<[8,64],f32>) -> (!torch.vtensor<[8,48],f32>, !torch.vtensor<[8,64],f32>, !torch.vtensor<[48,64],f32>, !torch.vtensor<[64,48],f32>, !torch.vtensor<[48,64],f32>) {
  %wt = torch.aten.t %w : !torch.vtensor<[48,64],f32> -> !torch.vtensor<[64,48],f32>
  %y = torch.aten.mm %x, %wt : !torch.vtensor<[8,64],f32>, !torch.vtensor<[64,48],f32> -> !torch.vtensor<[8,48],f32>
  %w2 = torch.aten.t %wt : !torch.vtensor<[64,48],f32> -> !torch.vtensor<[48,64],f32>
  %dx = torch.aten.mm %dy, %w2 : !torch.vtensor<[8,48],f32>, !torch.vtensor<[48,64],f32> -> !torch.vtensor<[8,64],f32>
  %dyt = torch.aten.t %dy : !torch.vtensor<[8,48],f32> -> !torch.vtensor<[48,8],f32>
  %dw = torch.aten.mm %dyt, %x : !torch.vtensor<[48,8],f32>, !torch.vtensor<[8,64],f32> -> !torch.vtensor<[48,64],f32>
  %xt = torch.aten.t %x : !torch.vtensor<[8,64],f32> -> !torch.vtensor<[64,8],f32>
  %dwt = torch.aten.mm %xt, %dy : !torch.vtensor<[64,8],f32>, !torch.vtensor<[8,48],f32> -> !torch.vtensor<[64,48],f32>
  %other = torch.aten.mm %dyt, %z : !torch.vtensor<[48,8],f32>, !torch.vtensor<[8,64],f32> -> !torch.vtensor<[48,64],f32>
  return %y, %dx, %dw, %dwt, %other : !torch.vtensor<[8,48],f32>, !torch.vtensor<[8,64],f32>, !torch.vtensor<[48,64],f32>, !torch.vtensor<[64,48],f32>, !torch.vtensor<[48,64],f32>
}

// A dgrad is the gradient that the products before it read: nothing lies between two layers.
// CHECK-LABEL: func.func @chain
// CHECK: %[[DH:.*]] = scaled.matmul dgrad %arg2, %arg1
// CHECK: scaled.matmul dgrad %[[DH]], %arg0
func.func @chain(%v: !torch.vtensor<[48,64],f32> {scaled.parameter = "a.weight"}, %w: !torch.vtensor<[32,48],f32> {scaled.parameter = "b.weight"}, %dy: !torch.vtensor<[8,32],f32> {scaled.tangent}) -> !torch.vtensor<[8,64],f32> {
  %dh = torch.aten.mm %dy, %w : !torch.vtensor<[8,32],f32>, !torch.vtensor<[32,48],f32> -> !torch.vtensor<[8,48],f32>
  %dx = torch.aten.mm %dh, %v : !torch.vtensor<[8,48],f32>, !torch.vtensor<[48,64],f32> -> !torch.vtensor<[8,64],f32>
  return %dx : !torch.vtensor<[8,64],f32>
}

// An op that has matrix products by its location gets a reason; the constants that the frontend makes for it do not.
// CHECK-LABEL: func.func @products_of_an_unknown_op
// CHECK: torch.constant.int 3{{$}}
// CHECK: torch.operator "torch.library.product"{{.*}}scaled.high_precision = "torch runs it as one op, which no recipe takes"
// CHECK-NOT: scaled.high_precision
func.func @products_of_an_unknown_op(%x: !torch.vtensor<[8,8],f32>) -> !torch.vtensor<[8,8],f32> {
  %three = torch.constant.int 3 loc("mixer"("1024 flops"("model.py":3:0)))
  %y = torch.operator "torch.library.product"(%x, %three) : (!torch.vtensor<[8,8],f32>, !torch.int) -> !torch.vtensor<[8,8],f32> loc("mixer"("1024 flops"("model.py":3:0)))
  %z = torch.operator "torch.library.other"(%y) : (!torch.vtensor<[8,8],f32>) -> !torch.vtensor<[8,8],f32> loc("mixer"("model.py":4:0))
  return %z : !torch.vtensor<[8,8],f32>
}

// The products of experts, by torch's op or that of transformers, and the three of a step. The layer is the parameter.
// CHECK-LABEL: func.func @experts
// CHECK: scaled.grouped_matmul fprop %arg0, %arg1 ends(%arg3) at "experts.up" {{.*}} -> !torch.vtensor<[?,48],bf16>
// CHECK: scaled.grouped_matmul dgrad %arg2, %arg1 ends(%arg3) at "experts.up" {{.*}} -> !torch.vtensor<[?,64],bf16>
// CHECK: scaled.grouped_matmul wgrad %arg2, %arg0 ends(%arg3) at "experts.up" {{.*}} -> !torch.vtensor<[4,48,64],bf16>
// A weight that is stored transposed has the transpose of that gradient.
// CHECK: %[[DW:.*]] = scaled.grouped_matmul wgrad %arg2, %arg0 ends(%arg3)
// CHECK: torch.aten.transpose.int %[[DW]]
func.func @experts(%x: !torch.vtensor<[?,64],bf16>, %w: !torch.vtensor<[4,48,64],bf16> {scaled.parameter = "experts.up"}, %dy: !torch.vtensor<[?,48],bf16> {scaled.tangent}, %ends: !torch.vtensor<[4],si32>) -> (!torch.vtensor<[?,48],bf16>, !torch.vtensor<[?,64],bf16>, !torch.vtensor<[4,48,64],bf16>, !torch.vtensor<[4,64,48],bf16>) {
  %none = torch.constant.none
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int-1 = torch.constant.int -1
  %int-2 = torch.constant.int -2
  %wt = torch.aten.transpose.int %w, %int-2, %int-1 : !torch.vtensor<[4,48,64],bf16>, !torch.int, !torch.int -> !torch.vtensor<[4,64,48],bf16>
  %y = torch.operator "torch.aten._grouped_mm"(%x, %wt, %ends, %none, %none) : (!torch.vtensor<[?,64],bf16>, !torch.vtensor<[4,64,48],bf16>, !torch.vtensor<[4],si32>, !torch.none, !torch.none) -> !torch.vtensor<[?,48],bf16>
  %dx = torch.operator "torch.steelyard.grouped_mm"(%dy, %w, %ends) : (!torch.vtensor<[?,48],bf16>, !torch.vtensor<[4,48,64],bf16>, !torch.vtensor<[4],si32>) -> !torch.vtensor<[?,64],bf16>
  %dyt = torch.aten.transpose.int %dy, %int0, %int1 : !torch.vtensor<[?,48],bf16>, !torch.int, !torch.int -> !torch.vtensor<[48,?],bf16>
  %dw = torch.operator "torch.aten._grouped_mm"(%dyt, %x, %ends, %none, %none) : (!torch.vtensor<[48,?],bf16>, !torch.vtensor<[?,64],bf16>, !torch.vtensor<[4],si32>, !torch.none, !torch.none) -> !torch.vtensor<[4,48,64],bf16>
  %xt = torch.aten.transpose.int %x, %int0, %int1 : !torch.vtensor<[?,64],bf16>, !torch.int, !torch.int -> !torch.vtensor<[64,?],bf16>
  %dwt = torch.operator "torch.aten._grouped_mm"(%xt, %dy, %ends, %none, %none) : (!torch.vtensor<[64,?],bf16>, !torch.vtensor<[?,48],bf16>, !torch.vtensor<[4],si32>, !torch.none, !torch.none) -> !torch.vtensor<[4,64,48],bf16>
  return %y, %dx, %dw, %dwt : !torch.vtensor<[?,48],bf16>, !torch.vtensor<[?,64],bf16>, !torch.vtensor<[4,48,64],bf16>, !torch.vtensor<[4,64,48],bf16>
}

// Ends of 64 bits are made shorter; weights that are no parameter's stay as they are.
// CHECK-LABEL: func.func @other_experts
// CHECK: %[[ENDS:.*]] = torch.aten.to.dtype %arg2, {{.*}} -> !torch.vtensor<[4],si32>
// CHECK: scaled.grouped_matmul fprop %arg0, {{.*}} ends(%[[ENDS]]) at "experts.up"
// CHECK: torch.operator "torch.transformers.grouped_mm_fallback"{{.*}}scaled.high_precision = "a grouped product whose weights are not those of a parameter"
func.func @other_experts(%x: !torch.vtensor<[8,64],f32>, %w: !torch.vtensor<[4,64,48],f32> {scaled.parameter = "experts.up"}, %ends: !torch.vtensor<[4],si64>, %v: !torch.vtensor<[4,64,48],f32>) -> (!torch.vtensor<[8,48],f32>, !torch.vtensor<[8,48],f32>) {
  %0 = torch.operator "torch.transformers.grouped_mm_fallback"(%x, %w, %ends) : (!torch.vtensor<[8,64],f32>, !torch.vtensor<[4,64,48],f32>, !torch.vtensor<[4],si64>) -> !torch.vtensor<[8,48],f32>
  %1 = torch.operator "torch.transformers.grouped_mm_fallback"(%x, %v, %ends) : (!torch.vtensor<[8,64],f32>, !torch.vtensor<[4,64,48],f32>, !torch.vtensor<[4],si64>) -> !torch.vtensor<[8,48],f32>
  return %0, %1 : !torch.vtensor<[8,48],f32>, !torch.vtensor<[8,48],f32>
}
