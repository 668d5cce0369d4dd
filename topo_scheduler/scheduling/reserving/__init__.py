"""Nodes held for workloads that wait for much room, and who may use them meanwhile."""
