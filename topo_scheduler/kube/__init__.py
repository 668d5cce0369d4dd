"""The only package that talks to the API server.

The package keeps three promises. Every await on the network has a timeout. Every failure of the server (dropped
connection, 410, 429, 500, truncated JSON) becomes an error of ``errors``, handled where the code can react. The
package builds no model object of a client library.

``client`` sends and receives, ``resources`` names the kinds, and ``decoding`` turns bytes into structs.
``reflector`` follows a kind, and ``owners`` climbs from a pod to its workload. ``binder`` and ``evictions`` place
and remove pods. ``events`` and ``conditions`` report to users, and ``lease`` elects the leader.
"""
