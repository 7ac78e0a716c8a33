"""No classes for the ops of `jax`, which are JAX's primitives: the bindings look for them here, and would look again
for each op."""
