"""Preemption: the choice of victims, the preemption plan, and the state machine that carries it out.

Imported by: `recovery`, `scheduling`.
"""
