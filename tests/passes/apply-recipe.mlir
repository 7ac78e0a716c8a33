// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=mxfp8 overrides="lm_head=none layers.0.*=nvfp4"}' | FileCheck %s
// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=fp8-block without-parameters}' | FileCheck %s --check-prefix=ALL
// RUN: not steelyard-opt %s -p 'scaled-apply-recipe{recipe=mxfp8 overrides=encoder.*=none}' 2>&1 | FileCheck %s --check-prefix=UNMATCHED
// RUN: not steelyard-opt %s -p 'scaled-apply-recipe{recipe=mxfp8 overrides=lm_head}' 2>&1 | FileCheck %s --check-prefix=FORM
// RUN: not steelyard-opt %s -p 'scaled-apply-recipe{recipe=mxfp9}' 2>&1 | FileCheck %s --check-prefix=RECIPE
// RUN: not steelyard-opt %s -p 'scaled-apply-recipe{recipe=mxfp8 unmatched=maybe}' 2>&1 | FileCheck %s --check-prefix=CHOICE
// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=mxfp8 overrides="encoder.*=none" unmatched=allow}' | FileCheck %s --check-prefix=ALLOWED

// UNMATCHED: error: {{.*}}override pattern 'encoder.*' matches no layer
// FORM: error: {{.*}}an override must be pattern=recipe, got 'lm_head'
// RECIPE: error: option 'recipe' of scaled-apply-recipe: {{.*}}got 'mxfp9'; did you mean 'mxfp8'?
// CHOICE: error: {{.*}}unmatched must be fail or allow, got 'maybe'
// ALLOWED: at "layers.0.q" {lhs_scheme = #mxfp8_1x32

// CHECK-LABEL: func.func @model
// ALL-LABEL: func.func @model
func.func @model(%x: !torch.vtensor<[8,64],f32>, %w: !torch.vtensor<[64,64],f32> {scaled.parameter = "layers.0.q.weight"}, %v: !torch.vtensor<[64,64],f16> {scaled.parameter = "layers.1.q.weight"}, %k: !torch.vtensor<[8,64],f32>) {
  // CHECK: scaled.matmul fprop %arg0, %arg1 at "layers.0.q" {lhs_scheme = #nvfp4_1x16, {{.*}}rhs_scheme = #nvfp4_16x16
  // ALL: scaled.matmul fprop %arg0, %arg1 at "layers.0.q" {lhs_scheme = #fp8_1x128_power_of_two, {{.*}}rhs_scheme = #fp8_128x128_power_of_two
  %0 = scaled.matmul fprop %x, %w at "layers.0.q" : !torch.vtensor<[8,64],f32>, !torch.vtensor<[64,64],f32> -> !torch.vtensor<[8,64],f32>
  // The parameter is seen through a cast and a transpose.
  // CHECK: scaled.matmul fprop {{.*}} at "layers.1.q" {lhs_scheme = #mxfp8_1x32, {{.*}}rhs_scheme = #mxfp8_1x32
  %six = torch.constant.int 6
  %false = torch.constant.bool false
  %none = torch.constant.none
  %cast = torch.aten.to.dtype %v, %six, %false, %false, %none : !torch.vtensor<[64,64],f16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !torch.vtensor<[64,64],f32>
  %t = torch.aten.t %cast : !torch.vtensor<[64,64],f32> -> !torch.vtensor<[64,64],f32>
  %1 = scaled.matmul fprop %x, %t at "layers.1.q" : !torch.vtensor<[8,64],f32>, !torch.vtensor<[64,64],f32> -> !torch.vtensor<[8,64],f32>
  // CHECK: scaled.matmul fprop {{.*}} at "lm_head" {{.*}}scaled.high_precision = "override 'lm_head' asks for high precision"
  %2 = scaled.matmul fprop %x, %w at "lm_head" : !torch.vtensor<[8,64],f32>, !torch.vtensor<[64,64],f32> -> !torch.vtensor<[8,64],f32>
  // CHECK: scaled.matmul fprop {{.*}} at "scores" {{.*}}scaled.high_precision = "no operand is a parameter"
  // ALL: scaled.matmul fprop {{.*}} at "scores" {lhs_scheme
  %3 = scaled.matmul fprop %x, %k at "scores" : !torch.vtensor<[8,64],f32>, !torch.vtensor<[8,64],f32> -> !torch.vtensor<[8,8],f32>
  return
}
