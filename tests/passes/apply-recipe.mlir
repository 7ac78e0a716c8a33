// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=mxfp8 overrides="lm_head=none layers.0.*=nvfp4"}' | FileCheck %s
// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=fp8-block without-parameters}' | FileCheck %s --check-prefix=ALL
// RUN: not steelyard-opt %s -p 'scaled-apply-recipe{recipe=mxfp8 overrides=encoder.*=none}' 2>&1 | FileCheck %s --check-prefix=UNMATCHED
// RUN: not steelyard-opt %s -p 'scaled-apply-recipe{recipe=mxfp8 overrides=lm_head}' 2>&1 | FileCheck %s --check-prefix=FORM
// RUN: not steelyard-opt %s -p 'scaled-apply-recipe{recipe=mxfp9}' 2>&1 | FileCheck %s --check-prefix=RECIPE
// RUN: not steelyard-opt %s -p 'scaled-apply-recipe{recipe=mxfp8 unmatched=maybe}' 2>&1 | FileCheck %s --check-prefix=CHOICE
// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=mxfp8 overrides="encoder.*=none" unmatched=allow}' | FileCheck %s --check-prefix=ALLOWED
// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=mxfp8}' | FileCheck %s --check-prefix=SENSITIVE
// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=mxfp8 overrides="moe.*=nvfp4 narrow=mxfp8"}' | FileCheck %s --check-prefix=ASKED
// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=nvfp4/none}' | FileCheck %s --check-prefix=WEIGHTS
// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=mxfp4/fp8-row}' | FileCheck %s --check-prefix=MIXED

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
  // WEIGHTS: scaled.matmul fprop %arg0, %arg1 at "layers.0.q" {
  // WEIGHTS-NOT: lhs_scheme
  // WEIGHTS-SAME: rhs_scheme = #nvfp4_16x16
  // MIXED: scaled.matmul fprop %arg0, %arg1 at "layers.0.q" {lhs_scheme = #fp8_row, {{.*}}rhs_scheme = #mxfp4_1x32
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

