"""What is told of runs: figures, one table, and files."""
