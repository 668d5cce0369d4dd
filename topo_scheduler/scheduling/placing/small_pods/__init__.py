"""Scores for single pods, from typical pods and the prices of GPU shares.

Imported by: `scheduling`.
"""
