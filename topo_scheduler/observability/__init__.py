"""What an operator sees: metrics, logs, health."""
