"""The language check: phrases to avoid, long sentences and long pages, in everything that a person reads."""
