"""Every kernel beside a slow and obvious way to get the same answer."""
