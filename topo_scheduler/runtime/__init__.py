"""One term of the daemon: facts to the engine, instructions to the API server, and what lasts across terms.

Imported by: `cli`, `daemon`.
"""
