"""From FX graphs to MLIR."""
