"""Published checkpoints: load them, run them, save them."""
