"""Rounds in which gangs are left partially bound on a real API server, with a checker of the API's objects alone."""
