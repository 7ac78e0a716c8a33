// RUN: steelyard-opt %s --split-input-file --verify-diagnostics

// The constraints of scaled.call_block.

// call_block_c1
module @block {
}
func.func @f() {
  // expected-error @+1 {{the call must stand in a module, got one in func.func [call_block_c1] (layer 'blocks.1')}}
  scaled.call_block @block at "blocks.1"
  return
}

// -----

// call_block_c2
module @block {
}
// expected-error @+1 {{there must be a module @blocks beside the call, got none [call_block_c2] (layer 'blocks.1')}}
scaled.call_block @blocks at "blocks.1"

// -----

// A function is no module.
func.func @block() {
  return
}
// expected-error @+1 {{there must be a module @block beside the call, got none [call_block_c2]}}
scaled.call_block @block

// -----

// Nor is a module that stands elsewhere.
module @outer {
  module @block {
  }
  scaled.call_block @block at "blocks.0"
}
// expected-error @+1 {{there must be a module @block beside the call, got none [call_block_c2] (layer 'blocks.1')}}
scaled.call_block @block at "blocks.1"

// -----

// expected-error @+1 {{requires attribute 'callee' [call_block_c0]}}
"scaled.call_block"() {layer = "blocks.0"} : () -> ()

// -----

module @block {
}
// expected-error @+1 {{attribute 'callee' must be a FlatSymbolRefAttr, got @block::@forward [call_block_c0]}}
"scaled.call_block"() {callee = @block::@forward, layer = "blocks.0"} : () -> ()
