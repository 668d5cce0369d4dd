"""From what the API server says of pods to workloads: who belongs together, and what is wanted."""
