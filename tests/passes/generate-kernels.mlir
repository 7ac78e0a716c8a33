// RUN: steelyard-opt %s -p 'scaled-generate-kernels{target=cuda:sm_90a}' --split-input-file | FileCheck %s
// RUN: steelyard-opt %s -p 'scaled-generate-kernels{target=cuda:sm_90a},gpu.module(convert-scf-to-cf,convert-gpu-to-nvvm,reconcile-unrealized-casts)' --split-input-file | FileCheck %s --check-prefix=NVVM
// RUN: not steelyard-opt %s -p 'scaled-generate-kernels{target=cuda:sm_75}' --split-input-file 2>&1 | FileCheck %s --check-prefix=TARGET

// TARGET: a CUDA target must be one of sm_89, sm_90a, sm_100a, sm_103a, sm_120a, sm_121a, got 'sm_75'

module @quantize_0_launches attributes {scaled.plan = @quantize_0} {
  scaled.launch @amax_bf16("source", 64, 32, 64, "out.row.amax") blocks(1)
  scaled.launch @amax_bf16("source", 64, 32, 64, "out.row.amax") blocks(1)
}

// A kernel that launches name is written once: this one has five parameters, and 128 threads.
// CHECK: gpu.module @amax_bf16
// CHECK: gpu.func @amax_bf16(%{{.*}}: !llvm.ptr<1>, %{{.*}}: i64, %{{.*}}: i32, %{{.*}}: i32, %{{.*}}: !llvm.ptr<1>) kernel attributes {known_block_size = array<i32: 128, 1, 1>}
// NVVM: llvm.func @amax_bf16
// NVVM-NOT: gpu.func
gpu.module @amax_bf16 attributes {scaled.code = {kernel = "amax", source = {dtype = "bf16"}}} {
}

// One that no launch names is left alone.
// CHECK-NOT: gpu.func
// CHECK: gpu.module @amax_f32
// CHECK-NEXT: }
gpu.module @amax_f32 attributes {scaled.code = {kernel = "amax", source = {dtype = "f32"}}} {
}
