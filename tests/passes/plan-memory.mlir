// RUN: steelyard-opt %s -p scaled-plan-memory | FileCheck %s

func.func private @step_0(!torch.vtensor<[16,64],f32>) -> !torch.vtensor<[16,64],f32> attributes {scaled.config = {function = "softmax"}, scaled.destinations, scaled.device = "cpu", scaled.kernel = "rows", scaled.operands = ["source"], scaled.results = ["result"]}
func.func private @step_1(!torch.vtensor<[?,64],f32>) -> !torch.vtensor<[?,64],f32> attributes {scaled.config = {function = "softmax"}, scaled.destinations, scaled.device = "cpu", scaled.kernel = "rows", scaled.operands = ["source"], scaled.results = ["result"]}
func.func private @step_2(!torch.vtensor<[16,64],f32>) -> !torch.vtensor<[16,64],f32> attributes {scaled.config = {function = "softmax"}, scaled.device = "cpu", scaled.kernel = "rows", scaled.operands = ["source"], scaled.results = ["result"]}

// A place is used again when its value is dead: two of 4096 bytes do for three values. The last has its own memory.
// CHECK-LABEL: func.func @chain
// CHECK-SAME: scaled.arena = 8192
// CHECK: %[[A:.*]] = call @step_0(%arg0) {scaled.offsets = array<i64: 0>}
// CHECK: scaled.free %arg0
// CHECK: %[[B:.*]] = call @step_0(%[[A]]) {scaled.offsets = array<i64: 4096>}
// CHECK: scaled.free %[[A]]
// CHECK: %[[C:.*]] = call @step_0(%[[B]]) {scaled.offsets = array<i64: 0>}
// CHECK: scaled.free %[[B]]
// CHECK: %[[D:.*]] = call @step_0(%[[C]]) {scaled.offsets = array<i64: -1>}
// CHECK: scaled.free %[[C]]
// CHECK-NOT: scaled.free %[[D]]
// CHECK: return %[[D]]
func.func @chain(%x: !torch.vtensor<[16,64],f32>) -> !torch.vtensor<[16,64],f32> {
  %0 = call @step_0(%x) : (!torch.vtensor<[16,64],f32>) -> !torch.vtensor<[16,64],f32>
  %1 = call @step_0(%0) : (!torch.vtensor<[16,64],f32>) -> !torch.vtensor<[16,64],f32>
  %2 = call @step_0(%1) : (!torch.vtensor<[16,64],f32>) -> !torch.vtensor<[16,64],f32>
  %3 = call @step_0(%2) : (!torch.vtensor<[16,64],f32>) -> !torch.vtensor<[16,64],f32>
  return %3 : !torch.vtensor<[16,64],f32>
}

// What torch reads, what another kernel may keep, and what has no known size has memory of its own.
// CHECK-LABEL: func.func @elsewhere
// CHECK-NOT: scaled.arena
// CHECK: call @step_0(%arg0) {scaled.offsets = array<i64: -1>}
// CHECK: torch.aten.relu
// CHECK: call @step_0(%{{.*}}) {scaled.offsets = array<i64: -1>}
// CHECK: call @step_2
// CHECK: call @step_1(%arg1) {scaled.offsets = array<i64: -1>}
func.func @elsewhere(%x: !torch.vtensor<[16,64],f32>, %y: !torch.vtensor<[?,64],f32>) -> (!torch.vtensor<[16,64],f32>, !torch.vtensor<[?,64],f32>) {
  %0 = call @step_0(%x) : (!torch.vtensor<[16,64],f32>) -> !torch.vtensor<[16,64],f32>
  %1 = torch.aten.relu %0 : !torch.vtensor<[16,64],f32> -> !torch.vtensor<[16,64],f32>
  %2 = call @step_0(%1) : (!torch.vtensor<[16,64],f32>) -> !torch.vtensor<[16,64],f32>
  %3 = call @step_2(%2) : (!torch.vtensor<[16,64],f32>) -> !torch.vtensor<[16,64],f32>
  %4 = call @step_1(%y) : (!torch.vtensor<[?,64],f32>) -> !torch.vtensor<[?,64],f32>
  %5 = call @step_1(%4) : (!torch.vtensor<[?,64],f32>) -> !torch.vtensor<[?,64],f32>
  return %3, %5 : !torch.vtensor<[16,64],f32>, !torch.vtensor<[?,64],f32>
}

// A list holds its elements; parameters are kept by others.
// CHECK-LABEL: func.func @held
// CHECK: %[[L:.*]] = torch.prim.ListConstruct %arg0, %arg1
// CHECK-NOT: scaled.free
// CHECK: torch.aten.cat %[[L]]
// CHECK-NEXT: scaled.free %arg0
// CHECK-NEXT: return
func.func @held(%x: !torch.vtensor<[16,64],f32>, %w: !torch.vtensor<[16,64],f32> {scaled.parameter = "w"}) -> !torch.vtensor<[32,64],f32> {
  %int0 = torch.constant.int 0
  %0 = torch.prim.ListConstruct %x, %w : (!torch.vtensor<[16,64],f32>, !torch.vtensor<[16,64],f32>) -> !torch.list<vtensor>
  %1 = torch.aten.cat %0, %int0 : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[32,64],f32>
  return %1 : !torch.vtensor<[32,64],f32>
}

