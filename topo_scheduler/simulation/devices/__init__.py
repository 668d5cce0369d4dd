"""Choosers of GPUs and of MIG slots to compare with, and the replay of a simulation on the GPUs of its nodes.

Imported by: `cli`, `simulation`.
"""
