"""The fabric for commands and metrics: domains, links, fragmentation, pending pods.

Imported by: `cli`, `daemon`.
"""
