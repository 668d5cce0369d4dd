"""Replicas as processes of their own on a real control plane: stopped, killed, cut off, and what they write then."""
