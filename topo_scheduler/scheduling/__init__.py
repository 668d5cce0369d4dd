"""The scheduling decision, as pure code: no I/O, the time is an argument, and equal inputs give equal Decisions.

`engine` is the state machine and `world` its view of the cluster. `attempts` tries to place one workload.
`instructions` lists what the engine can ask the daemon to do. `scheduler_view` is what recovery may read and change of
an engine. The packages, in the order in which a pod passes them:

- `intake`: turns pods and their owners into workloads;
- `queueing`: orders the workloads;
- `rules`: filters the nodes of a pod;
- `placing`: plans the placement of a workload;
- `binding`: turns a decision into bound pods;
- `preemption`, `reserving`, `moving`: make room for workloads that do not fit;
- `explaining`, `surveying`: report on workloads and on the fabric;
- `extensions`: the interface of plugins, and the built-in plugin.

Imported by: `cli`, `daemon`, `plugins`, `recording`, `recovery`, `runtime`, `simulation`.
"""
