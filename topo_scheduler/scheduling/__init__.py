"""The decision. Pure: no I/O, the time is an argument, and the same input gives the same Decision.

`engine` is the machine, `world` what it believes of the cluster, `attempts` one try to place a workload,
`instructions` what it wants done. The rooms, in the order in which a pod passes them:

- `intake`: from pods and their owners to workloads;
- `queueing`: whose turn it is;
- `rules`: where a pod may go;
- `placing`: where a workload goes;
- `binding`: from a decision to bound pods;
- `preemption`, `reserving`, `moving`: how room is made for who has none;
- `explaining`, `surveying`: what people are told of workloads, and of the fabric;
- `extensions`: what plugins are made of, the built-in one included.
"""
