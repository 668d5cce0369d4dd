"""What the scheduler believes: nodes as arrays, the fabric as ranges, workloads, the ledger, and the Decision."""
