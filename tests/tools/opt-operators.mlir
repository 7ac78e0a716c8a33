// RUN: steelyard-opt %s -p 'scaled-lower-rows{target=cpu},scaled-lower-indexing{target=cpu},scaled-fuse-elementwise{target=cpu}' --split-input-file --verify-diagnostics
// RUN: steelyard-opt %s -p scaled-raise-gemms --split-input-file --verify-diagnostics

// An op that is spelled by its name has as many operands and results as the op that it names: passes read them.

func.func @f(%x: !torch.vtensor<[2,8],f32>) {
  // expected-error @below {{'torch.operator' op must have as many operands and results as torch.aten.sum.dim_IntList, 4 and 1, got 2 and 1 [input_c4]}}
  %r = torch.operator "torch.aten.sum.dim_IntList"(%x, %x) : (!torch.vtensor<[2,8],f32>, !torch.vtensor<[2,8],f32>) -> !torch.vtensor<[2,8],f32>
  return
}

// -----

func.func @f(%x: !torch.vtensor<[2,8],f32>) {
  // expected-error @below {{'torch.operator' op must have as many operands and results as torch.aten.native_layer_norm, 5 and 3, got 5 and 1 [input_c4]}}
  %r = torch.operator "torch.aten.native_layer_norm"(%x, %x, %x, %x, %x) : (!torch.vtensor<[2,8],f32>, !torch.vtensor<[2,8],f32>, !torch.vtensor<[2,8],f32>, !torch.vtensor<[2,8],f32>, !torch.vtensor<[2,8],f32>) -> !torch.vtensor<[2,8],f32>
  return
}

// -----

func.func @f(%x: !torch.vtensor<[2,8],f32>) {
  // expected-error @below {{'torch.operator' op must have as many operands and results as torch.aten.embedding_dense_backward, 5 and 1, got 0 and 1 [input_c4]}}
  %r = torch.operator "torch.aten.embedding_dense_backward"() : () -> !torch.vtensor<[2,8],f32>
  return
}

// -----

func.func @f(%x: !torch.vtensor<[2,8],f32>) {
  // expected-error @below {{'torch.operator' op must have as many operands and results as torch.aten.cat, 2 and 1, got 2 and 0 [input_c4]}}
  torch.operator "torch.aten.cat"(%x, %x) : (!torch.vtensor<[2,8],f32>, !torch.vtensor<[2,8],f32>) -> ()
  return
}

// -----

func.func @f(%x: !torch.vtensor<[2,8],f32>) {
  // expected-error @below {{'torch.operator' op must have as many operands and results as torch.aten.size.int, 2 and 1, got 1 and 1 [input_c4]}}
  %r = torch.operator "torch.aten.size.int"(%x) : (!torch.vtensor<[2,8],f32>) -> !torch.vtensor<[2,8],f32>
  return
}

// -----

func.func @f(%x: !torch.vtensor<[2,8],f32>) {
  // expected-error @below {{'torch.operator' op must have as many operands and results as torch.aten.index_copy_, 4 and 1, got 3 and 1 [input_c4]}}
  %r = torch.operator "torch.aten.index_copy_"(%x, %x, %x) : (!torch.vtensor<[2,8],f32>, !torch.vtensor<[2,8],f32>, !torch.vtensor<[2,8],f32>) -> !torch.vtensor<[2,8],f32>
  return
}

// -----

func.func @f(%x: !torch.vtensor<[2,8],f32>) {
  // expected-error @below {{'torch.operator' op must have as many operands and results as torch.aten._scaled_dot_product_flash_attention_for_cpu, 7 and 2, got 3 and 1 [input_c4]}}
  %r = torch.operator "torch.aten._scaled_dot_product_flash_attention_for_cpu"(%x, %x, %x) : (!torch.vtensor<[2,8],f32>, !torch.vtensor<[2,8],f32>, !torch.vtensor<[2,8],f32>) -> !torch.vtensor<[2,8],f32>
  return
}

// -----

func.func @f(%x: !torch.vtensor<[2,8],f32>) {
  // expected-error @below {{'torch.operator' op must have as many operands and results as torch.steelyard.encode_rows, 1 and 2, got 1 and 1 [input_c4]}}
  %r = torch.operator "torch.steelyard.encode_rows"(%x) : (!torch.vtensor<[2,8],f32>) -> !torch.vtensor<[2,8],f32>
  return
}

// -----

// Lists have any number of elements, and nobody knows what other libraries have.
func.func @any(%x: !torch.vtensor<[2,8],f32>) {
  %0 = torch.operator "torch.prim.ListConstruct"(%x, %x, %x) : (!torch.vtensor<[2,8],f32>, !torch.vtensor<[2,8],f32>, !torch.vtensor<[2,8],f32>) -> !torch.list<vtensor>
  %1 = torch.operator "torch.library.other"(%x) : (!torch.vtensor<[2,8],f32>) -> !torch.vtensor<[2,8],f32>
  %2 = torch.operator "torch.aten.relu"(%x) : (!torch.vtensor<[2,8],f32>) -> !torch.vtensor<[2,8],f32>
  return
}
