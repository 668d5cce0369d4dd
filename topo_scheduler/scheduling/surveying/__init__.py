"""The fabric as people and metrics see it."""
