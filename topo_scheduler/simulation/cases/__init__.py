"""Simulation input: a cluster and the workloads that arrive there, read from any supported source.

Imported by: `cli`, `simulation`.
"""
