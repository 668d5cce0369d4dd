"""Recovery: what must hold when nodes fail, whenever the daemon is killed."""
