"""Measurements: decisions in core, races against kube-scheduler on a real API server, memory and traffic.

``python -m tests.bench [core] [plain] [gangs] [load] [--out FILE]`` prints JSON. Nothing here is a
test: numbers are told as they were measured.
"""
