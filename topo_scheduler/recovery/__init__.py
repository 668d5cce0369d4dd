"""Node failures: detection, the Migrations that heal, and their execution.

The daemon talks to `machine`. It, `detection`, `seating` and `migrations` do no I/O: changes in, instructions out, the
time as an argument. `handlers` runs kopf in a thread of its own and only translates. `runner` executes instructions.

Voluntary moves begin in `defragmenting`, `blocks` and `improving`. `by_choice` tries them on a copy of the state, and
`choosing` ends them when they are useless.
"""
