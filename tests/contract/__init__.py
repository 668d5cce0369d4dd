"""One suite for two API servers: the embedded one is trusted because what passes here on a real one passes on it.

Every test speaks plain HTTP and looks only at what the answer says. Where the oldest supported version behaves
differently the test states both behaviours.
"""
