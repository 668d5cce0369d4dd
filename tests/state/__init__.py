"""What the scheduler believes, against what the watch reported."""
