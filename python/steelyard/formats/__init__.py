"""What all other packages share: schemes, the tensors that a quantized copy stores, and the GEMMs of a layer.

Plain data: only `copies` and `checks`, which hold tensors, import torch. Nothing here imports MLIR.
"""
