"""Nine attacks by one tenant at once on a real API server, and what pods of another namespace notice of them."""
