// RUN: steelyard-opt %s -p 'scaled-lower-splits{target=cpu}' | FileCheck %s
// RUN: steelyard-opt %s -p 'scaled-lower-splits{target=cuda:sm_100a}' | FileCheck %s --check-prefix=CUDA
// RUN: not steelyard-opt %s -p 'scaled-lower-splits{target=abacus}' 2>&1 | FileCheck %s --check-prefix=TARGET

// TARGET: target must be one of {{.*}}, got 'abacus'
// CUDA-NOT: torch.aten.slice.Tensor

// The last part is shorter.
// CHECK-LABEL: func.func @equal
// CHECK-NOT: torch.aten.split
// CHECK: %[[A:.*]] = torch.aten.slice.Tensor %arg0, %int-1{{[_0-9]*}}, %int0{{[_0-9]*}}, %int4{{[_0-9]*}}, %int1{{[_0-9]*}} : {{.*}} -> !torch.vtensor<[2,4],f32>
// CHECK: %[[B:.*]] = torch.aten.slice.Tensor %arg0, %int-1{{[_0-9]*}}, %int4{{[_0-9]*}}, %int8{{[_0-9]*}}, %int1{{[_0-9]*}} : {{.*}} -> !torch.vtensor<[2,2],f32>
// CHECK: return %[[A]], %[[B]]
func.func @equal(%x: !torch.vtensor<[2,6],f32>) -> (!torch.vtensor<[2,4],f32>, !torch.vtensor<[2,2],f32>) {
  %size = torch.constant.int 4
  %dim = torch.constant.int -1
  %0 = torch.aten.split.Tensor %x, %size, %dim : !torch.vtensor<[2,6],f32>, !torch.int, !torch.int -> !torch.list<vtensor>
  %1:2 = torch.prim.ListUnpack %0 : !torch.list<vtensor> -> !torch.vtensor<[2,4],f32>, !torch.vtensor<[2,2],f32>
  return %1#0, %1#1 : !torch.vtensor<[2,4],f32>, !torch.vtensor<[2,2],f32>
}

// CHECK-LABEL: func.func @given
// CHECK-NOT: torch.aten.split
// CHECK: %[[C:.*]] = torch.aten.slice.Tensor %arg0, %int0{{[_0-9]*}}, %int0{{[_0-9]*}}, %int1{{[_0-9]*}}, %int1{{[_0-9]*}} : {{.*}} -> !torch.vtensor<[1,6],f32>
// CHECK: %[[D:.*]] = torch.aten.slice.Tensor %arg0, %int0{{[_0-9]*}}, %int1{{[_0-9]*}}, %int3{{[_0-9]*}}, %int1{{[_0-9]*}} : {{.*}} -> !torch.vtensor<[2,6],f32>
// CHECK: return %[[C]], %[[D]]
func.func @given(%x: !torch.vtensor<[3,6],f32>) -> (!torch.vtensor<[1,6],f32>, !torch.vtensor<[2,6],f32>) {
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %dim = torch.constant.int 0
  %sizes = torch.prim.ListConstruct %one, %two : (!torch.int, !torch.int) -> !torch.list<int>
  %0 = torch.aten.split_with_sizes %x, %sizes, %dim : !torch.vtensor<[3,6],f32>, !torch.list<int>, !torch.int -> !torch.list<vtensor>
  %1:2 = torch.prim.ListUnpack %0 : !torch.list<vtensor> -> !torch.vtensor<[1,6],f32>, !torch.vtensor<[2,6],f32>
  return %1#0, %1#1 : !torch.vtensor<[1,6],f32>, !torch.vtensor<[2,6],f32>
}

// A size that is known only at run time.
// CHECK-LABEL: func.func @torchs_own
// CHECK: torch.aten.split.Tensor
func.func @torchs_own(%x: !torch.vtensor<[2,?],f32>, %size: !torch.int) -> (!torch.vtensor<[2,?],f32>, !torch.vtensor<[2,?],f32>) {
  %dim = torch.constant.int 1
  %0 = torch.aten.split.Tensor %x, %size, %dim : !torch.vtensor<[2,?],f32>, !torch.int, !torch.int -> !torch.list<vtensor>
  %1:2 = torch.prim.ListUnpack %0 : !torch.list<vtensor> -> !torch.vtensor<[2,?],f32>, !torch.vtensor<[2,?],f32>
  return %1#0, %1#1 : !torch.vtensor<[2,?],f32>, !torch.vtensor<[2,?],f32>
}

