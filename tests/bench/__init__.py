"""Measurements: decisions in core, races on API servers, memory and traffic; and whether they became worse.

``python -m tests.bench [PART...]`` keeps what was measured as JSON, ``--docs`` writes the page of it: as it was
measured. ``python -m tests.bench.check`` compares ratios of it with a baseline.
"""
