"""When nodes fail: detection, the migration that heals, and its execution.

`machine` is what the daemon talks to. It, `detection`, `seating` and `migrations` do no I/O: facts in, instructions
out, the time as an argument. `handlers` is kopf in a thread of its own, which only translates; `runner` carries out.

Moves though nothing failed begin in `defragmenting`, `blocks` and `improving`; `by_choice` tries them on a copy of the
state, and `choosing` ends them when they are of no use.
"""
