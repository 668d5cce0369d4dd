"""FGD's protocol (ATC 2023) through the planner: shuffled arrivals until 130 % of the GPUs are asked, nobody leaves."""
