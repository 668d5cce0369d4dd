"""From a decision to bound pods: binds in flight, refusals, partially bound gangs, and other schedulers.

Imported by: `recovery`, `scheduling`.
"""
