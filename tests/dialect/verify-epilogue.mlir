// RUN: steelyard-opt %s --split-input-file --verify-diagnostics

// The constraints of scaled.epilogue.

// epilogue_c1
func.func @f(%x: tensor<64x64xbf16>) {
  // expected-error @+1 {{source must be a tensor of f32, got tensor<64x64xbf16> [epilogue_c1]}}
  %0 = scaled.epilogue none %x : tensor<64x64xbf16> -> tensor<64x64xf32>
  return
}

// -----

// epilogue_c1
func.func @f(%x: tensor<64x64xi8>) {
  // expected-error @+1 {{source must be a ranked tensor of f32, bf16, f16, got tensor<64x64xi8> [epilogue_c1]}}
  %0 = scaled.epilogue none %x : tensor<64x64xi8> -> tensor<64x64xf32>
  return
}

// -----

// epilogue_c2
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{result must be like the source, of shape [64,64], got tensor<64x32xf32> [epilogue_c2]}}
  %0 = scaled.epilogue none %x : tensor<64x64xf32> -> tensor<64x32xf32>
  return
}

// -----

// epilogue_c2
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{result must be like the source, of shape [64,64], got !torch.vtensor<[64,64],f32> [epilogue_c2]}}
  %0 = scaled.epilogue none %x : tensor<64x64xf32> -> !torch.vtensor<[64,64],f32>
  return
}

// -----

// epilogue_c3
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{epilogue must be one of none, relu, gelu, gelu_tanh, silu, got swish [epilogue_c3]}}
  %0 = scaled.epilogue swish %x : tensor<64x64xf32> -> tensor<64x64xf32>
  return
}

// -----

// epilogue_c4
func.func @f(%x: tensor<64x64xf32>, %b: tensor<32xbf16>) {
  // expected-error @+1 {{bias must have shape [64], got tensor<32xbf16> [epilogue_c4]}}
  %0 = scaled.epilogue none %x bias(%b) : tensor<64x64xf32>, tensor<32xbf16> -> tensor<64x64xf32>
  return
}

// -----

// epilogue_c5
func.func @f(%x: tensor<64x64xf32>, %r: tensor<64x64xf32>) {
  // expected-error @+1 {{residual must be tensor<64x64xbf16>, got tensor<64x64xf32> [epilogue_c5]}}
  %0 = scaled.epilogue none %x residual(%r) : tensor<64x64xf32>, tensor<64x64xf32> -> tensor<64x64xbf16>
  return
}

// -----

// epilogue_c6
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{a preactivation needs an epilogue other than none [epilogue_c6]}}
  %0:2 = scaled.epilogue none %x : tensor<64x64xf32> -> tensor<64x64xf32>, tensor<64x64xf32>
  return
}

// -----

// epilogue_c6
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{preactivation must be tensor<64x64xf32>, got tensor<64x64xbf16> [epilogue_c6]}}
  %0:2 = scaled.epilogue gelu %x : tensor<64x64xf32> -> tensor<64x64xf32>, tensor<64x64xbf16>
  return
}
