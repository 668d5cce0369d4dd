"""From a decision to bound pods: binds in flight, refusals, and other schedulers that bind pods."""
