"""FGD's protocol (ATC 2023) through the planner: shuffled arrivals up to 130 % of the GPUs, and no pod ends."""
