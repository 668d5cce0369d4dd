"""Where a workload goes: the size rule, the score, the nodes; and the last look before it is assumed."""
