// RUN: steelyard-opt %s --split-input-file --verify-diagnostics

// The constraints of scaled.amax, scaled.update_scale, scaled.count_saturated and scaled.advance_rng.

// amax_c0
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{'scaled.amax' op must have the operands, results and attributes it declares: rht must be a BoolAttr, got 1 : i64 [amax_c0]}}
  %0 = "scaled.amax"(%x) {per_row = false, rht = 1} : (tensor<64x64xf32>) -> tensor<f32>
  return
}

// -----

// amax_c1
func.func @f(%x: tensor<64xi32>) {
  // expected-error @+1 {{source must be a ranked tensor of f32, bf16, f16, got tensor<64xi32> [amax_c1]}}
  %0 = scaled.amax %x : tensor<64xi32> -> tensor<f32>
  return
}

// -----

// amax_c2
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{per_row and rht exclude each other, got both [amax_c2]}}
  %0 = scaled.amax %x per_row rht : tensor<64x64xf32> -> tensor<f32>
  return
}

// -----

// amax_c3
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{result must be tensor<f32>, got tensor<64xf32> [amax_c3]}}
  %0 = scaled.amax %x : tensor<64x64xf32> -> tensor<64xf32>
  return
}

// -----

// amax_c3
func.func @f(%x: !torch.vtensor<[64,64],f32>) {
  // expected-error @+1 {{result must be !torch.vtensor<[64],f32>, got !torch.vtensor<[],f32> [amax_c3]}}
  %0 = scaled.amax %x per_row : !torch.vtensor<[64,64],f32> -> !torch.vtensor<[],f32>
  return
}

// -----

// update_scale_c1
func.func @f(%scale: tensor<f32>, %history: tensor<16xf32>, %amax: tensor<f32>) {
  // expected-error @+1 {{scheme must have a delayed scale, got a current one [update_scale_c1]}}
  %0:2 = scaled.update_scale %scale, %history, %amax for #fp8_tensor : tensor<f32>, tensor<16xf32>, tensor<f32> -> tensor<f32>, tensor<16xf32>
  return
}

// -----

// update_scale_c2
func.func @f(%scale: tensor<f32>, %history: tensor<16xf32>, %amax: tensor<1xf32>) {
  // expected-error @+1 {{amax must be tensor<f32>, got tensor<1xf32> [update_scale_c2]}}
  %0:2 = scaled.update_scale %scale, %history, %amax for #fp8_tensor_delayed : tensor<f32>, tensor<16xf32>, tensor<1xf32> -> tensor<f32>, tensor<16xf32>
  return
}

// -----

// update_scale_c3
func.func @f(%scale: tensor<f32>, %history: tensor<0xf32>, %amax: tensor<f32>) {
  // expected-error @+1 {{history must be at least 1 slot long, got tensor<0xf32> [update_scale_c3]}}
  %0:2 = scaled.update_scale %scale, %history, %amax for #fp8_tensor_delayed : tensor<f32>, tensor<0xf32>, tensor<f32> -> tensor<f32>, tensor<16xf32>
  return
}

// -----

// update_scale_c3
func.func @f(%scale: tensor<f32>, %history: tensor<16xf32>, %amax: tensor<f32>) {
  // expected-error @+1 {{new_history must be tensor<16xf32>, got tensor<17xf32> [update_scale_c3]}}
  %0:2 = scaled.update_scale %scale, %history, %amax for #fp8_tensor_delayed : tensor<f32>, tensor<16xf32>, tensor<f32> -> tensor<f32>, tensor<17xf32>
  return
}

// -----

// update_scale_c2: experts have one amax each
func.func @f(%scale: tensor<4xf32>, %history: tensor<16x4xf32>, %amax: tensor<f32>) {
  // expected-error @+1 {{amax must be tensor<4xf32>, got tensor<f32> [update_scale_c2]}}
  %0:2 = scaled.update_scale %scale, %history, %amax for #fp8_tensor_delayed : tensor<4xf32>, tensor<16x4xf32>, tensor<f32> -> tensor<4xf32>, tensor<16x4xf32>
  return
}

// -----

// update_scale_c3: and one column
func.func @f(%scale: tensor<4xf32>, %history: tensor<16xf32>, %amax: tensor<4xf32>) {
  // expected-error @+1 {{history must be tensor<16x4xf32>, got tensor<16xf32> [update_scale_c3]}}
  %0:2 = scaled.update_scale %scale, %history, %amax for #fp8_tensor_delayed : tensor<4xf32>, tensor<16xf32>, tensor<4xf32> -> tensor<4xf32>, tensor<16xf32>
  return
}

// -----

