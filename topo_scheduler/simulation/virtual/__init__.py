"""A workload on a cluster in virtual time: the scheduling core of the daemon, and a clock that jumps."""
