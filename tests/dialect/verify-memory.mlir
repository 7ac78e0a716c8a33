// RUN: steelyard-opt %s --split-input-file --verify-diagnostics

// The constraints of scaled.free.

// free_c1
func.func @f(%size: i64) {
  // expected-error @+1 {{value must be a ranked tensor or a !scaled.tensor, got i64 [free_c1]}}
  scaled.free %size : i64
  return
}
