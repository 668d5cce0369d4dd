"""The only package that talks to the API server.

What always holds here: every await on the network has a timeout; what the server may do to us (drop a
connection, answer 410, 429, 500, half a line of JSON) ends in one of the errors of ``errors`` and is dealt
with where it can be dealt with; no model object of a client library is ever built.

``client`` sends and receives, ``resources`` names the kinds, ``decoding`` turns bytes into structs,
``reflector`` keeps up with a kind, ``owners`` climbs from a pod to its workload, ``binder`` and ``evictions``
place and remove pods, ``events`` and ``conditions`` tell people, ``lease`` decides who may.
"""
