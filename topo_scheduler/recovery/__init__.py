"""Node failures: detection, the Migrations that heal, and their execution.

`controller` talks to the daemon and runs kopf in a thread of its own. The other packages do no I/O: changes in,
instructions out, the time as an argument. `detection` finds failed nodes, `planning` finds seats for their pods,
`optimisation` plans voluntary moves, and `core` is the state machine over all of them. `model` has their values.

Imported by: `cli`, `runtime`.
"""
