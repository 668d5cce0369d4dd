"""The only package that talks to the API server.

The package keeps three promises. Every await on the network has a timeout. Every failure of the server (dropped
connection, 410, 429, 500, truncated JSON) becomes an error of `connection.errors`, handled where the code can react.
The package builds no model object of a client library.

`connection` sends requests. `reading` watches kinds and follows the owners of a pod to its workload. `writing` places
and removes pods and reports to users. `leading` elects the leader.

Imported by: `cli`, `daemon`, `recording`, `recovery`, `runtime`, `simulation`.
"""
