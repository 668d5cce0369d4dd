"""Simulated clusters to run, demonstrate and test the scheduler.

The embedded API server, the controllers and the kubelet of this package replace a control plane and its nodes.
The suite in ``tests/contract`` checks their behaviour, and runs against a real API server too.

Imported by: `cli`.
"""
