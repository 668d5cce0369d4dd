"""The last moment before an eviction leaves."""
