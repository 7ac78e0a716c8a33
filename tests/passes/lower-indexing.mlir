// RUN: steelyard-opt %s -p 'scaled-lower-indexing{target=cpu}' | FileCheck %s
// RUN: steelyard-opt %s -p 'scaled-lower-indexing{target=cuda:sm_100a}' | FileCheck %s --check-prefix=CUDA
// RUN: not steelyard-opt %s -p 'scaled-lower-indexing{target=abacus}' 2>&1 | FileCheck %s --check-prefix=TARGET

// TARGET: target must be one of {{.*}}, got 'abacus'
// CUDA-NOT: scaled.kernel

// CHECK-DAG: func.func private @lookup_0(!torch.vtensor<[100,16],f32>, !torch.vtensor<[2,?],si64>) -> !torch.vtensor<[2,?,16],f32> attributes {scaled.config = {}, scaled.destinations, scaled.device = "cpu", scaled.kernel = "lookup", scaled.operands = ["table", "indices"], scaled.results = ["result"]}
// CHECK-DAG: func.func private @write_rows_0({{.*}}scaled.config = {dim = 1 : i64, in_place = true}, {{.*}} scaled.operands = ["target", "indices", "rows"]
// CHECK-DAG: func.func private @write_rows_1({{.*}}scaled.config = {dim = 0 : i64}
// CHECK-DAG: func.func private @add_rows_0(!torch.vtensor<[2,?,16],f32>, !torch.vtensor<[2,?],si64>) -> !torch.vtensor<[100,16],f32> attributes {scaled.config = {padding = 3 : i64}, {{.*}} scaled.operands = ["rows", "indices"]

// CHECK-LABEL: func.func @tokens
// CHECK: %[[A:.*]] = call @lookup_0(%arg0, %arg1)
// CHECK: return %[[A]]
func.func @tokens(%table: !torch.vtensor<[100,16],f32> {scaled.parameter = "w"}, %tokens: !torch.vtensor<[2,?],si64>) -> !torch.vtensor<[2,?,16],f32> {
  %none = torch.constant.int -1
  %false = torch.constant.bool false
  %0 = torch.aten.embedding %table, %tokens, %none, %false, %false : !torch.vtensor<[100,16],f32>, !torch.vtensor<[2,?],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,?,16],f32>
  return %0 : !torch.vtensor<[2,?,16],f32>
}

// Of a quantized parameter only torch's op knows the values.
// CHECK-LABEL: func.func @quantized_table
// CHECK: torch.aten.embedding
func.func @quantized_table(%table: !torch.vtensor<[100,32],f32> {scaled.parameter = "w", scaled.stored = #mxfp8_1x32}, %tokens: !torch.vtensor<[2],si64>) -> !torch.vtensor<[2,32],f32> {
  %none = torch.constant.int -1
  %false = torch.constant.bool false
  %0 = torch.aten.embedding %table, %tokens, %none, %false, %false : !torch.vtensor<[100,32],f32>, !torch.vtensor<[2],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,32],f32>
  return %0 : !torch.vtensor<[2,32],f32>
}

// CHECK-LABEL: func.func @gradient
// CHECK: %[[A:.*]] = call @add_rows_0(%arg0, %arg1)
// Scaled by how often an index comes.
// CHECK: torch.aten.embedding_dense_backward
// CHECK: return %[[A]]
func.func @gradient(%grad: !torch.vtensor<[2,?,16],f32>, %tokens: !torch.vtensor<[2,?],si64>) -> (!torch.vtensor<[100,16],f32>, !torch.vtensor<[100,16],f32>) {
  %count = torch.constant.int 100
  %padding = torch.constant.int 3
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %0 = torch.aten.embedding_dense_backward %grad, %tokens, %count, %padding, %false : !torch.vtensor<[2,?,16],f32>, !torch.vtensor<[2,?],si64>, !torch.int, !torch.int, !torch.bool -> !torch.vtensor<[100,16],f32>
  %1 = torch.aten.embedding_dense_backward %grad, %tokens, %count, %padding, %true : !torch.vtensor<[2,?,16],f32>, !torch.vtensor<[2,?],si64>, !torch.int, !torch.int, !torch.bool -> !torch.vtensor<[100,16],f32>
  return %0, %1 : !torch.vtensor<[100,16],f32>, !torch.vtensor<[100,16],f32>
}

// CHECK-LABEL: func.func @append
// CHECK: %[[A:.*]] = call @write_rows_0(%arg0, %arg1, %arg2)
// CHECK: return %[[A]]
func.func @append(%cache: !torch.vtensor<[2,8,4],bf16>, %index: !torch.vtensor<[1],si64>, %row: !torch.vtensor<[2,1,4],bf16>) -> !torch.vtensor<[2,8,4],bf16> {
  %dim = torch.constant.int -2
  %0 = torch.operator "torch.aten.index_copy_"(%cache, %dim, %index, %row) : (!torch.vtensor<[2,8,4],bf16>, !torch.int, !torch.vtensor<[1],si64>, !torch.vtensor<[2,1,4],bf16>) -> !torch.vtensor<[2,8,4],bf16>
  return %0 : !torch.vtensor<[2,8,4],bf16>
}

// CHECK-LABEL: func.func @copy
// CHECK: call @write_rows_1(%arg0, %arg1, %arg2)
func.func @copy(%cache: !torch.vtensor<[8,4],f32>, %index: !torch.vtensor<[2],si64>, %rows: !torch.vtensor<[2,4],f32>) -> !torch.vtensor<[8,4],f32> {
  %dim = torch.constant.int 0
  %0 = torch.operator "torch.aten.index_copy"(%cache, %dim, %index, %rows) : (!torch.vtensor<[8,4],f32>, !torch.int, !torch.vtensor<[2],si64>, !torch.vtensor<[2,4],f32>) -> !torch.vtensor<[8,4],f32>
  return %0 : !torch.vtensor<[8,4],f32>
}

// torch's own: a dim that is known only at run time.
// CHECK-LABEL: func.func @unknown_dim
// CHECK: "torch.aten.index_copy"
func.func @unknown_dim(%cache: !torch.vtensor<[8,4],f32>, %index: !torch.vtensor<[2],si64>, %rows: !torch.vtensor<[2,4],f32>, %dim: !torch.int) -> !torch.vtensor<[8,4],f32> {
  %0 = torch.operator "torch.aten.index_copy"(%cache, %dim, %index, %rows) : (!torch.vtensor<[8,4],f32>, !torch.int, !torch.vtensor<[2],si64>, !torch.vtensor<[2,4],f32>) -> !torch.vtensor<[8,4],f32>
  return %0 : !torch.vtensor<[8,4],f32>
}
