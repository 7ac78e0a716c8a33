// RUN: steelyard-opt %s -p 'steelyard-raised' | FileCheck %s --check-prefixes=CHECK,RAISED
// RUN: steelyard-opt %s -p 'steelyard-raised,steelyard-quantized{overrides="head=nvfp4"}' | FileCheck %s --check-prefixes=CHECK,QUANTIZED
// RUN: steelyard-opt %s -p 'steelyard-raised,steelyard-quantized,steelyard-fused' | FileCheck %s --check-prefixes=CHECK,FUSED
// RUN: steelyard-opt %s -p 'steelyard-raised,steelyard-quantized{recipe=fp8-delayed},steelyard-fused,steelyard-partitioned' | FileCheck %s --check-prefixes=CHECK,PARTITIONED
// RUN: steelyard-opt %s -p 'steelyard-raised,steelyard-quantized,steelyard-fused,steelyard-partitioned,steelyard-lowered' | FileCheck %s --check-prefixes=CHECK,LOWERED
// RUN: steelyard-opt %s -p 'steelyard-raised,steelyard-quantized,steelyard-fused,steelyard-partitioned,steelyard-lowered{target=cuda:sm_90a}' | FileCheck %s --check-prefixes=CHECK,CUDA
// RUN: not steelyard-opt %s -p 'steelyard-raised,steelyard-quantized{overrides="blocks.0.down=nvfp4"}' 2>&1 | FileCheck %s --check-prefix=UNMATCHED
// RUN: not steelyard-opt %s -p 'scaled-verify-stage{stage=raised},scaled-verify-stage{stage=nonsense}' 2>&1 | FileCheck %s --check-prefix=NONSENSE

// A net whose layers share code: passes work on the functions of each module, and leave the calls alone.

// UNMATCHED: override pattern 'blocks.0.down' matches no layer
// NONSENSE: stage must be one of

// CHECK: module @graph0 {
// PARTITIONED: func.func private @weight_0(%arg0: {{.*}}scaled.parameter = "blocks.0.up.weight"{{.*}}scaled.state = "blocks.0.up.weight.scale"
// RAISED: scaled.matmul fprop %arg0, %arg1 {{.*}}at "blocks.0.up"
// QUANTIZED: scaled.quantize input %arg0 : {{.*}} -> !scaled.tensor<8x64xf32, #mxfp8_1x32>
// QUANTIZED: scaled.gemm fprop {{.*}} at "blocks.0.up"
// FUSED: scaled.gemm fprop {{.*}} epilogue(relu) at "blocks.0.up"
// LOWERED-DAG: func.func private @gemm_0({{.*}}scaled.device = "cpu"
// LOWERED-DAG: func.func private @weight_0
// CUDA-DAG: scaled.device = "cuda"
// CUDA-DAG: func.func private @weight_0
// CHECK: module @graph1 {
// RAISED: scaled.matmul fprop %arg0, %arg1 at "head"
// QUANTIZED: scaled.quantize input %arg0 : {{.*}} -> !scaled.tensor<8x64xf32, #nvfp4_1x16>
// FUSED: scaled.gemm fprop {{.*}} at "head"
// PARTITIONED: scaled.state = "head.input.scale"
// LOWERED: call @gemm_0
// CHECK: {{^}}  scaled.call_block @graph0 at "blocks.0"{{$}}
// CHECK-NEXT: {{^}}  scaled.call_block @graph0 at "blocks.1"{{$}}
// CHECK-NEXT: {{^}}  scaled.call_block @graph1 at "head"{{$}}
// CHECK-NEXT: {{^}}}{{$}}
module {
  module @graph0 {
    func.func @forward(%x: !torch.vtensor<[8,64],f32>, %w: !torch.vtensor<[64,64],f32> {scaled.parameter = "blocks.0.up.weight"}, %b: !torch.vtensor<[64],f32> {scaled.parameter = "blocks.0.up.bias"}) -> !torch.vtensor<[8,64],f32> {
      %y = torch.aten.linear %x, %w, %b : !torch.vtensor<[8,64],f32>, !torch.vtensor<[64,64],f32>, !torch.vtensor<[64],f32> -> !torch.vtensor<[8,64],f32> loc("blocks.0.up")
      %z = torch.aten.relu %y : !torch.vtensor<[8,64],f32> -> !torch.vtensor<[8,64],f32> loc("blocks.0")
      return %z : !torch.vtensor<[8,64],f32>
    }
  }
  module @graph1 {
    func.func @forward(%x: !torch.vtensor<[8,64],f32>, %w: !torch.vtensor<[32,64],f32> {scaled.parameter = "head.weight"}) -> !torch.vtensor<[8,32],f32> {
      %none = torch.constant.none
      %y = torch.aten.linear %x, %w, %none : !torch.vtensor<[8,64],f32>, !torch.vtensor<[32,64],f32>, !torch.none -> !torch.vtensor<[8,32],f32> loc("head")
      return %y : !torch.vtensor<[8,32],f32>
    }
  }
  scaled.call_block @graph0 at "blocks.0"
  scaled.call_block @graph0 at "blocks.1"
  scaled.call_block @graph1 at "head"
}
