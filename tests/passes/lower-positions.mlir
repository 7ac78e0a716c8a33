// RUN: steelyard-opt %s -p 'scaled-lower-positions{target=cpu}' | FileCheck %s
// RUN: steelyard-opt %s -p 'scaled-lower-positions{target=cuda:sm_100a}' | FileCheck %s --check-prefix=CUDA
// RUN: not steelyard-opt %s -p 'scaled-lower-positions{target=abacus}' 2>&1 | FileCheck %s --check-prefix=TARGET

// TARGET: target must be one of {{.*}}, got 'abacus'
// CUDA-NOT: scaled.kernel

// CHECK-DAG: func.func private @positions_0(!torch.vtensor<[],si64>) -> !torch.vtensor<[3],si64> attributes {scaled.config = {}, scaled.destinations, scaled.device = "cpu", scaled.kernel = "positions", scaled.operands = ["start"], scaled.results = ["result"]}
// CHECK-DAG: func.func private @positions_1(!torch.vtensor<[],si64>) -> !torch.vtensor<[],si64> attributes {scaled.config = {offset = 3 : i64}
// CHECK-DAG: func.func private @positions_2(!torch.vtensor<[],si64>, !torch.int) -> !torch.vtensor<[?],si64> {{.*}} scaled.operands = ["start", "size"]

// Where new tokens go in a cache, and how many it has then.
// CHECK-LABEL: func.func @cache
// CHECK-NOT: torch.aten.arange
// CHECK: %[[A:.*]] = call @positions_0(%arg0)
// CHECK: %[[B:.*]] = call @positions_1(%arg0)
// CHECK: return %[[A]], %[[B]]
func.func @cache(%count: !torch.vtensor<[],si64>) -> (!torch.vtensor<[3],si64>, !torch.vtensor<[],si64>) {
  %one = torch.constant.int 1
  %three = torch.constant.int 3
  %none = torch.constant.none
  %0 = torch.aten.arange %three, %none, %none, %none, %none : !torch.int, !torch.none, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[3],si64>
  %1 = torch.aten.add.Tensor %0, %count, %one : !torch.vtensor<[3],si64>, !torch.vtensor<[],si64>, !torch.int -> !torch.vtensor<[3],si64>
  %2 = torch.aten.add.Scalar %count, %three, %one : !torch.vtensor<[],si64>, !torch.int, !torch.int -> !torch.vtensor<[],si64>
  return %1, %2 : !torch.vtensor<[3],si64>, !torch.vtensor<[],si64>
}

// CHECK-LABEL: func.func @prompt
// CHECK: %[[C:.*]] = call @positions_2(%arg0, %arg1)
// CHECK: return %[[C]]
func.func @prompt(%count: !torch.vtensor<[],si64>, %tokens: !torch.int) -> !torch.vtensor<[?],si64> {
  %one = torch.constant.int 1
  %none = torch.constant.none
  %0 = torch.aten.arange %tokens, %none, %none, %none, %none : !torch.int, !torch.none, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[?],si64>
  %1 = torch.aten.add.Tensor %count, %0, %one : !torch.vtensor<[],si64>, !torch.vtensor<[?],si64>, !torch.int -> !torch.vtensor<[?],si64>
  return %1 : !torch.vtensor<[?],si64>
}

// Sums of several numbers, multiples and other dtypes stay torch's.
// CHECK-LABEL: func.func @torchs_own
// CHECK-COUNT-2: torch.aten.add.Tensor
// CHECK: torch.aten.add.Scalar
func.func @torchs_own(%count: !torch.vtensor<[],si64>, %several: !torch.vtensor<[3],si64>, %low: !torch.vtensor<[],si32>) -> (!torch.vtensor<[3],si64>, !torch.vtensor<[3],si64>, !torch.vtensor<[],si32>) {
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %three = torch.constant.int 3
  %none = torch.constant.none
  %0 = torch.aten.arange %three, %none, %none, %none, %none : !torch.int, !torch.none, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[3],si64>
  %1 = torch.aten.add.Tensor %several, %0, %one : !torch.vtensor<[3],si64>, !torch.vtensor<[3],si64>, !torch.int -> !torch.vtensor<[3],si64>
  %2 = torch.aten.add.Tensor %0, %count, %two : !torch.vtensor<[3],si64>, !torch.vtensor<[],si64>, !torch.int -> !torch.vtensor<[3],si64>
  %3 = torch.aten.add.Scalar %low, %three, %one : !torch.vtensor<[],si32>, !torch.int, !torch.int -> !torch.vtensor<[],si32>
  return %1, %2, %3 : !torch.vtensor<[3],si64>, !torch.vtensor<[3],si64>, !torch.vtensor<[],si32>
}

// Results that have not the sizes of what is counted, and ranges whose end is no integer.
// CHECK-LABEL: func.func @other_results
// CHECK-NOT: call @
// CHECK-COUNT-3: torch.aten.add.Scalar
// CHECK-COUNT-3: torch.aten.add.Tensor
// CHECK: return
func.func @other_results(%count: !torch.vtensor<[],si64>, %tokens: !torch.int, %end: !torch.float) -> (!torch.vtensor<[2,2],si64>, !torch.vtensor<[?],si64>, !torch.vtensor<[3],si64>, !torch.vtensor<[?,?],si64>, !torch.vtensor<[4],si64>, !torch.vtensor<[?],si64>) {
  %one = torch.constant.int 1
  %none = torch.constant.none
  %0 = torch.aten.add.Scalar %count, %one, %one : !torch.vtensor<[],si64>, !torch.int, !torch.int -> !torch.vtensor<[2,2],si64>
  %1 = torch.aten.add.Scalar %count, %one, %one : !torch.vtensor<[],si64>, !torch.int, !torch.int -> !torch.vtensor<[?],si64>
  %2 = torch.aten.add.Scalar %count, %one, %one : !torch.vtensor<[],si64>, !torch.int, !torch.int -> !torch.vtensor<[3],si64>
  %3 = torch.aten.arange %tokens, %none, %none, %none, %none : !torch.int, !torch.none, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[?],si64>
  %4 = torch.aten.add.Tensor %count, %3, %one : !torch.vtensor<[],si64>, !torch.vtensor<[?],si64>, !torch.int -> !torch.vtensor<[?,?],si64>
  %5 = torch.aten.arange %tokens, %none, %none, %none, %none : !torch.int, !torch.none, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[5],si64>
  %6 = torch.aten.add.Tensor %count, %5, %one : !torch.vtensor<[],si64>, !torch.vtensor<[5],si64>, !torch.int -> !torch.vtensor<[4],si64>
  %7 = torch.aten.arange %end, %none, %none, %none, %none : !torch.float, !torch.none, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[?],si64>
  %8 = torch.aten.add.Tensor %count, %7, %one : !torch.vtensor<[],si64>, !torch.vtensor<[?],si64>, !torch.int -> !torch.vtensor<[?],si64>
  return %0, %1, %2, %4, %6, %8 : !torch.vtensor<[2,2],si64>, !torch.vtensor<[?],si64>, !torch.vtensor<[3],si64>, !torch.vtensor<[?,?],si64>, !torch.vtensor<[4],si64>, !torch.vtensor<[?],si64>
}
