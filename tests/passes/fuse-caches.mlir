// RUN: steelyard-opt %s -p scaled-fuse-caches | FileCheck %s

func.func private @attention_0(!torch.vtensor<[1,4,1,32],f32>, !torch.vtensor<[1,2,?,32],f32>, !torch.vtensor<[1,2,?,32],f32>) -> (!torch.vtensor<[1,4,1,32],f32>, !torch.vtensor<[1,4,1],f32>) attributes {scaled.config = {scale = 0.5 : f64}, scaled.kernel = "attention", scaled.operands = ["query", "key", "value"], scaled.results = ["result", "logsumexp"]}
func.func private @dequantize_0(!torch.vtensor<[?,32],ui8>, !torch.vtensor<[?,1],f32>, !torch.int) -> !torch.vtensor<[?,32],f32> attributes {scaled.config = {scheme = #fp8_row, shape = array<i64: -1, 32>, usage = "rowwise"}, scaled.kernel = "dequantize", scaled.operands = ["row.codes", "row.scales", "size"], scaled.results = ["result"]}
func.func private @dequantize_1(!torch.vtensor<[?,32],ui8>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.int) -> !torch.vtensor<[?,32],f32> attributes {scaled.config = {scheme = #fp8_tensor_static, shape = array<i64: -1, 32>, usage = "rowwise"}, scaled.kernel = "dequantize", scaled.operands = ["row.codes", "row.scales", "row.amax", "size"], scaled.results = ["result"]}
func.func private @attention_1(!torch.vtensor<[1,4,1,32],f32>, !torch.vtensor<[1,4,64,32],f32>, !torch.vtensor<[1,4,64,32],f32>, !torch.vtensor<[1,1,1,64],f32>) -> (!torch.vtensor<[1,4,1,32],f32>, !torch.vtensor<[1,4,1],f32>) attributes {scaled.config = {}, scaled.kernel = "attention", scaled.operands = ["query", "key", "value", "mask"], scaled.results = ["result", "logsumexp"]}
func.func private @attention_2(!torch.vtensor<[1,4,17,32],f32>, !torch.vtensor<[1,2,?,32],f32>, !torch.vtensor<[1,2,?,32],f32>) -> (!torch.vtensor<[1,4,17,32],f32>, !torch.vtensor<[1,4,17],f32>) attributes {scaled.config = {}, scaled.kernel = "attention", scaled.operands = ["query", "key", "value"], scaled.results = ["result", "logsumexp"]}

// New calls come first; a declaration that nothing calls any more is gone.
// CHECK: func.func private @attention_3(!torch.vtensor<[1,4,1,32],f32>, !torch.vtensor<[1,2,?,32],ui8>, !torch.vtensor<[1,2,?,1],f32>, !torch.vtensor<[1,2,?,32],ui8>, !torch.vtensor<[1,2,?,1],f32>)
// CHECK-SAME: scaled.config = {cached = #fp8_row, scale = 5.000000e-01 : f64}, scaled.kernel = "attention", scaled.operands = ["query", "key.codes", "key.scales", "value.codes", "value.scales"]
// CHECK: func.func private @attention_4(!torch.vtensor<[1,4,1,32],f32>, !torch.vtensor<[1,2,?,32],ui8>, !torch.vtensor<[],f32>, !torch.vtensor<[1,2,?,32],ui8>, !torch.vtensor<[],f32>)
// CHECK-SAME: cached = #fp8_tensor_static
// CHECK: func.func private @attention_5(!torch.vtensor<[1,4,1,32],f32>, !torch.vtensor<[1,2,64,32],f32>, !torch.vtensor<[1,2,64,32],f32>, !torch.vtensor<[1,1,1,64],f32>)
// CHECK-NOT: @attention_0(
// CHECK: func.func private @dequantize_0
// CHECK-NOT: @dequantize_1(
// CHECK-NOT: @attention_1(
// CHECK: func.func private @attention_2

// CHECK-LABEL: func.func @codes
// CHECK-NOT: dequantize
// CHECK-NOT: reshape
// CHECK: %[[A:.*]]:2 = call @attention_3(%arg0, %arg1, %arg2, %arg3, %arg4)
// CHECK-NEXT: return %[[A]]#0
func.func @codes(%q: !torch.vtensor<[1,4,1,32],f32>, %k: !torch.vtensor<[1,2,?,32],ui8>, %ks: !torch.vtensor<[1,2,?,1],f32>, %v: !torch.vtensor<[1,2,?,32],ui8>, %vs: !torch.vtensor<[1,2,?,1],f32>) -> !torch.vtensor<[1,4,1,32],f32> {
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %width = torch.constant.int 32
  %any = torch.constant.int -1
  %flat = torch.prim.ListConstruct %any, %width : (!torch.int, !torch.int) -> !torch.list<int>
  %column = torch.prim.ListConstruct %any, %one : (!torch.int, !torch.int) -> !torch.list<int>
  %m0 = torch.aten.reshape %k, %flat : !torch.vtensor<[1,2,?,32],ui8>, !torch.list<int> -> !torch.vtensor<[?,32],ui8>
  %size0 = torch.aten.size.int %m0, %zero : !torch.vtensor<[?,32],ui8>, !torch.int -> !torch.int
  %s0 = torch.aten.reshape %ks, %column : !torch.vtensor<[1,2,?,1],f32>, !torch.list<int> -> !torch.vtensor<[?,1],f32>
  %d0 = call @dequantize_0(%m0, %s0, %size0) : (!torch.vtensor<[?,32],ui8>, !torch.vtensor<[?,1],f32>, !torch.int) -> !torch.vtensor<[?,32],f32>
  %tokens0 = torch.aten.size.int %k, %two : !torch.vtensor<[1,2,?,32],ui8>, !torch.int -> !torch.int
  %heads0 = torch.prim.ListConstruct %one, %two, %tokens0, %width : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %x0 = torch.aten.view %d0, %heads0 : !torch.vtensor<[?,32],f32>, !torch.list<int> -> !torch.vtensor<[1,2,?,32],f32>
  %m1 = torch.aten.reshape %v, %flat : !torch.vtensor<[1,2,?,32],ui8>, !torch.list<int> -> !torch.vtensor<[?,32],ui8>
  %size1 = torch.aten.size.int %m1, %zero : !torch.vtensor<[?,32],ui8>, !torch.int -> !torch.int
  %s1 = torch.aten.reshape %vs, %column : !torch.vtensor<[1,2,?,1],f32>, !torch.list<int> -> !torch.vtensor<[?,1],f32>
  %d1 = call @dequantize_0(%m1, %s1, %size1) : (!torch.vtensor<[?,32],ui8>, !torch.vtensor<[?,1],f32>, !torch.int) -> !torch.vtensor<[?,32],f32>
  %tokens1 = torch.aten.size.int %v, %two : !torch.vtensor<[1,2,?,32],ui8>, !torch.int -> !torch.int
  %heads1 = torch.prim.ListConstruct %one, %two, %tokens1, %width : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %x1 = torch.aten.view %d1, %heads1 : !torch.vtensor<[?,32],f32>, !torch.list<int> -> !torch.vtensor<[1,2,?,32],f32>
  %0:2 = call @attention_0(%q, %x0, %x1) : (!torch.vtensor<[1,4,1,32],f32>, !torch.vtensor<[1,2,?,32],f32>, !torch.vtensor<[1,2,?,32],f32>) -> (!torch.vtensor<[1,4,1,32],f32>, !torch.vtensor<[1,4,1],f32>)
  return %0#0 : !torch.vtensor<[1,4,1,32],f32>
}

// CHECK-LABEL: func.func @static_scales
// CHECK-NOT: dequantize
// CHECK: call @attention_4(%arg0, %arg1, %arg2, %arg3, %arg4)
func.func @static_scales(%q: !torch.vtensor<[1,4,1,32],f32>, %k: !torch.vtensor<[1,2,?,32],ui8>, %ks: !torch.vtensor<[],f32>, %v: !torch.vtensor<[1,2,?,32],ui8>, %vs: !torch.vtensor<[],f32>) -> !torch.vtensor<[1,4,1,32],f32> {
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %width = torch.constant.int 32
  %any = torch.constant.int -1
  %flat = torch.prim.ListConstruct %any, %width : (!torch.int, !torch.int) -> !torch.list<int>
  %column = torch.prim.ListConstruct %any, %one : (!torch.int, !torch.int) -> !torch.list<int>
  %m0 = torch.aten.reshape %k, %flat : !torch.vtensor<[1,2,?,32],ui8>, !torch.list<int> -> !torch.vtensor<[?,32],ui8>
  %size0 = torch.aten.size.int %m0, %zero : !torch.vtensor<[?,32],ui8>, !torch.int -> !torch.int
  %d0 = call @dequantize_1(%m0, %ks, %ks, %size0) : (!torch.vtensor<[?,32],ui8>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.int) -> !torch.vtensor<[?,32],f32>
  %tokens0 = torch.aten.size.int %k, %two : !torch.vtensor<[1,2,?,32],ui8>, !torch.int -> !torch.int
  %heads0 = torch.prim.ListConstruct %one, %two, %tokens0, %width : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %x0 = torch.aten.view %d0, %heads0 : !torch.vtensor<[?,32],f32>, !torch.list<int> -> !torch.vtensor<[1,2,?,32],f32>
  %m1 = torch.aten.reshape %v, %flat : !torch.vtensor<[1,2,?,32],ui8>, !torch.list<int> -> !torch.vtensor<[?,32],ui8>
  %size1 = torch.aten.size.int %m1, %zero : !torch.vtensor<[?,32],ui8>, !torch.int -> !torch.int
  %d1 = call @dequantize_1(%m1, %vs, %vs, %size1) : (!torch.vtensor<[?,32],ui8>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.int) -> !torch.vtensor<[?,32],f32>
  %tokens1 = torch.aten.size.int %v, %two : !torch.vtensor<[1,2,?,32],ui8>, !torch.int -> !torch.int
  %heads1 = torch.prim.ListConstruct %one, %two, %tokens1, %width : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %x1 = torch.aten.view %d1, %heads1 : !torch.vtensor<[?,32],f32>, !torch.list<int> -> !torch.vtensor<[1,2,?,32],f32>
  %0:2 = call @attention_0(%q, %x0, %x1) : (!torch.vtensor<[1,4,1,32],f32>, !torch.vtensor<[1,2,?,32],f32>, !torch.vtensor<[1,2,?,32],f32>) -> (!torch.vtensor<[1,4,1,32],f32>, !torch.vtensor<[1,4,1],f32>)
  return %0#0 : !torch.vtensor<[1,4,1,32],f32>
}

// Others read the decoded keys, too: they are decoded for them.
// CHECK-LABEL: func.func @others_read
// CHECK: %[[D:.*]] = call @dequantize_0
// CHECK: %[[X:.*]] = torch.aten.view %[[D]]
// CHECK-NOT: dequantize
// CHECK: %[[A:.*]]:2 = call @attention_3(%arg0, %arg1, %arg2, %arg3, %arg4)
// CHECK: return %[[A]]#0, %[[X]]
func.func @others_read(%q: !torch.vtensor<[1,4,1,32],f32>, %k: !torch.vtensor<[1,2,?,32],ui8>, %ks: !torch.vtensor<[1,2,?,1],f32>, %v: !torch.vtensor<[1,2,?,32],ui8>, %vs: !torch.vtensor<[1,2,?,1],f32>) -> (!torch.vtensor<[1,4,1,32],f32>, !torch.vtensor<[1,2,?,32],f32>) {
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %width = torch.constant.int 32
  %any = torch.constant.int -1
  %flat = torch.prim.ListConstruct %any, %width : (!torch.int, !torch.int) -> !torch.list<int>
  %column = torch.prim.ListConstruct %any, %one : (!torch.int, !torch.int) -> !torch.list<int>
  %m0 = torch.aten.reshape %k, %flat : !torch.vtensor<[1,2,?,32],ui8>, !torch.list<int> -> !torch.vtensor<[?,32],ui8>
  %size0 = torch.aten.size.int %m0, %zero : !torch.vtensor<[?,32],ui8>, !torch.int -> !torch.int
  %s0 = torch.aten.reshape %ks, %column : !torch.vtensor<[1,2,?,1],f32>, !torch.list<int> -> !torch.vtensor<[?,1],f32>
  %d0 = call @dequantize_0(%m0, %s0, %size0) : (!torch.vtensor<[?,32],ui8>, !torch.vtensor<[?,1],f32>, !torch.int) -> !torch.vtensor<[?,32],f32>
  %tokens0 = torch.aten.size.int %k, %two : !torch.vtensor<[1,2,?,32],ui8>, !torch.int -> !torch.int
  %heads0 = torch.prim.ListConstruct %one, %two, %tokens0, %width : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %x0 = torch.aten.view %d0, %heads0 : !torch.vtensor<[?,32],f32>, !torch.list<int> -> !torch.vtensor<[1,2,?,32],f32>
  %m1 = torch.aten.reshape %v, %flat : !torch.vtensor<[1,2,?,32],ui8>, !torch.list<int> -> !torch.vtensor<[?,32],ui8>
  %size1 = torch.aten.size.int %m1, %zero : !torch.vtensor<[?,32],ui8>, !torch.int -> !torch.int
  %s1 = torch.aten.reshape %vs, %column : !torch.vtensor<[1,2,?,1],f32>, !torch.list<int> -> !torch.vtensor<[?,1],f32>
  %d1 = call @dequantize_0(%m1, %s1, %size1) : (!torch.vtensor<[?,32],ui8>, !torch.vtensor<[?,1],f32>, !torch.int) -> !torch.vtensor<[?,32],f32>
  %tokens1 = torch.aten.size.int %v, %two : !torch.vtensor<[1,2,?,32],ui8>, !torch.int -> !torch.int
  %heads1 = torch.prim.ListConstruct %one, %two, %tokens1, %width : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %x1 = torch.aten.view %d1, %heads1 : !torch.vtensor<[?,32],f32>, !torch.list<int> -> !torch.vtensor<[1,2,?,32],f32>
  %0:2 = call @attention_0(%q, %x0, %x1) : (!torch.vtensor<[1,4,1,32],f32>, !torch.vtensor<[1,2,?,32],f32>, !torch.vtensor<[1,2,?,32],f32>) -> (!torch.vtensor<[1,4,1,32],f32>, !torch.vtensor<[1,4,1],f32>)
  return %0#0, %x0 : !torch.vtensor<[1,4,1,32],f32>, !torch.vtensor<[1,2,?,32],f32>
}

// Many queries read keys and values that are decoded once.
// CHECK-LABEL: func.func @many_queries
// CHECK-COUNT-2: call @dequantize_0
// CHECK: call @attention_2
func.func @many_queries(%q: !torch.vtensor<[1,4,17,32],f32>, %k: !torch.vtensor<[1,2,?,32],ui8>, %ks: !torch.vtensor<[1,2,?,1],f32>, %v: !torch.vtensor<[1,2,?,32],ui8>, %vs: !torch.vtensor<[1,2,?,1],f32>) -> !torch.vtensor<[1,4,17,32],f32> {
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %width = torch.constant.int 32
  %any = torch.constant.int -1
  %flat = torch.prim.ListConstruct %any, %width : (!torch.int, !torch.int) -> !torch.list<int>
  %column = torch.prim.ListConstruct %any, %one : (!torch.int, !torch.int) -> !torch.list<int>
  %m0 = torch.aten.reshape %k, %flat : !torch.vtensor<[1,2,?,32],ui8>, !torch.list<int> -> !torch.vtensor<[?,32],ui8>
  %size0 = torch.aten.size.int %m0, %zero : !torch.vtensor<[?,32],ui8>, !torch.int -> !torch.int
  %s0 = torch.aten.reshape %ks, %column : !torch.vtensor<[1,2,?,1],f32>, !torch.list<int> -> !torch.vtensor<[?,1],f32>
  %d0 = call @dequantize_0(%m0, %s0, %size0) : (!torch.vtensor<[?,32],ui8>, !torch.vtensor<[?,1],f32>, !torch.int) -> !torch.vtensor<[?,32],f32>
  %tokens0 = torch.aten.size.int %k, %two : !torch.vtensor<[1,2,?,32],ui8>, !torch.int -> !torch.int
  %heads0 = torch.prim.ListConstruct %one, %two, %tokens0, %width : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %x0 = torch.aten.view %d0, %heads0 : !torch.vtensor<[?,32],f32>, !torch.list<int> -> !torch.vtensor<[1,2,?,32],f32>
  %m1 = torch.aten.reshape %v, %flat : !torch.vtensor<[1,2,?,32],ui8>, !torch.list<int> -> !torch.vtensor<[?,32],ui8>
  %size1 = torch.aten.size.int %m1, %zero : !torch.vtensor<[?,32],ui8>, !torch.int -> !torch.int
  %s1 = torch.aten.reshape %vs, %column : !torch.vtensor<[1,2,?,1],f32>, !torch.list<int> -> !torch.vtensor<[?,1],f32>
  %d1 = call @dequantize_0(%m1, %s1, %size1) : (!torch.vtensor<[?,32],ui8>, !torch.vtensor<[?,1],f32>, !torch.int) -> !torch.vtensor<[?,32],f32>
  %tokens1 = torch.aten.size.int %v, %two : !torch.vtensor<[1,2,?,32],ui8>, !torch.int -> !torch.int
  %heads1 = torch.prim.ListConstruct %one, %two, %tokens1, %width : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %x1 = torch.aten.view %d1, %heads1 : !torch.vtensor<[?,32],f32>, !torch.list<int> -> !torch.vtensor<[1,2,?,32],f32>
  %0:2 = call @attention_2(%q, %x0, %x1) : (!torch.vtensor<[1,4,17,32],f32>, !torch.vtensor<[1,2,?,32],f32>, !torch.vtensor<[1,2,?,32],f32>) -> (!torch.vtensor<[1,4,17,32],f32>, !torch.vtensor<[1,4,17],f32>)
  return %0#0 : !torch.vtensor<[1,4,17,32],f32>
}

// Heads that are repeated for the queries' are read once.
// CHECK-LABEL: func.func @repeated_heads
// CHECK-NOT: expand
// CHECK: call @attention_5(%arg0, %arg1, %arg2, %arg3)
func.func @repeated_heads(%q: !torch.vtensor<[1,4,1,32],f32>, %k: !torch.vtensor<[1,2,64,32],f32>, %v: !torch.vtensor<[1,2,64,32],f32>, %mask: !torch.vtensor<[1,1,1,64],f32>) -> !torch.vtensor<[1,4,1,32],f32> {
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %width = torch.constant.int 32
  %any = torch.constant.int -1
  %flat = torch.prim.ListConstruct %any, %width : (!torch.int, !torch.int) -> !torch.list<int>
  %column = torch.prim.ListConstruct %any, %one : (!torch.int, !torch.int) -> !torch.list<int>
  %four = torch.constant.int 4
  %tokens = torch.constant.int 64
  %false = torch.constant.bool false
  %times = torch.prim.ListConstruct %one, %two, %two, %tokens, %width : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %all = torch.prim.ListConstruct %one, %four, %tokens, %width : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %u0 = torch.aten.unsqueeze %k, %two : !torch.vtensor<[1,2,64,32],f32>, !torch.int -> !torch.vtensor<[1,2,1,64,32],f32>
  %e0 = torch.aten.expand %u0, %times, %false : !torch.vtensor<[1,2,1,64,32],f32>, !torch.list<int>, !torch.bool -> !torch.vtensor<[1,2,2,64,32],f32>
  %c0 = torch.operator "torch.aten.clone"(%e0, %zero) : (!torch.vtensor<[1,2,2,64,32],f32>, !torch.int) -> !torch.vtensor<[1,2,2,64,32],f32>
  %r0 = torch.aten._unsafe_view %c0, %all : !torch.vtensor<[1,2,2,64,32],f32>, !torch.list<int> -> !torch.vtensor<[1,4,64,32],f32>
  %u1 = torch.aten.unsqueeze %v, %two : !torch.vtensor<[1,2,64,32],f32>, !torch.int -> !torch.vtensor<[1,2,1,64,32],f32>
  %e1 = torch.aten.expand %u1, %times, %false : !torch.vtensor<[1,2,1,64,32],f32>, !torch.list<int>, !torch.bool -> !torch.vtensor<[1,2,2,64,32],f32>
  %c1 = torch.operator "torch.aten.clone"(%e1, %zero) : (!torch.vtensor<[1,2,2,64,32],f32>, !torch.int) -> !torch.vtensor<[1,2,2,64,32],f32>
  %r1 = torch.aten._unsafe_view %c1, %all : !torch.vtensor<[1,2,2,64,32],f32>, !torch.list<int> -> !torch.vtensor<[1,4,64,32],f32>
  %0:2 = call @attention_1(%q, %r0, %r1, %mask) : (!torch.vtensor<[1,4,1,32],f32>, !torch.vtensor<[1,4,64,32],f32>, !torch.vtensor<[1,4,64,32],f32>, !torch.vtensor<[1,1,1,64],f32>) -> (!torch.vtensor<[1,4,1,32],f32>, !torch.vtensor<[1,4,1],f32>)
  return %0#0 : !torch.vtensor<[1,4,1,32],f32>
}
