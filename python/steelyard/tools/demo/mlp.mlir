// A SwiGLU block of a Llama-style model: every GEMM is found and named, no recipe has touched it yet.
module {
  func.func @mlp(%x: !torch.vtensor<[?,768],bf16>, %gate_weight: !torch.vtensor<[2048,768],bf16> {scaled.parameter = "mlp.gate_proj.weight"}, %up_weight: !torch.vtensor<[2048,768],bf16> {scaled.parameter = "mlp.up_proj.weight"}, %down_weight: !torch.vtensor<[768,2048],bf16> {scaled.parameter = "mlp.down_proj.weight"}) -> !torch.vtensor<[?,768],bf16> {
    %gate = "scaled.matmul"(%x, %gate_weight) {batch_dims = 0 : i64, kind = "fprop", layer = "mlp.gate_proj", operandSegmentSizes = array<i32: 1, 1, 0>} : (!torch.vtensor<[?,768],bf16>, !torch.vtensor<[2048,768],bf16>) -> !torch.vtensor<[?,2048],bf16>
    %up = "scaled.matmul"(%x, %up_weight) {batch_dims = 0 : i64, kind = "fprop", layer = "mlp.up_proj", operandSegmentSizes = array<i32: 1, 1, 0>} : (!torch.vtensor<[?,768],bf16>, !torch.vtensor<[2048,768],bf16>) -> !torch.vtensor<[?,2048],bf16>
    %silu = torch.aten.silu %gate : !torch.vtensor<[?,2048],bf16> -> !torch.vtensor<[?,2048],bf16>
    %hidden = torch.aten.mul.Tensor %silu, %up : !torch.vtensor<[?,2048],bf16>, !torch.vtensor<[?,2048],bf16> -> !torch.vtensor<[?,2048],bf16>
    %y = "scaled.matmul"(%hidden, %down_weight) {batch_dims = 0 : i64, kind = "fprop", layer = "mlp.down_proj", operandSegmentSizes = array<i32: 1, 1, 0>} : (!torch.vtensor<[?,2048],bf16>, !torch.vtensor<[768,2048],bf16>) -> !torch.vtensor<[?,768],bf16>
    return %y : !torch.vtensor<[?,768],bf16>
  }
}
