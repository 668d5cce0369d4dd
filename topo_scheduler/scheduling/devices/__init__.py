"""Which GPUs of a node a pod should get.

Imported by: nothing yet but tests.
"""
