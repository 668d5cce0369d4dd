"""Extension points, and the built-in plugin, which is written the way plugins of users are.

Imported by: `daemon`, `plugins`, `recording`, `recovery`, `runtime`, `scheduling`, `simulation`.
"""
