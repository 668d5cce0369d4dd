"""The package that talks to the API server, tested against an embedded one whose time stands still."""
