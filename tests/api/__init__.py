"""What users write, and what is made of it."""
