"""What every pod holds, assumed or confirmed, and the usage of each namespace.

Imported by: `recovery`, `scheduling`.
"""
