"""Tests, one folder a concern."""
