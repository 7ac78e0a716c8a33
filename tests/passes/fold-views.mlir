// RUN: steelyard-opt %s -p scaled-fold-views | FileCheck %s

// CHECK-LABEL: func.func @reshape_of_views
// CHECK: %[[LIST:.*]] = torch.prim.ListConstruct %int5, %int16
// CHECK: %[[R:.*]] = torch.aten.reshape %arg0, %[[LIST]] : !torch.vtensor<[10,8],f32>, !torch.list<int> -> !torch.vtensor<[5,16],f32>
// CHECK-NEXT: return %[[R]]
func.func @reshape_of_views(%x: !torch.vtensor<[10,8],f32>) -> !torch.vtensor<[5,16],f32> {
  %two = torch.constant.int 2
  %five = torch.constant.int 5
  %eight = torch.constant.int 8
  %sixteen = torch.constant.int 16
  %first = torch.prim.ListConstruct %two, %five, %eight : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %0 = torch.aten._unsafe_view %x, %first : !torch.vtensor<[10,8],f32>, !torch.list<int> -> !torch.vtensor<[2,5,8],f32>
  %last = torch.prim.ListConstruct %five, %sixteen : (!torch.int, !torch.int) -> !torch.list<int>
  %1 = torch.aten.view %0, %last : !torch.vtensor<[2,5,8],f32>, !torch.list<int> -> !torch.vtensor<[5,16],f32>
  return %1 : !torch.vtensor<[5,16],f32>
}

// A result that goes to 3 dims and back is the result itself.
// CHECK-LABEL: func.func @there_and_back
// CHECK: %[[N:.*]] = torch.aten.neg %arg0
// CHECK-NOT: torch.aten
// CHECK: return %[[N]]
func.func @there_and_back(%x: !torch.vtensor<[10,8],f32>) -> !torch.vtensor<[10,8],f32> {
  %two = torch.constant.int 2
  %five = torch.constant.int 5
  %eight = torch.constant.int 8
  %minus = torch.constant.int -1
  %n = torch.aten.neg %x : !torch.vtensor<[10,8],f32> -> !torch.vtensor<[10,8],f32>
  %first = torch.prim.ListConstruct %two, %five, %eight : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %0 = torch.aten._unsafe_view %n, %first : !torch.vtensor<[10,8],f32>, !torch.list<int> -> !torch.vtensor<[2,5,8],f32>
  %last = torch.prim.ListConstruct %minus, %eight : (!torch.int, !torch.int) -> !torch.list<int>
  %1 = torch.aten.reshape %0, %last : !torch.vtensor<[2,5,8],f32>, !torch.list<int> -> !torch.vtensor<[10,8],f32>
  return %1 : !torch.vtensor<[10,8],f32>
}

// An argument is not returned in place of a view of it.
// CHECK-LABEL: func.func @argument
// CHECK: %[[R:.*]] = torch.aten.reshape %arg0
// CHECK: return %[[R]]
func.func @argument(%x: !torch.vtensor<[10,8],f32>) -> !torch.vtensor<[10,8],f32> {
  %ten = torch.constant.int 10
  %eight = torch.constant.int 8
  %list = torch.prim.ListConstruct %ten, %eight : (!torch.int, !torch.int) -> !torch.list<int>
  %0 = torch.aten.reshape %x, %list : !torch.vtensor<[10,8],f32>, !torch.list<int> -> !torch.vtensor<[10,8],f32>
  return %0 : !torch.vtensor<[10,8],f32>
}

// Two sizes that are not known may differ although the types are equal.
// CHECK-LABEL: func.func @unknown_sizes
// CHECK: %[[R:.*]] = torch.aten.view
// CHECK-NEXT: return %[[R]]
func.func @unknown_sizes(%x: !torch.vtensor<[?,?],f32>, %size: !torch.int) -> !torch.vtensor<[?,?],f32> {
  %minus = torch.constant.int -1
  %n = torch.aten.neg %x : !torch.vtensor<[?,?],f32> -> !torch.vtensor<[?,?],f32>
  %list = torch.prim.ListConstruct %minus, %size : (!torch.int, !torch.int) -> !torch.list<int>
  %0 = torch.aten.view %n, %list : !torch.vtensor<[?,?],f32>, !torch.list<int> -> !torch.vtensor<[?,?],f32>
  return %0 : !torch.vtensor<[?,?],f32>
}

// The reshape of a transposed tensor copies it: once for both readers.
// CHECK-LABEL: func.func @copied_once
// CHECK: %[[T:.*]] = torch.aten.t %arg0
// CHECK: %[[COPY:.*]] = torch.aten.reshape %[[T]]
// CHECK-DAG: torch.aten.view %[[COPY]]
// CHECK-DAG: torch.aten.neg %[[COPY]]
func.func @copied_once(%x: !torch.vtensor<[8,10],f32>) -> (!torch.vtensor<[5,16],f32>, !torch.vtensor<[80],f32>) {
  %five = torch.constant.int 5
  %sixteen = torch.constant.int 16
  %eighty = torch.constant.int 80
  %t = torch.aten.t %x : !torch.vtensor<[8,10],f32> -> !torch.vtensor<[10,8],f32>
  %flat = torch.prim.ListConstruct %eighty : (!torch.int) -> !torch.list<int>
  %0 = torch.aten.reshape %t, %flat : !torch.vtensor<[10,8],f32>, !torch.list<int> -> !torch.vtensor<[80],f32>
  %last = torch.prim.ListConstruct %five, %sixteen : (!torch.int, !torch.int) -> !torch.list<int>
  %1 = torch.aten.view %0, %last : !torch.vtensor<[80],f32>, !torch.list<int> -> !torch.vtensor<[5,16],f32>
  %2 = torch.aten.neg %0 : !torch.vtensor<[80],f32> -> !torch.vtensor<[80],f32>
  return %1, %2 : !torch.vtensor<[5,16],f32>, !torch.vtensor<[80],f32>
}

// The gradient of a weight, as autograd makes it: transposed twice.
// CHECK-LABEL: func.func @transposed_twice
// CHECK: %[[N:.*]] = torch.aten.neg %arg0
// CHECK-NEXT: return %[[N]]
func.func @transposed_twice(%x: !torch.vtensor<[10,8],f32>) -> !torch.vtensor<[10,8],f32> {
  %n = torch.aten.neg %x : !torch.vtensor<[10,8],f32> -> !torch.vtensor<[10,8],f32>
  %0 = torch.aten.t %n : !torch.vtensor<[10,8],f32> -> !torch.vtensor<[8,10],f32>
  %1 = torch.aten.t %0 : !torch.vtensor<[8,10],f32> -> !torch.vtensor<[10,8],f32>
  return %1 : !torch.vtensor<[10,8],f32>
}

// CHECK-LABEL: func.func @argument_transposed_twice
// CHECK: torch.aten.t
// CHECK: %[[T:.*]] = torch.aten.t
// CHECK: return %[[T]]
func.func @argument_transposed_twice(%x: !torch.vtensor<[10,8],f32>) -> !torch.vtensor<[10,8],f32> {
  %0 = torch.aten.t %x : !torch.vtensor<[10,8],f32> -> !torch.vtensor<[8,10],f32>
  %1 = torch.aten.t %0 : !torch.vtensor<[8,10],f32> -> !torch.vtensor<[10,8],f32>
  return %1 : !torch.vtensor<[10,8],f32>
}
