"""Rounds in which gangs are left half bound on a real API server, with a checker that reads only the API's objects."""