// Views are looked through: the second result may take the place of the first once the last view of that is read.
// CHECK-LABEL: func.func @viewed
// CHECK-SAME: scaled.arena = 12288
// CHECK: %[[A:.*]] = call @step_0(%arg0) {scaled.offsets = array<i64: 0>}
// CHECK: %[[V:.*]] = torch.aten.transpose.int %[[A]]
// CHECK: %[[W:.*]] = torch.aten.transpose.int %[[V]]
// CHECK: %[[B:.*]] = call @step_0(%[[W]]) {scaled.offsets = array<i64: 4096>}
// CHECK: %[[C:.*]] = call @step_0(%[[B]]) {scaled.offsets = array<i64: 8192>}
// CHECK: call @step_0(%[[W]]) {scaled.offsets = array<i64: 4096>}
func.func @viewed(%x: !torch.vtensor<[16,64],f32>) -> !torch.vtensor<[16,64],f32> {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %0 = call @step_0(%x) : (!torch.vtensor<[16,64],f32>) -> !torch.vtensor<[16,64],f32>
  %1 = torch.aten.transpose.int %0, %int0, %int1 : !torch.vtensor<[16,64],f32>, !torch.int, !torch.int -> !torch.vtensor<[64,16],f32>
  %2 = torch.aten.transpose.int %1, %int0, %int1 : !torch.vtensor<[64,16],f32>, !torch.int, !torch.int -> !torch.vtensor<[16,64],f32>
  %3 = call @step_0(%2) : (!torch.vtensor<[16,64],f32>) -> !torch.vtensor<[16,64],f32>
  %4 = call @step_0(%3) : (!torch.vtensor<[16,64],f32>) -> !torch.vtensor<[16,64],f32>
  %5 = call @step_0(%2) : (!torch.vtensor<[16,64],f32>) -> !torch.vtensor<[16,64],f32>
  %6 = call @step_0(%4) : (!torch.vtensor<[16,64],f32>) -> !torch.vtensor<[16,64],f32>
  %7 = call @step_0(%5) : (!torch.vtensor<[16,64],f32>) -> !torch.vtensor<[16,64],f32>
  %8 = call @step_0(%6) : (!torch.vtensor<[16,64],f32>) -> !torch.vtensor<[16,64],f32>
  return %8 : !torch.vtensor<[16,64],f32>
}

// A cache that is written where it lies has its place already; one that is copied gets one of its own.
// CHECK-LABEL: func.func @caches
// CHECK-SAME: scaled.arena = 4096
// CHECK: %[[A:.*]] = call @write_rows_0(%arg0, %arg2, %arg3) {scaled.offsets = array<i64: 0>}
// CHECK: %[[B:.*]] = call @write_rows_1(%arg1, %arg2, %arg3) :
// CHECK: call @step_0(%[[A]]) {scaled.offsets = array<i64: -1>}
// CHECK: call @step_0(%[[B]]) {scaled.offsets = array<i64: -1>}
func.func private @write_rows_0(!torch.vtensor<[16,64],f32>, !torch.vtensor<[1],si64>, !torch.vtensor<[1,64],f32>) -> !torch.vtensor<[16,64],f32> attributes {scaled.config = {dim = 0 : i64, in_place = false}, scaled.destinations, scaled.device = "cpu", scaled.kernel = "write_rows", scaled.operands = ["target", "indices", "rows"], scaled.results = ["result"]}
func.func private @write_rows_1(!torch.vtensor<[16,64],f32>, !torch.vtensor<[1],si64>, !torch.vtensor<[1,64],f32>) -> !torch.vtensor<[16,64],f32> attributes {scaled.config = {dim = 0 : i64, in_place = true}, scaled.destinations, scaled.device = "cpu", scaled.kernel = "write_rows", scaled.operands = ["target", "indices", "rows"], scaled.results = ["result"]}
func.func @caches(%x: !torch.vtensor<[16,64],f32>, %y: !torch.vtensor<[16,64],f32>, %index: !torch.vtensor<[1],si64>, %row: !torch.vtensor<[1,64],f32>) -> (!torch.vtensor<[16,64],f32>, !torch.vtensor<[16,64],f32>) {
  %0 = call @write_rows_0(%x, %index, %row) : (!torch.vtensor<[16,64],f32>, !torch.vtensor<[1],si64>, !torch.vtensor<[1,64],f32>) -> !torch.vtensor<[16,64],f32>
  %1 = call @write_rows_1(%y, %index, %row) : (!torch.vtensor<[16,64],f32>, !torch.vtensor<[1],si64>, !torch.vtensor<[1,64],f32>) -> !torch.vtensor<[16,64],f32>
  %2 = call @step_0(%0) : (!torch.vtensor<[16,64],f32>) -> !torch.vtensor<[16,64],f32>
  %3 = call @step_0(%1) : (!torch.vtensor<[16,64],f32>) -> !torch.vtensor<[16,64],f32>
  return %2, %3 : !torch.vtensor<[16,64],f32>, !torch.vtensor<[16,64],f32>
}
