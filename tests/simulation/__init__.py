"""What only the embedded cluster has: its controllers, its kubelet, and faults on demand."""
