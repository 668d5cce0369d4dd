"""Results of runs: figures, comparison tables, and files."""
