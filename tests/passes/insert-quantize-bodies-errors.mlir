// RUN: steelyard-opt %s --split-input-file --verify-diagnostics --allow-unregistered-dialect -p 'scaled-apply-recipe{recipe=fp8-delayed},scaled-insert-quantize'

func.func @no_body(%x: tensor<16x64xf32>) {
  // expected-error @+1 {{attribute 'scaled.bodies' must name functions of the module that do not run the one with the op, got nothing}}
  "test.loop"(%x) {scaled.bodies = [@nothing]} : (tensor<16x64xf32>) -> ()
  return
}

// -----

// expected-error @+1 {{state 'layer.input.scale' must have one shape, got tensor<3xf32> and tensor<f32>; a layer with state is either one of experts or not}}
func.func @two_shapes(%x: tensor<16x64xf32>, %w: tensor<64x64xf32> {scaled.parameter = "layer.kernel"}, %scale: tensor<3xf32> {scaled.state = "layer.input.scale"}) -> tensor<16x64xf32> {
  %y = scaled.matmul fprop %x, %w at "layer" : tensor<16x64xf32>, tensor<64x64xf32> -> tensor<16x64xf32>
  return %y : tensor<16x64xf32>
}
