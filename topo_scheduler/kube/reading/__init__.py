"""Lists and watches as streams of typed objects, and the owners of pods.

Imported by: `cli`, `daemon`, `recording`, `recovery`, `runtime`, `simulation`.
"""
