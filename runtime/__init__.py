"""Executes lowered programs: `cpu` holds the native kernels."""
