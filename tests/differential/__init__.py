"""Our filters beside kube-scheduler's own: random and hand-written snapshots, the same answer for every pair."""
