"""The parts of passes that are too long for the pass's own file."""
