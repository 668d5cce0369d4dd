"""A day of a cluster's life with hostile pods among the others, in virtual time, and what must hold at every moment."""
