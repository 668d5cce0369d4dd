"""What is compared: this scheduler, and baselines that place on its very queue, rules and accounts."""
