"""Choosers of GPUs and of MIG slots to compare with, and streams of pods that show what each leaves.

Imported by: `cli`, `simulation`.
"""
