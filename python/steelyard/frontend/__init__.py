"""From an `nn.Module` to MLIR: capture through torch.compile's machinery, and the import of its graphs."""
