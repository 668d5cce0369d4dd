"""Leader election by a Lease.

Imported by: `daemon`.
"""
