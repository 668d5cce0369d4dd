"""A cluster without a cluster: what the scheduler needs around it to be run, shown and tested.

The embedded API server, the controllers and the kubelet of this package stand in for a control plane.
They are trusted only as far as the suite in ``tests/contract`` passes on a real API server too.
"""
