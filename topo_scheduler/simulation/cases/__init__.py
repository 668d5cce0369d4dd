"""What is simulated: a cluster, and the workloads that arrive at it, whatever they were read from."""
