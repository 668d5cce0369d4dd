"""What operators see of a running daemon: metrics."""
