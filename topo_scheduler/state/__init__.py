"""The scheduler's state: nodes as arrays, the fabric as ranges, workloads, the ledger, and the Decision."""
