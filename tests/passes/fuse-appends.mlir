// RUN: steelyard-opt %s -p scaled-fuse-appends | FileCheck %s

func.func private @attention_0(!torch.vtensor<[1,4,1,64],f32>, !torch.vtensor<[1,2,?,64],f32>, !torch.vtensor<[1,2,?,64],f32>) -> (!torch.vtensor<[1,4,1,64],f32>, !torch.vtensor<[1,4,1],f32>) attributes {scaled.config = {scale = 1.250000e-01 : f64}, scaled.destinations, scaled.device = "cpu", scaled.kernel = "attention", scaled.operands = ["query", "key", "value"], scaled.results = ["result", "logsumexp"]}

// CHECK: func.func private @attention_1({{.*}}scaled.config = {scale = 1.250000e-01 : f64}, scaled.destinations, scaled.device = "cpu", scaled.kernel = "attention", scaled.operands = ["query", "key", "value", "new_key", "new_value"]

// CHECK-LABEL: func.func @step
// CHECK-NOT: torch.aten.cat
// CHECK-NOT: torch.prim.ListConstruct
// CHECK: %[[A:.*]]:2 = call @attention_1(%arg0, %arg1, %arg2, %arg3, %arg4)
// CHECK: return %[[A]]#0
func.func @step(%query: !torch.vtensor<[1,4,1,64],f32>, %keys: !torch.vtensor<[1,2,?,64],f32>, %values: !torch.vtensor<[1,2,?,64],f32>, %key: !torch.vtensor<[1,2,1,64],f32>, %value: !torch.vtensor<[1,2,1,64],f32>) -> !torch.vtensor<[1,4,1,64],f32> {
  %dim = torch.constant.int -2
  %l0 = torch.prim.ListConstruct %keys, %key : (!torch.vtensor<[1,2,?,64],f32>, !torch.vtensor<[1,2,1,64],f32>) -> !torch.list<vtensor>
  %0 = torch.operator "torch.aten.cat"(%l0, %dim) : (!torch.list<vtensor>, !torch.int) -> !torch.vtensor<[1,2,?,64],f32>
  %l1 = torch.prim.ListConstruct %values, %value : (!torch.vtensor<[1,2,?,64],f32>, !torch.vtensor<[1,2,1,64],f32>) -> !torch.list<vtensor>
  %1 = torch.operator "torch.aten.cat"(%l1, %dim) : (!torch.list<vtensor>, !torch.int) -> !torch.vtensor<[1,2,?,64],f32>
  %2:2 = call @attention_0(%query, %0, %1) : (!torch.vtensor<[1,4,1,64],f32>, !torch.vtensor<[1,2,?,64],f32>, !torch.vtensor<[1,2,?,64],f32>) -> (!torch.vtensor<[1,4,1,64],f32>, !torch.vtensor<[1,4,1],f32>)
  return %2#0 : !torch.vtensor<[1,4,1,64],f32>
}

// A cache that the function returns is made anyway, and is the better one to read.
// CHECK-LABEL: func.func @returned
// CHECK: %[[K:.*]] = torch.operator "torch.aten.cat"
// CHECK: %[[V:.*]] = torch.operator "torch.aten.cat"
// CHECK: call @attention_0(%arg0, %[[K]], %[[V]])
func.func @returned(%query: !torch.vtensor<[1,4,1,64],f32>, %keys: !torch.vtensor<[1,2,?,64],f32>, %values: !torch.vtensor<[1,2,?,64],f32>, %key: !torch.vtensor<[1,2,1,64],f32>, %value: !torch.vtensor<[1,2,1,64],f32>) -> (!torch.vtensor<[1,4,1,64],f32>, !torch.vtensor<[1,2,?,64],f32>) {
  %dim = torch.constant.int -2
  %l0 = torch.prim.ListConstruct %keys, %key : (!torch.vtensor<[1,2,?,64],f32>, !torch.vtensor<[1,2,1,64],f32>) -> !torch.list<vtensor>
  %0 = torch.operator "torch.aten.cat"(%l0, %dim) : (!torch.list<vtensor>, !torch.int) -> !torch.vtensor<[1,2,?,64],f32>
  %l1 = torch.prim.ListConstruct %values, %value : (!torch.vtensor<[1,2,?,64],f32>, !torch.vtensor<[1,2,1,64],f32>) -> !torch.list<vtensor>
  %1 = torch.operator "torch.aten.cat"(%l1, %dim) : (!torch.list<vtensor>, !torch.int) -> !torch.vtensor<[1,2,?,64],f32>
  %2:2 = call @attention_0(%query, %0, %1) : (!torch.vtensor<[1,4,1,64],f32>, !torch.vtensor<[1,2,?,64],f32>, !torch.vtensor<[1,2,?,64],f32>) -> (!torch.vtensor<[1,4,1,64],f32>, !torch.vtensor<[1,4,1],f32>)
  return %2#0, %1 : !torch.vtensor<[1,4,1,64],f32>, !torch.vtensor<[1,2,?,64],f32>
}

// What is written in place may be one of the parts.
// CHECK-LABEL: func.func @written
// CHECK-COUNT-2: torch.aten.cat
// CHECK: call @attention_0
func.func @written(%query: !torch.vtensor<[1,4,1,64],f32>, %keys: !torch.vtensor<[1,2,?,64],f32>, %values: !torch.vtensor<[1,2,?,64],f32>, %key: !torch.vtensor<[1,2,1,64],f32>, %value: !torch.vtensor<[1,2,1,64],f32>, %index: !torch.vtensor<[1],si64>) -> !torch.vtensor<[1,4,1,64],f32> {
  %dim = torch.constant.int 2
  %l0 = torch.prim.ListConstruct %keys, %key : (!torch.vtensor<[1,2,?,64],f32>, !torch.vtensor<[1,2,1,64],f32>) -> !torch.list<vtensor>
  %0 = torch.operator "torch.aten.cat"(%l0, %dim) : (!torch.list<vtensor>, !torch.int) -> !torch.vtensor<[1,2,?,64],f32>
  %l1 = torch.prim.ListConstruct %values, %value : (!torch.vtensor<[1,2,?,64],f32>, !torch.vtensor<[1,2,1,64],f32>) -> !torch.list<vtensor>
  %1 = torch.operator "torch.aten.cat"(%l1, %dim) : (!torch.list<vtensor>, !torch.int) -> !torch.vtensor<[1,2,?,64],f32>
  %3 = torch.operator "torch.aten.index_copy_"(%keys, %dim, %index, %value) : (!torch.vtensor<[1,2,?,64],f32>, !torch.int, !torch.vtensor<[1],si64>, !torch.vtensor<[1,2,1,64],f32>) -> !torch.vtensor<[1,2,?,64],f32>
  %2:2 = call @attention_0(%query, %0, %1) : (!torch.vtensor<[1,4,1,64],f32>, !torch.vtensor<[1,2,?,64],f32>, !torch.vtensor<[1,2,?,64],f32>) -> (!torch.vtensor<[1,4,1,64],f32>, !torch.vtensor<[1,4,1],f32>)
  return %2#0 : !torch.vtensor<[1,4,1,64],f32>
}
