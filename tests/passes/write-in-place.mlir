// RUN: steelyard-opt %s -p 'scaled-write-in-place{target=cpu}' | FileCheck %s
// RUN: steelyard-opt %s -p 'scaled-write-in-place{target=cuda:sm_100a}' | FileCheck %s --check-prefix=CUDA
// RUN: not steelyard-opt %s -p 'scaled-write-in-place{target=abacus}' 2>&1 | FileCheck %s --check-prefix=TARGET

// TARGET: target must be one of {{.*}}, got 'abacus'
// CUDA-NOT: index_copy_

// The new values of the argument are its old ones but for some rows: these are written.
// CHECK-LABEL: func.func @append
// CHECK: torch.aten.size.int %arg0
// CHECK: %[[A:.*]] = torch.operator "torch.aten.index_copy_"(%arg0, %{{.*}}, %arg1, %arg2)
// CHECK: torch.aten.relu %[[A]]
// CHECK: return %[[A]]
func.func @append(%cache: !torch.vtensor<[8,4],f32> {scaled.written = 0}, %index: !torch.vtensor<[1],si64>, %row: !torch.vtensor<[1,4],f32>) -> (!torch.vtensor<[8,4],f32>, !torch.vtensor<[8,4],f32>, !torch.int) {
  %zero = torch.constant.int 0
  %size = torch.aten.size.int %cache, %zero : !torch.vtensor<[8,4],f32>, !torch.int -> !torch.int
  %0 = torch.operator "torch.aten.index_copy"(%cache, %zero, %index, %row) : (!torch.vtensor<[8,4],f32>, !torch.int, !torch.vtensor<[1],si64>, !torch.vtensor<[1,4],f32>) -> !torch.vtensor<[8,4],f32>
  %1 = torch.aten.relu %0 : !torch.vtensor<[8,4],f32> -> !torch.vtensor<[8,4],f32>
  return %0, %1, %size : !torch.vtensor<[8,4],f32>, !torch.vtensor<[8,4],f32>, !torch.int
}

// Others read the old values, and the second is no new value of its argument.
// CHECK-LABEL: func.func @old_values_are_read
// CHECK-COUNT-2: "torch.aten.index_copy"(
func.func @old_values_are_read(%cache: !torch.vtensor<[8,4],f32> {scaled.written = 0}, %other: !torch.vtensor<[8,4],f32>, %index: !torch.vtensor<[1],si64>, %row: !torch.vtensor<[1,4],f32>) -> (!torch.vtensor<[8,4],f32>, !torch.vtensor<[8,4],f32>, !torch.vtensor<[8,4],f32>) {
  %zero = torch.constant.int 0
  %0 = torch.operator "torch.aten.index_copy"(%cache, %zero, %index, %row) : (!torch.vtensor<[8,4],f32>, !torch.int, !torch.vtensor<[1],si64>, !torch.vtensor<[1,4],f32>) -> !torch.vtensor<[8,4],f32>
  %1 = torch.operator "torch.aten.index_copy"(%other, %zero, %index, %row) : (!torch.vtensor<[8,4],f32>, !torch.int, !torch.vtensor<[1],si64>, !torch.vtensor<[1,4],f32>) -> !torch.vtensor<[8,4],f32>
  %2 = torch.aten.relu %cache : !torch.vtensor<[8,4],f32> -> !torch.vtensor<[8,4],f32>
  return %0, %1, %2 : !torch.vtensor<[8,4],f32>, !torch.vtensor<[8,4],f32>, !torch.vtensor<[8,4],f32>
}

// What is also a result of its own must not change with the caller's tensor.
// CHECK-LABEL: func.func @returned_twice
// CHECK: "torch.aten.index_copy"(
func.func @returned_twice(%cache: !torch.vtensor<[8,4],f32> {scaled.written = 0}, %index: !torch.vtensor<[1],si64>, %row: !torch.vtensor<[1,4],f32>) -> (!torch.vtensor<[8,4],f32>, !torch.vtensor<[8,4],f32>) {
  %zero = torch.constant.int 0
  %0 = torch.operator "torch.aten.index_copy"(%cache, %zero, %index, %row) : (!torch.vtensor<[8,4],f32>, !torch.int, !torch.vtensor<[1],si64>, !torch.vtensor<[1,4],f32>) -> !torch.vtensor<[8,4],f32>
  return %0, %0 : !torch.vtensor<[8,4],f32>, !torch.vtensor<[8,4],f32>
}
