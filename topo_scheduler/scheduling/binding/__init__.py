"""From a decision to bound pods: what is on its way, what was refused, and others who bind."""