// update_scale_c4
func.func @f(%scale: tensor<f32>, %history: tensor<16xf32>, %amax: tensor<f32>) {
  // expected-error @+1 {{algorithm must be one of max, most_recent, custom, got mean [update_scale_c4]}}
  %0:2 = scaled.update_scale %scale, %history, %amax for #fp8_tensor_delayed algorithm(mean) : tensor<f32>, tensor<16xf32>, tensor<f32> -> tensor<f32>, tensor<16xf32>
  return
}

// -----

// count_saturated_c5
func.func @f(%x: tensor<4x8x64xf32>, %scale: tensor<f32>, %count: tensor<i64>, %ends: tensor<4xi32>) {
  // expected-error @+1 {{source must be a matrix to have ends, got [4,8,64] [count_saturated_c5]}}
  %0 = scaled.count_saturated %x, %scale, %count ends(%ends) for #fp8_tensor_static : tensor<4x8x64xf32>, tensor<f32>, tensor<i64>, tensor<4xi32> -> tensor<i64>
  return
}

// -----

// count_saturated_c5
func.func @f(%x: tensor<8x64xf32>, %scale: tensor<f32>, %count: tensor<i64>, %ends: tensor<4xi64>) {
  // expected-error @+1 {{ends must be tensor<?xi32>, got tensor<4xi64> [count_saturated_c5]}}
  %0 = scaled.count_saturated %x, %scale, %count ends(%ends) for #fp8_tensor_static : tensor<8x64xf32>, tensor<f32>, tensor<i64>, tensor<4xi64> -> tensor<i64>
  return
}

// -----

// advance_rng_c1
func.func @f(%x: i64) {
  // expected-error @+1 {{rng must be a tensor of two 64-bit integers, got i64 [advance_rng_c1]}}
  %0 = scaled.advance_rng %x : i64 -> i64
  return
}

// -----

// advance_rng_c1
func.func @f(%x: tensor<3xi64>) {
  // expected-error @+1 {{rng must be tensor<2xi64>, got tensor<3xi64> [advance_rng_c1]}}
  %0 = scaled.advance_rng %x : tensor<3xi64> -> tensor<3xi64>
  return
}

// -----

// advance_rng_c1
func.func @f(%x: tensor<2xi64>) {
  // expected-error @+1 {{result must be tensor<2xi64>, got tensor<2xi32> [advance_rng_c1]}}
  %0 = scaled.advance_rng %x : tensor<2xi64> -> tensor<2xi32>
  return
}

// -----

// count_saturated_c1
func.func @f(%x: tensor<64xi32>, %s: tensor<f32>, %n: tensor<i64>) {
  // expected-error @+1 {{source must be a ranked tensor of f32, bf16, f16, got tensor<64xi32> [count_saturated_c1]}}
  %0 = scaled.count_saturated %x, %s, %n for #fp8_tensor_static : tensor<64xi32>, tensor<f32>, tensor<i64> -> tensor<i64>
  return
}

// -----

// count_saturated_c2
func.func @f(%x: tensor<64xf32>, %s: tensor<f32>, %n: tensor<i64>) {
  // expected-error @+1 {{scheme must have a static scale, got a delayed one [count_saturated_c2]}}
  %0 = scaled.count_saturated %x, %s, %n for #fp8_tensor_delayed : tensor<64xf32>, tensor<f32>, tensor<i64> -> tensor<i64>
  return
}

// -----

// count_saturated_c3
func.func @f(%x: tensor<64xf32>, %s: tensor<1xf32>, %n: tensor<i64>) {
  // expected-error @+1 {{scale must be tensor<f32>, got tensor<1xf32> [count_saturated_c3]}}
  %0 = scaled.count_saturated %x, %s, %n for #nvfp4_1x16_static : tensor<64xf32>, tensor<1xf32>, tensor<i64> -> tensor<i64>
  return
}

// -----

// count_saturated_c4
func.func @f(%x: tensor<64xf32>, %s: tensor<f32>, %n: tensor<f32>) {
  // expected-error @+1 {{count must be tensor<i64>, got tensor<f32> [count_saturated_c4]}}
  %0 = scaled.count_saturated %x, %s, %n for #fp8_tensor_static : tensor<64xf32>, tensor<f32>, tensor<f32> -> tensor<f32>
  return
}

// -----

// count_saturated_c4
func.func @f(%x: !torch.vtensor<[64],f32>, %s: !torch.vtensor<[],f32>, %n: !torch.vtensor<[],si64>) {
  // expected-error @+1 {{result must be !torch.vtensor<[],si64>, got !torch.vtensor<[1],si64> [count_saturated_c4]}}
  %0 = scaled.count_saturated %x, %s, %n for #fp8_tensor_static : !torch.vtensor<[64],f32>, !torch.vtensor<[],f32>, !torch.vtensor<[],si64> -> !torch.vtensor<[1],si64>
  return
}
