// RUN: steelyard-opt %s -p 'scaled-resolve-sizes' | FileCheck %s

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>

func.func private @quantize_0(!torch.vtensor<[?,48],f32>) -> (!torch.vtensor<[?,48],ui8>, !torch.vtensor<[?,2],ui8>) attributes {scaled.config = {role = "input", row = #mx}, scaled.destinations, scaled.device = "cpu", scaled.kernel = "quantize", scaled.operands = ["source"], scaled.results = ["row.codes", "row.scales"]}
func.func private @gemm_0(!torch.vtensor<[?,48],ui8>, !torch.vtensor<[?,2],ui8>, !torch.vtensor<[64,48],ui8>, !torch.vtensor<[64,2],ui8>, !torch.int) -> !torch.vtensor<[?,64],f32> attributes {scaled.config = {kind = "fprop", lhs = #mx, lhs_shape = array<i64: -1, 48>, rhs = #mx, rhs_shape = array<i64: 64, 48>}, scaled.destinations, scaled.device = "cpu", scaled.kernel = "gemm", scaled.operands = ["lhs.codes", "lhs.scales", "rhs.codes", "rhs.scales", "size"], scaled.results = ["result"]}
func.func private @attention_0(!torch.vtensor<[?,4,?,16],f32>, !torch.vtensor<[?,4,?,16],f32>, !torch.vtensor<[?,4,?,16],f32>) -> (!torch.vtensor<[?,4,?,16],f32>, !torch.vtensor<[?,4,?],f32>) attributes {scaled.config = {causal = true}, scaled.destinations, scaled.device = "cpu", scaled.kernel = "attention", scaled.operands = ["query", "key", "value"], scaled.results = ["result", "logsumexp"]}

// The rows of what is quantized, and of a product, are those of the argument, which is asked at once.
// CHECK-LABEL: func.func @product
// CHECK: %[[AGAIN:.*]] = torch.aten.size.int %arg0, %
// CHECK: %[[ROWS:.*]] = torch.aten.size.int %arg0, %
// CHECK: call @quantize_0
// CHECK: call @gemm_0({{.*}}, %[[ROWS]])
// CHECK-NOT: torch.aten.size.int
// CHECK: %[[COLUMNS:.*]] = torch.constant.int 64
// CHECK: return %[[ROWS]], %[[COLUMNS]], %[[AGAIN]]
func.func @product(%x: !torch.vtensor<[?,48],f32>, %codes: !torch.vtensor<[64,48],ui8>, %scales: !torch.vtensor<[64,2],ui8>) -> (!torch.int, !torch.int, !torch.int) {
  %int0 = torch.constant.int 0
  %last = torch.constant.int -1
  %0:2 = call @quantize_0(%x) : (!torch.vtensor<[?,48],f32>) -> (!torch.vtensor<[?,48],ui8>, !torch.vtensor<[?,2],ui8>)
  %1 = torch.aten.size.int %0#0, %int0 : !torch.vtensor<[?,48],ui8>, !torch.int -> !torch.int
  %2 = call @gemm_0(%0#0, %0#1, %codes, %scales, %1) : (!torch.vtensor<[?,48],ui8>, !torch.vtensor<[?,2],ui8>, !torch.vtensor<[64,48],ui8>, !torch.vtensor<[64,2],ui8>, !torch.int) -> !torch.vtensor<[?,64],f32>
  %rows = torch.aten.size.int %2, %int0 : !torch.vtensor<[?,64],f32>, !torch.int -> !torch.int
  %columns = torch.aten.size.int %2, %last : !torch.vtensor<[?,64],f32>, !torch.int -> !torch.int
  %again = torch.aten.size.int %0#1, %int0 : !torch.vtensor<[?,2],ui8>, !torch.int -> !torch.int
  return %rows, %columns, %again : !torch.int, !torch.int, !torch.int
}

// A reshape is told its sizes; what -1 leaves is a product of others, or follows from nothing.
// CHECK-LABEL: func.func @reshapes
// CHECK: %[[MIDDLE:.*]] = torch.aten.size.int %arg0, %int1
// CHECK: %[[SECOND:.*]] = torch.aten.size.int %arg0, %int1
// CHECK: %[[FIRST:.*]] = torch.aten.size.int %arg0, %int0
// CHECK: %[[OWN:.*]] = torch.aten.size.int %arg0, %int0
// CHECK: %[[ALL:.*]] = torch.operator "torch.python.operator.mul"(%[[FIRST]], %[[SECOND]])
// CHECK: torch.aten.reshape %arg0
// CHECK: %[[FOURFOLD:.*]] = torch.operator "torch.python.operator.mul"(%[[MIDDLE]], %int4
// CHECK: torch.aten.reshape %arg0
// CHECK: %[[OTHER:.*]] = torch.aten.reshape %arg0
// CHECK: %[[UNKNOWN:.*]] = torch.aten.size.int %[[OTHER]], %int1
// CHECK: return %[[ALL]], %[[OWN]], %[[FOURFOLD]], %arg1, %[[UNKNOWN]]
func.func @reshapes(%x: !torch.vtensor<[?,?,64],f32>, %n: !torch.int) -> (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int16 = torch.constant.int 16
  %int64 = torch.constant.int 64
  %open = torch.constant.int -1
  %own = torch.aten.size.int %x, %int0 : !torch.vtensor<[?,?,64],f32>, !torch.int -> !torch.int
  %0 = torch.prim.ListConstruct %open, %int64 : (!torch.int, !torch.int) -> !torch.list<int>
  %flat = torch.aten.reshape %x, %0 : !torch.vtensor<[?,?,64],f32>, !torch.list<int> -> !torch.vtensor<[?,64],f32>
  %1 = torch.aten.size.int %flat, %int0 : !torch.vtensor<[?,64],f32>, !torch.int -> !torch.int
  %2 = torch.prim.ListConstruct %own, %open, %int16 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %split = torch.aten.reshape %x, %2 : !torch.vtensor<[?,?,64],f32>, !torch.list<int> -> !torch.vtensor<[?,?,16],f32>
  %3 = torch.aten.size.int %split, %int0 : !torch.vtensor<[?,?,16],f32>, !torch.int -> !torch.int
  %4 = torch.aten.size.int %split, %int1 : !torch.vtensor<[?,?,16],f32>, !torch.int -> !torch.int
  %5 = torch.prim.ListConstruct %n, %open, %int64 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %other = torch.aten.reshape %x, %5 : !torch.vtensor<[?,?,64],f32>, !torch.list<int> -> !torch.vtensor<[?,?,64],f32>
  %6 = torch.aten.size.int %other, %int0 : !torch.vtensor<[?,?,64],f32>, !torch.int -> !torch.int
  %7 = torch.aten.size.int %other, %int1 : !torch.vtensor<[?,?,64],f32>, !torch.int -> !torch.int
  return %1, %3, %4, %6, %7 : !torch.int, !torch.int, !torch.int, !torch.int, !torch.int
}

// Dims move, go and come in views; heads that attention makes are those of the query. A slice's own size is unknown.
// CHECK-LABEL: func.func @views
// CHECK: %[[KEPT:.*]] = torch.aten.size.int %arg0, %int0
// CHECK: %[[BATCH:.*]] = torch.aten.size.int %arg0, %int0
// CHECK: %[[TOKENS:.*]] = torch.aten.size.int %arg0, %int1
// CHECK: call @attention_0
// CHECK: %[[PART:.*]] = torch.aten.slice.Tensor
// CHECK: %[[STAYS:.*]] = torch.aten.size.int %[[PART]], %int1
// CHECK-NOT: torch.aten.size.int
// CHECK: return %[[TOKENS]], %[[BATCH]], %[[STAYS]], %[[KEPT]], %arg1
func.func @views(%x: !torch.vtensor<[?,?,3,4,16],f32>, %n: !torch.int) -> (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int3 = torch.constant.int 3
  %int4 = torch.constant.int 4
  %open = torch.constant.int -1
  %0 = torch.prim.ListConstruct %int2, %int0, %int3, %int1, %int4 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %1 = torch.aten.permute %x, %0 : !torch.vtensor<[?,?,3,4,16],f32>, !torch.list<int> -> !torch.vtensor<[3,?,4,?,16],f32>
  %2 = torch.aten.select.int %1, %int0, %int1 : !torch.vtensor<[3,?,4,?,16],f32>, !torch.int, !torch.int -> !torch.vtensor<[?,4,?,16],f32>
  %3:2 = call @attention_0(%2, %2, %2) : (!torch.vtensor<[?,4,?,16],f32>, !torch.vtensor<[?,4,?,16],f32>, !torch.vtensor<[?,4,?,16],f32>) -> (!torch.vtensor<[?,4,?,16],f32>, !torch.vtensor<[?,4,?],f32>)
  %4 = torch.aten.transpose.int %3#0, %int1, %int2 : !torch.vtensor<[?,4,?,16],f32>, !torch.int, !torch.int -> !torch.vtensor<[?,?,4,16],f32>
  %tokens = torch.aten.size.int %4, %int1 : !torch.vtensor<[?,?,4,16],f32>, !torch.int -> !torch.int
  %batch = torch.aten.size.int %3#1, %int0 : !torch.vtensor<[?,4,?],f32>, !torch.int -> !torch.int
  %5 = torch.aten.slice.Tensor %4, %int1, %int1, %n, %int1 : !torch.vtensor<[?,?,4,16],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[?,?,4,16],f32>
  %stays = torch.aten.size.int %5, %int1 : !torch.vtensor<[?,?,4,16],f32>, !torch.int -> !torch.int
  %6 = torch.aten.unsqueeze %5, %int0 : !torch.vtensor<[?,?,4,16],f32>, !torch.int -> !torch.vtensor<[1,?,?,4,16],f32>
  %kept = torch.aten.size.int %6, %int1 : !torch.vtensor<[1,?,?,4,16],f32>, !torch.int -> !torch.int
  %false = torch.constant.bool false
  %7 = torch.prim.ListConstruct %n, %open, %open, %open, %open : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %8 = torch.aten.expand %6, %7, %false : !torch.vtensor<[1,?,?,4,16],f32>, !torch.list<int>, !torch.bool -> !torch.vtensor<[?,?,?,4,16],f32>
  %wide = torch.aten.size.int %8, %int0 : !torch.vtensor<[?,?,?,4,16],f32>, !torch.int -> !torch.int
  return %tokens, %batch, %stays, %kept, %wide : !torch.int, !torch.int, !torch.int, !torch.int, !torch.int
}

// A number has no size, nor has a dim that there is not.
// CHECK-LABEL: func.func @no_such_dims
// CHECK: torch.aten.size.int %arg0
// CHECK: torch.aten.size.int %arg1
func.func @no_such_dims(%x: !torch.vtensor<[],f32>, %y: !torch.vtensor<[4,8],f32>) -> (!torch.int, !torch.int) {
  %zero = torch.constant.int 0
  %two = torch.constant.int 2
  %0 = torch.aten.size.int %x, %zero : !torch.vtensor<[],f32>, !torch.int -> !torch.int
  %1 = torch.aten.size.int %y, %two : !torch.vtensor<[4,8],f32>, !torch.int -> !torch.int
  return %0, %1 : !torch.int, !torch.int
}
