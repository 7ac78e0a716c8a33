"""How passes are registered, spelled in text and run."""
