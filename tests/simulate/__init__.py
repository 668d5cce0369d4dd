"""Workloads in virtual time: what must hold of any run, and what was published of some."""
