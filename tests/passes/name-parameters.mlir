// RUN: steelyard-opt %s -p scaled-name-parameters | FileCheck %s
// RUN: steelyard-opt %s -p 'scaled-name-parameters,steelyard-raised,steelyard-quantized{recipe=nvfp4},steelyard-fused,steelyard-partitioned' | FileCheck %s --check-prefix=QUANTIZED

// What JAX writes: the locations of arguments are their paths.
// CHECK-LABEL: func.func public @main
// CHECK-SAME: tensor<128x64xf32> {scaled.parameter = "blocks.0.down.kernel"}
// CHECK-SAME: tensor<64x128xf32> {scaled.parameter = "up.kernel"}
// CHECK-SAME: %arg2: tensor<128xf32>, %arg3: tensor<16x64xf32>) ->

// QUANTIZED: scaled.quantize input {{.*}} -> !scaled.tensor<16x64xf32, #nvfp4
// QUANTIZED: scaled.gemm fprop {{.*}} at "up"
// QUANTIZED: scaled.gemm fprop {{.*}} at "blocks.0.down"
module @jit_f {
  func.func public @main(%arg0: tensor<128x64xf32> loc("variables['params']['blocks'][0].down.kernel.value"), %arg1: tensor<64x128xf32> loc("params['up']['kernel']"), %arg2: tensor<128xf32> loc("params['up']['bias']"), %arg3: tensor<16x64xf32> loc("x")) -> tensor<16x64xf32> {
    %0 = stablehlo.dot_general %arg3, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<16x64xf32>, tensor<64x128xf32>) -> tensor<16x128xf32>
    %1 = stablehlo.broadcast_in_dim %arg2, dims = [1] : (tensor<128xf32>) -> tensor<16x128xf32>
    %2 = stablehlo.add %0, %1 : tensor<16x128xf32>
    %3 = stablehlo.tanh %2 : tensor<16x128xf32>
    %4 = stablehlo.dot_general %3, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<16x128xf32>, tensor<128x64xf32>) -> tensor<16x64xf32>
    return %4 : tensor<16x64xf32>
  }
}
