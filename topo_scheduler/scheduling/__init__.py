"""The decision: understand, filter, size rule, score, select, queue, explain.

Pure: no I/O, the time is an argument, and the same input gives the same Decision.
"""
