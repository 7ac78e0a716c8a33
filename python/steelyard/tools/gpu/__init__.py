"""What `steelyard verify-gpu` checks and measures on a GPU, and how it reports."""
