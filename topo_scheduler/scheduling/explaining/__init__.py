"""Reasons why a workload is pending, and the cheapest changes that would help.

Imported by: `cli`, `scheduling`.
"""
