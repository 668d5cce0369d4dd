"""The daemon end to end: the same tests on the embedded API server and on a real control plane."""