// A router's three products stay in high precision, whether its scores are ranked as they are or after a softmax.
// SENSITIVE-LABEL: func.func @routers
// ASKED-LABEL: func.func @routers
func.func @routers(%x: !torch.vtensor<[8,64],f32>, %w: !torch.vtensor<[4,64],f32> {scaled.parameter = "moe.gate.weight"}, %v: !torch.vtensor<[4,64],f32> {scaled.parameter = "head.weight"}, %dy: !torch.vtensor<[8,4],f32> {scaled.tangent}) -> (!torch.vtensor<[8,2],si64>, !torch.vtensor<[8],si64>) {
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int-1 = torch.constant.int -1
  %true = torch.constant.bool true
  %false = torch.constant.bool false
  %none = torch.constant.none
  // SENSITIVE: scaled.matmul fprop {{.*}} at "moe.gate" {{.*}}scaled.high_precision = "its result is ranked, like a router's: a small error could change the choice"
  // ASKED: scaled.matmul fprop {{.*}} at "moe.gate" {lhs_scheme = #nvfp4_1x16
  %0 = scaled.matmul fprop %x, %w at "moe.gate" : !torch.vtensor<[8,64],f32>, !torch.vtensor<[4,64],f32> -> !torch.vtensor<[8,4],f32>
  %1 = torch.aten._softmax %0, %int-1, %false : !torch.vtensor<[8,4],f32>, !torch.int, !torch.bool -> !torch.vtensor<[8,4],f32>
  %2 = torch.aten.add.Tensor %1, %dy, %int1 : !torch.vtensor<[8,4],f32>, !torch.vtensor<[8,4],f32>, !torch.int -> !torch.vtensor<[8,4],f32>
  %values, %indices = torch.aten.topk %2, %int2, %int-1, %true, %true : !torch.vtensor<[8,4],f32>, !torch.int, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[8,2],f32>, !torch.vtensor<[8,2],si64>
  // SENSITIVE: scaled.matmul dgrad {{.*}} at "moe.gate" {{.*}}scaled.high_precision = "its result is ranked
  // ASKED: scaled.matmul dgrad {{.*}} at "moe.gate" {lhs_scheme
  %3 = scaled.matmul dgrad %dy, %w at "moe.gate" : !torch.vtensor<[8,4],f32>, !torch.vtensor<[4,64],f32> -> !torch.vtensor<[8,64],f32>
  // SENSITIVE: scaled.matmul wgrad {{.*}} at "moe.gate" {{.*}}scaled.high_precision = "its result is ranked
  // ASKED: scaled.matmul wgrad {{.*}} at "moe.gate" {lhs_scheme
  %4 = scaled.matmul wgrad %dy, %x at "moe.gate" : !torch.vtensor<[8,4],f32>, !torch.vtensor<[8,64],f32> -> !torch.vtensor<[4,64],f32>
  // The class that a classifier returns is no choice within the model.
  // SENSITIVE: scaled.matmul fprop {{.*}} at "head" {lhs_scheme = #mxfp8_1x32
  %5 = scaled.matmul fprop %x, %v at "head" : !torch.vtensor<[8,64],f32>, !torch.vtensor<[4,64],f32> -> !torch.vtensor<[8,4],f32>
  %6 = torch.aten.argmax %5, %int-1, %false : !torch.vtensor<[8,4],f32>, !torch.int, !torch.bool -> !torch.vtensor<[8],si64>
  // One that the model reads is.
  // SENSITIVE: scaled.matmul fprop {{.*}} at "switch" {{.*}}scaled.high_precision = "its result is ranked
  %7 = scaled.matmul fprop %x, %v at "switch" : !torch.vtensor<[8,64],f32>, !torch.vtensor<[4,64],f32> -> !torch.vtensor<[8,4],f32>
  %8 = torch.aten.argmax %7, %int-1, %false : !torch.vtensor<[8,4],f32>, !torch.int, !torch.bool -> !torch.vtensor<[8],si64>
  %9 = torch.aten.add.Scalar %8, %int1, %int1 : !torch.vtensor<[8],si64>, !torch.int, !torch.int -> !torch.vtensor<[8],si64>
  return %indices, %6 : !torch.vtensor<[8,2],si64>, !torch.vtensor<[8],si64>
}

// The weight's shape decides, not the number of tokens: the wgrad reduces over 4 of them, or over 64.
// SENSITIVE-LABEL: func.func @narrow
// ASKED-LABEL: func.func @narrow
func.func @narrow(%x: !torch.vtensor<[64,15],f32>, %w: !torch.vtensor<[32,15],f32> {scaled.parameter = "narrow.weight"}, %dy: !torch.vtensor<[64,32],f32> {scaled.tangent}, %few: !torch.vtensor<[4,16],f32>, %v: !torch.vtensor<[8,16],f32> {scaled.parameter = "wide.weight"}, %dz: !torch.vtensor<[4,8],f32> {scaled.tangent}) {
  // SENSITIVE: scaled.matmul fprop {{.*}} at "narrow" {{.*}}scaled.high_precision = "the layer has 15 in-features, fewer than 16"
  // ASKED: scaled.matmul fprop {{.*}} at "narrow" {lhs_scheme = #mxfp8_1x32
  %0 = scaled.matmul fprop %x, %w at "narrow" : !torch.vtensor<[64,15],f32>, !torch.vtensor<[32,15],f32> -> !torch.vtensor<[64,32],f32>
  // SENSITIVE: scaled.matmul dgrad {{.*}} at "narrow" {{.*}}scaled.high_precision = "the layer has 15 in-features, fewer than 16"
  // ASKED: scaled.matmul dgrad {{.*}} at "narrow" {lhs_scheme
  %1 = scaled.matmul dgrad %dy, %w at "narrow" : !torch.vtensor<[64,32],f32>, !torch.vtensor<[32,15],f32> -> !torch.vtensor<[64,15],f32>
  // SENSITIVE: scaled.matmul wgrad {{.*}} at "narrow" {{.*}}scaled.high_precision = "the layer has 15 in-features, fewer than 16"
  // ASKED: scaled.matmul wgrad {{.*}} at "narrow" {lhs_scheme
  %2 = scaled.matmul wgrad %dy, %x at "narrow" : !torch.vtensor<[64,32],f32>, !torch.vtensor<[64,15],f32> -> !torch.vtensor<[32,15],f32>
  // SENSITIVE: scaled.matmul fprop {{.*}} at "wide" {lhs_scheme
  %3 = scaled.matmul fprop %few, %v at "wide" : !torch.vtensor<[4,16],f32>, !torch.vtensor<[8,16],f32> -> !torch.vtensor<[4,8],f32>
  // SENSITIVE: scaled.matmul dgrad {{.*}} at "wide" {lhs_scheme
  %4 = scaled.matmul dgrad %dz, %v at "wide" : !torch.vtensor<[4,8],f32>, !torch.vtensor<[8,16],f32> -> !torch.vtensor<[4,16],f32>
  // SENSITIVE: scaled.matmul wgrad {{.*}} at "wide" {lhs_scheme
  %5 = scaled.matmul wgrad %dz, %few at "wide" : !torch.vtensor<[4,8],f32>, !torch.vtensor<[4,16],f32> -> !torch.vtensor<[8,16],f32>
  return
}

// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=nvfp4 attention}' | FileCheck %s --check-prefix=ATTENTION
// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=nvfp4}' | FileCheck %s --check-prefix=PLAIN
// A gradient on either side of a batched product is quantized as one, the rest as inputs, and nothing is transformed.
// ATTENTION-LABEL: func.func @attention
// PLAIN-LABEL: func.func @attention
func.func @attention(%q: !torch.vtensor<[6,17,40],f32>, %k: !torch.vtensor<[6,?,40],f32>, %dy: !torch.vtensor<[6,17,?],f32> {scaled.tangent}, %kt: !torch.vtensor<[6,40,?],f32>) {
  // ATTENTION: scaled.matmul fprop %arg0, %arg1 batch_dims(1) {lhs_scheme = #nvfp4_1x16, rhs_scheme = #nvfp4_1x16}
  // PLAIN: scaled.matmul fprop {{.*}}scaled.high_precision = "a batched product, such as those of attention"
  %0 = scaled.matmul fprop %q, %k batch_dims(1) : !torch.vtensor<[6,17,40],f32>, !torch.vtensor<[6,?,40],f32> -> !torch.vtensor<[6,17,?],f32>
  // ATTENTION: scaled.matmul fprop %arg2, %arg3 batch_dims(1) {lhs_scheme = #nvfp4_1x16_stochastic, rhs_scheme = #nvfp4_1x16}
  %1 = scaled.matmul fprop %dy, %kt batch_dims(1) : !torch.vtensor<[6,17,?],f32>, !torch.vtensor<[6,40,?],f32> -> !torch.vtensor<[6,17,40],f32>
  // ATTENTION: scaled.matmul fprop %arg3, %arg2 batch_dims(1) {lhs_scheme = #nvfp4_1x16, rhs_scheme = #nvfp4_1x16_stochastic}
  %2 = scaled.matmul fprop %kt, %dy batch_dims(1) : !torch.vtensor<[6,40,?],f32>, !torch.vtensor<[6,17,?],f32> -> !torch.vtensor<[6,40,17],f32>
  // ATTENTION: scaled.matmul fprop {{.*}}scaled.high_precision = "a batched product of two gradients"
  %3 = scaled.matmul fprop %dy, %dy batch_dims(1) : !torch.vtensor<[6,17,?],f32>, !torch.vtensor<[6,17,?],f32> -> !torch.vtensor<[6,17,17],f32>
  return
}
