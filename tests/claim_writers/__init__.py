"""Thousands of claims from many writers, with faults: no device twice, none leaked."""
