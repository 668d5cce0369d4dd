"""Nodes and their resources as arrays: one row for each node.

Imported by: `cli`, `daemon`, `plugins`, `recovery`, `scheduling`, `simulation`, `state.ledger`, `state.pods`,
`state.statistics`, `state.storage`, `state.topology`.
"""
