// RUN: steelyard-opt %s -p 'scaled-merge-duplicates' | FileCheck %s

// Both layers read one select, one split and one size; another index, and what is returned, stays.
// CHECK-LABEL: func.func @layers
// CHECK: %[[COS:.*]] = torch.aten.select.int %arg0, %int0, %int0
// CHECK: %[[SIN:.*]] = torch.aten.select.int %arg0, %int0, %int1
// CHECK: %[[A:.*]] = torch.aten.mul.Tensor %[[COS]], %[[SIN]]
// CHECK-NOT: torch.aten.select.int %arg0, %int0, %int0
// CHECK: %[[B:.*]] = torch.aten.mul.Tensor %[[A]], %[[COS]]
// CHECK: %[[PARTS:.*]] = torch.aten.split.Tensor %arg0
// CHECK: %[[HALVES:.*]]:2 = torch.prim.ListUnpack %[[PARTS]]
// CHECK-NOT: torch.aten.split.Tensor
// CHECK: %[[C:.*]] = torch.aten.add.Tensor %[[HALVES]]#0, %[[HALVES]]#1
// CHECK: %[[RETURNED:.*]] = torch.aten.select.int %arg0, %int0, %int1
// CHECK: return %[[B]], %[[C]], %[[RETURNED]]
func.func @layers(%table: !torch.vtensor<[2,4],f32>) -> (!torch.vtensor<[4],f32>, !torch.vtensor<[1,4],f32>, !torch.vtensor<[4],f32>) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %0 = torch.aten.select.int %table, %int0, %int0 : !torch.vtensor<[2,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[4],f32>
  %1 = torch.aten.select.int %table, %int0, %int1 : !torch.vtensor<[2,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[4],f32>
  %2 = torch.aten.mul.Tensor %0, %1 : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %3 = torch.aten.select.int %table, %int0, %int0 : !torch.vtensor<[2,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[4],f32>
  %4 = torch.aten.mul.Tensor %2, %3 : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %5 = torch.aten.split.Tensor %table, %int1, %int0 : !torch.vtensor<[2,4],f32>, !torch.int, !torch.int -> !torch.list<vtensor>
  %6:2 = torch.prim.ListUnpack %5 : !torch.list<vtensor> -> !torch.vtensor<[1,4],f32>, !torch.vtensor<[1,4],f32>
  %7 = torch.aten.split.Tensor %table, %int1, %int0 : !torch.vtensor<[2,4],f32>, !torch.int, !torch.int -> !torch.list<vtensor>
  %8:2 = torch.prim.ListUnpack %7 : !torch.list<vtensor> -> !torch.vtensor<[1,4],f32>, !torch.vtensor<[1,4],f32>
  %9 = torch.aten.add.Tensor %6#0, %8#1, %int1 : !torch.vtensor<[1,4],f32>, !torch.vtensor<[1,4],f32>, !torch.int -> !torch.vtensor<[1,4],f32>
  %10 = torch.aten.select.int %table, %int0, %int1 : !torch.vtensor<[2,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[4],f32>
  return %4, %9, %10 : !torch.vtensor<[4],f32>, !torch.vtensor<[1,4],f32>, !torch.vtensor<[4],f32>
}

// What computes is not merged: its result would live longer.
// CHECK-LABEL: func.func @computed
// CHECK-COUNT-2: torch.aten.neg
func.func @computed(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %0 = torch.aten.neg %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %1 = torch.aten.neg %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %2 = torch.aten.mul.Tensor %0, %1 : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %2 : !torch.vtensor<[4],f32>
}

// CHECK-LABEL: func.func @written
// CHECK-COUNT-2: torch.aten.select.int
func.func @written(%x: !torch.vtensor<[2,4],f32>) -> !torch.vtensor<[4],f32> {
  %int0 = torch.constant.int 0
  %0 = torch.aten.select.int %x, %int0, %int0 : !torch.vtensor<[2,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[4],f32>
  %int1 = torch.constant.int 1
  %1 = torch.operator "torch.aten.add_.Tensor"(%x, %x, %int1) : (!torch.vtensor<[2,4],f32>, !torch.vtensor<[2,4],f32>, !torch.int) -> !torch.vtensor<[2,4],f32>
  %2 = torch.aten.select.int %x, %int0, %int0 : !torch.vtensor<[2,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[4],f32>
  %3 = torch.aten.mul.Tensor %0, %2 : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %3 : !torch.vtensor<[4],f32>
}
