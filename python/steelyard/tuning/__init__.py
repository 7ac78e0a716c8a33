"""Low precision that keeps a trained model: formats per layer, weights that compensate, distillation."""
