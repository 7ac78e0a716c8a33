"""No classes for the ops of `stablehlo`: the bindings look for them here, and would look again for each op."""
