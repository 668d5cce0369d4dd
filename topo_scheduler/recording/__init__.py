"""What happened: heard at the engine, recorded, replayed, and written down for auditors."""
