// RUN: not steelyard-opt %s --split-input-file --verify-diagnostics 2>&1 | FileCheck %s
// RUN: not steelyard-opt %s --split-input-file 2>&1 | FileCheck %s --check-prefix=PLAIN

// An expectation that nothing meets, an error that nobody expects, and an error on another line are failures.

// CHECK: opt-verify-diagnostics.mlir:{{[0-9]+}}:1: error: expected error "no such thing" was not produced
// expected-error @+1 {{no such thing}}
func.func @fine() { return }

// -----

// CHECK: error: unexpected error: 'scaled.advance_rng' op rng must be a tensor of two 64-bit integers, got i64
// PLAIN: opt-verify-diagnostics.mlir:18:8: error: 'scaled.advance_rng' op rng must be a tensor
// PLAIN-NEXT: %0 = scaled.advance_rng
// PLAIN-NEXT: ^
func.func @unexpected(%rng: i64) {

  %0 = scaled.advance_rng %rng : i64 -> i64
  return
}

// -----

func.func @wrong_line(%rng: i64) {
  // CHECK: unexpected error
  // CHECK: was not produced
  // expected-error @+2 {{rng must be a tensor}}
  %0 = scaled.advance_rng %rng : i64 -> i64
  return
}

// -----

// CHECK-NOT: {{[0-9]+:[0-9]+}}: error
func.func @right(%rng: i64) {
  // expected-error @below {{rng must be a tensor}}
  %0 = scaled.advance_rng %rng : i64 -> i64
  return
}
