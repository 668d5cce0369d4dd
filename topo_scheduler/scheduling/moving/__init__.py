"""The fewest pods whose move makes room for a workload."""
