"""A cluster full of gangs that is broken on purpose, and what is seen of its healing from outside."""
