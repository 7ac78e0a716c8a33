"""What every other room agrees on: schemes, the tensors that a quantized copy stores, and the GEMMs of a layer.

Plain data: importing these modules imports neither torch nor MLIR, but for `copies` and `checks`, which hold tensors.
"""