// Parts that begin after the end of the dim.
// CHECK-LABEL: func.func @longer_than_the_dim
// CHECK: torch.aten.split.Tensor
func.func @longer_than_the_dim(%x: !torch.vtensor<[6,8],f32>) -> (!torch.vtensor<[3,8],f32>, !torch.vtensor<[3,8],f32>) {
  %dim = torch.constant.int 0
  %size0 = torch.constant.int 9223372036854775807
  %0 = torch.aten.split.Tensor %x, %size0, %dim : !torch.vtensor<[6,8],f32>, !torch.int, !torch.int -> !torch.list<vtensor>
  %1:2 = torch.prim.ListUnpack %0 : !torch.list<vtensor> -> !torch.vtensor<[3,8],f32>, !torch.vtensor<[3,8],f32>
  return %1#0, %1#1 : !torch.vtensor<[3,8],f32>, !torch.vtensor<[3,8],f32>
}

// Parts that end beyond 64 bits.
// CHECK-LABEL: func.func @longer_than_any_dim
// CHECK: torch.aten.split.Tensor
func.func @longer_than_any_dim(%x: !torch.vtensor<[?,8],f32>) -> (!torch.vtensor<[3,8],f32>, !torch.vtensor<[3,8],f32>) {
  %dim = torch.constant.int 0
  %size0 = torch.constant.int 9223372036854775807
  %0 = torch.aten.split.Tensor %x, %size0, %dim : !torch.vtensor<[?,8],f32>, !torch.int, !torch.int -> !torch.list<vtensor>
  %1:2 = torch.prim.ListUnpack %0 : !torch.list<vtensor> -> !torch.vtensor<[3,8],f32>, !torch.vtensor<[3,8],f32>
  return %1#0, %1#1 : !torch.vtensor<[3,8],f32>, !torch.vtensor<[3,8],f32>
}

// No part has such a size.
// CHECK-LABEL: func.func @negative
// CHECK: torch.aten.split_with_sizes
func.func @negative(%x: !torch.vtensor<[6,8],f32>) -> (!torch.vtensor<[3,8],f32>, !torch.vtensor<[3,8],f32>) {
  %dim = torch.constant.int 0
  %size0 = torch.constant.int -9223372036854775808
  %size1 = torch.constant.int -9223372036854775808
  %sizes = torch.prim.ListConstruct %size0, %size1 : (!torch.int, !torch.int) -> !torch.list<int>
  %0 = torch.aten.split_with_sizes %x, %sizes, %dim : !torch.vtensor<[6,8],f32>, !torch.list<int>, !torch.int -> !torch.list<vtensor>
  %1:2 = torch.prim.ListUnpack %0 : !torch.list<vtensor> -> !torch.vtensor<[3,8],f32>, !torch.vtensor<[3,8],f32>
  return %1#0, %1#1 : !torch.vtensor<[3,8],f32>, !torch.vtensor<[3,8],f32>
}

// Parts that are longer together than the dim.
// CHECK-LABEL: func.func @too_long_together
// CHECK: torch.aten.split_with_sizes
func.func @too_long_together(%x: !torch.vtensor<[6,8],f32>) -> (!torch.vtensor<[3,8],f32>, !torch.vtensor<[3,8],f32>) {
  %dim = torch.constant.int 0
  %size0 = torch.constant.int 3
  %size1 = torch.constant.int 4
  %sizes = torch.prim.ListConstruct %size0, %size1 : (!torch.int, !torch.int) -> !torch.list<int>
  %0 = torch.aten.split_with_sizes %x, %sizes, %dim : !torch.vtensor<[6,8],f32>, !torch.list<int>, !torch.int -> !torch.list<vtensor>
  %1:2 = torch.prim.ListUnpack %0 : !torch.list<vtensor> -> !torch.vtensor<[3,8],f32>, !torch.vtensor<[3,8],f32>
  return %1#0, %1#1 : !torch.vtensor<[3,8],f32>, !torch.vtensor<[3,8],f32>
}

// A dim that the tensor has not.
// CHECK-LABEL: func.func @no_such_dim
// CHECK: torch.aten.split.Tensor
func.func @no_such_dim(%x: !torch.vtensor<[6,8],f32>) -> (!torch.vtensor<[3,8],f32>, !torch.vtensor<[3,8],f32>) {
  %dim = torch.constant.int 2
  %size0 = torch.constant.int 3
  %0 = torch.aten.split.Tensor %x, %size0, %dim : !torch.vtensor<[6,8],f32>, !torch.int, !torch.int -> !torch.list<vtensor>
  %1:2 = torch.prim.ListUnpack %0 : !torch.list<vtensor> -> !torch.vtensor<[3,8],f32>, !torch.vtensor<[3,8],f32>
  return %1#0, %1#1 : !torch.vtensor<[3,8],f32>, !torch.vtensor<[3,8],f32>
}
