"""Where a pod may go: the filters of Kubernetes, and what a pod would like of its node."""
