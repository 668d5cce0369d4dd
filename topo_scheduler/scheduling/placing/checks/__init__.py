"""Validation of a placement before it is assumed, and the limits of links.

Imported by: `scheduling`.
"""
