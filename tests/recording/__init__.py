"""Record, replay, and the audit log."""
