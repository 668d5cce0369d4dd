"""Who gives way to whom: victims, the plan, and the machine that carries it out."""
