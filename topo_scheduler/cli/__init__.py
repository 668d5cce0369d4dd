"""The command line: one module for each command, imported only when the command is called.

Imported by: `__main__`.
"""
