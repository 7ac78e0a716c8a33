// RUN: steelyard-opt %s -p 'scaled-lower-blocks{target=cpu}' --split-input-file --verify-diagnostics

func.func @number(%x: !torch.vtensor<[2,8],f32>, %number: !torch.int) -> !torch.vtensor<[2,8],f32> {
  %0 = torch.prim.ListConstruct %x : (!torch.vtensor<[2,8],f32>) -> !torch.list<vtensor>
  // expected-error @below {{'torch.operator' op must have the number of a block and a list of tensors}}
  %1 = torch.operator "torch.steelyard.call_block.r1"(%number, %0) : (!torch.int, !torch.list<vtensor>) -> !torch.vtensor<[2,8],f32>
  return %1 : !torch.vtensor<[2,8],f32>
}

// -----

func.func @negative(%x: !torch.vtensor<[2,8],f32>) -> !torch.vtensor<[2,8],f32> {
  %number = torch.constant.int -1
  %0 = torch.prim.ListConstruct %x : (!torch.vtensor<[2,8],f32>) -> !torch.list<vtensor>
  // expected-error @below {{'torch.operator' op cannot be a kernel's call: number must not be negative and sizes known, got -1}}
  %1 = torch.operator "torch.steelyard.call_block.r1"(%number, %0) : (!torch.int, !torch.list<vtensor>) -> !torch.vtensor<[2,8],f32>
  return %1 : !torch.vtensor<[2,8],f32>
}

// -----

func.func @sizes(%x: !torch.vtensor<[?,8],f32>) -> !torch.vtensor<[?,8],f32> {
  %number = torch.constant.int 0
  %0 = torch.prim.ListConstruct %x : (!torch.vtensor<[?,8],f32>) -> !torch.list<vtensor>
  // expected-error @below {{'torch.operator' op cannot be a kernel's call: number must not be negative and sizes known, got 0}}
  %1 = torch.operator "torch.steelyard.call_block.r1"(%number, %0) : (!torch.int, !torch.list<vtensor>) -> !torch.vtensor<[?,8],f32>
  return %1 : !torch.vtensor<[?,8],f32>
}

// -----

func.func @nothing(%x: !torch.vtensor<[2,8],f32>) -> !torch.vtensor<[2,8],f32> {
  // expected-error @below {{'torch.operator' op must have the number of a block and a list of tensors}}
  %0 = torch.operator "torch.steelyard.call_block.r1"() : () -> !torch.vtensor<[2,8],f32>
  return %0 : !torch.vtensor<[2,8],f32>
}

// -----

func.func @no_list(%x: !torch.vtensor<[2,8],f32>) -> !torch.vtensor<[2,8],f32> {
  %number = torch.constant.int 0
  // expected-error @below {{'torch.operator' op must have the number of a block and a list of tensors}}
  %0 = torch.operator "torch.steelyard.call_block.r1"(%number) : (!torch.int) -> !torch.vtensor<[2,8],f32>
  return %0 : !torch.vtensor<[2,8],f32>
}

// -----

func.func @three(%x: !torch.vtensor<[2,8],f32>) -> !torch.vtensor<[2,8],f32> {
  %number = torch.constant.int 0
  %0 = torch.prim.ListConstruct %x : (!torch.vtensor<[2,8],f32>) -> !torch.list<vtensor>
  // expected-error @below {{'torch.operator' op must have the number of a block and a list of tensors}}
  %1 = torch.operator "torch.steelyard.call_block.r1"(%number, %0, %0) : (!torch.int, !torch.list<vtensor>, !torch.list<vtensor>) -> !torch.vtensor<[2,8],f32>
  return %1 : !torch.vtensor<[2,8],f32>
}

// -----

func.func @another_op(%x: !torch.vtensor<[2,8],f32>) -> !torch.vtensor<[2,8],f32> {
  %number = torch.constant.int 0
  %0 = torch.aten.relu %x : !torch.vtensor<[2,8],f32> -> !torch.vtensor<[2,8],f32>
  // expected-error @below {{'torch.operator' op must have the number of a block and a list of tensors}}
  %1 = torch.operator "torch.steelyard.call_block.r1"(%number, %0) : (!torch.int, !torch.vtensor<[2,8],f32>) -> !torch.vtensor<[2,8],f32>
  return %1 : !torch.vtensor<[2,8],f32>
}
