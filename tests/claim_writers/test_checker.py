"""The checker finds a device that two claims have, a pod without devices, and a claim that stays taken."""

from itertools import count

from tests.claim_writers.checker import FINALIZER, Checker
from tests.e2e.api import Json

revisions = count(1)


def claim(name: str, *devices: str, pod: str = "", node: str = "n1", finalizers: tuple[str, ...] = ()) -> Json:
    results = [{"driver": "d", "pool": node, "device": device} for device in devices]
    status: Json = {"allocation": {"devices": {"results": results}}} if devices else {}
    if pod:
        status["reservedFor"] = [{"uid": f"uid-{pod}"}]
    return {"metadata": {**metadata(name), "finalizers": list(finalizers)}, "status": status}


def pod(name: str, node: str = "n1") -> Json:
    return {"metadata": metadata(name), "spec": {"nodeName": node, "schedulerName": "s"}}


def metadata(name: str) -> Json:
    """Each is of a later revision than the one before."""
    return {"name": name, "uid": f"uid-{name}", "resourceVersion": str(next(revisions))}


def test_a_device_given_on_after_it_was_given_back_is_no_double() -> None:
    checker = Checker()
    checker.claim("ADDED", claim("a", "gpu-0"))
    checker.claim("MODIFIED", claim("a"))
    checker.claim("ADDED", claim("b", "gpu-0"))
    checker.claim("DELETED", claim("b"))
    checker.claim("ADDED", claim("c", "gpu-0", node="n1"))
    assert not checker.doubles
    assert checker.allocations == 3


def test_a_device_that_two_claims_have_at_once_is_a_double_and_ends_when_one_gives_it_back() -> None:
    checker = Checker()
    checker.claim("ADDED", claim("a", "gpu-0", pod="p"))
    checker.pod("ADDED", pod("p"))
    checker.claim("ADDED", claim("b", "gpu-0", "gpu-1", pod="q"))
    (double,) = checker.doubles
    assert double.device == ("d", "n1", "gpu-0") and double.claims == ("uid-a", "uid-b") and not double.ended
    checker.claim("MODIFIED", claim("b"))
    assert double.ended and not double.run


def test_a_double_with_both_pods_bound_ran() -> None:
    checker = Checker()
    for name, of in (("a", "p"), ("b", "q")):
        checker.claim("ADDED", claim(name, "gpu-0", pod=of))
        checker.pod("ADDED", pod(of))
    checker.claim("DELETED", claim("b"))
    assert checker.doubles[0].run


def test_a_bound_pod_needs_devices_of_its_node() -> None:
    checker = Checker()
    checker.claim("ADDED", claim("a", "gpu-0", pod="good"))
    checker.claim("ADDED", claim("b", "gpu-0", pod="elsewhere", node="n2"))
    checker.claim("ADDED", claim("c", "gpu-1", pod="moved", node="n2"))
    checker.claim("MODIFIED", claim("c", "gpu-1", pod="moved"))
    for name in ("moved", "good", "elsewhere", "none"):
        checker.pod("ADDED", pod(name))
    assert checker.without_devices() == ["elsewhere on n1: [['n2']]", "none on n1: []"]


def test_what_became_of_the_claim_after_the_bind_is_not_held_against_it() -> None:
    checker = Checker()
    checker.claim("ADDED", claim("a", "gpu-0", pod="p"))
    bound = pod("p")
    checker.claim("MODIFIED", claim("a", "gpu-0", pod="p", node="n2"))
    checker.pod("MODIFIED", bound)
    assert not checker.without_devices()


def test_a_claim_that_is_reserved_only_after_the_bind_comes_too_late() -> None:
    checker = Checker()
    checker.claim("ADDED", claim("a", "gpu-0"))
    checker.pod("MODIFIED", pod("p"))
    checker.claim("MODIFIED", claim("a", "gpu-0", pod="p"))
    assert checker.without_devices() == ["p on n1: [[]]"]


def test_a_claim_that_stays_allocated_or_protected_is_leaked() -> None:
    checker = Checker()
    checker.claim("ADDED", claim("allocated", "gpu-0"))
    checker.claim("ADDED", claim("protected", finalizers=(FINALIZER,)))
    checker.claim("ADDED", claim("free"))
    assert checker.leaked() == ["allocated", "protected"]
