"""Whole daemons broken in all ways there are, over the embedded server, in virtual time.

Real are the daemon with its term, its reflectors, its writers, its engine and its recovery, the Lease; and the store,
the handlers, the watches, the faults and the controllers and kubelets of the embedded server. In the place of sockets
stands `wire`, in the place of kopf's thread `watcher`, in the place of the system's clocks `loop`.
"""
