"""What the scheduler believes, against what it was told."""
