"""GPUs of a node: readers of hardware files, and the choice of GPUs."""
