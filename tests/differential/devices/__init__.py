"""Our device allocator beside kube-scheduler's own: random claims, the same feasibility, and only legal allocations."""
