"""From a decision to bound pods: binds in flight, refusals, half-bound gangs, and other schedulers.

Imported by: `recovery`, `scheduling`.
"""
