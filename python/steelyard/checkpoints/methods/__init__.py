"""How each publisher writes checkpoints: one module per format, each with a function from a catalog to a plan."""
