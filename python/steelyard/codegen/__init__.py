"""The kernels: MLIR built from small parts, which are composed by a scheme."""
