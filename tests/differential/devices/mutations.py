"""Faults to put into allocations, or into the case below them: after each of them the allocations are illegal."""

import copy
import random
from collections.abc import Callable
from typing import Final

from tests.differential.choices import Json

from .generator import Case

Mutation = Callable[[random.Random, Case, list[Json]], bool]
"""Changes a case and its allocations in place; returns whether there was something to change."""

UNTOLERATED: Final = {"key": "example.com/untolerated", "effect": "NoSchedule"}


def mutated(
    rng: random.Random, mutation: Mutation, case: Case, allocations: list[Json]
) -> tuple[Case, list[Json]] | None:
    """The case and its allocations with one fault; None if the fault needs something that is not there."""
    changed_case, changed = copy.deepcopy((case, allocations))
    return (changed_case, changed) if mutation(rng, changed_case, changed) else None


def _result(rng: random.Random, allocations: list[Json], field: str | None = None) -> Json | None:
    """A random result, one that has a field if it is named."""
    results = [
        result
        for allocation in allocations
        for result in allocation["devices"].get("results", ())
        if field is None or result.get(field)
    ]
    return rng.choice(results) if results else None


def _with_results(rng: random.Random, allocations: list[Json]) -> Json | None:
    with_results = [allocation for allocation in allocations if allocation["devices"].get("results")]
    return rng.choice(with_results) if with_results else None


def _device(case: Case, result: Json) -> Json:
    """The device of a result, in the slice of the newest generation."""
    slices = [each["spec"] for each in case["slices"]]
    slices = [spec for spec in slices if spec["driver"] == result["driver"] and spec["pool"]["name"] == result["pool"]]
    newest = max(spec["pool"]["generation"] for spec in slices)
    devices = [
        each
        for spec in slices
        if spec["pool"]["generation"] == newest
        for each in spec.get("devices", ())
        if each["name"] == result["device"]
    ]
    device: Json = devices[0]
    return device


def _in_use(case: Case, result: Json) -> bool:
    """Whether the device of a result was allocated before."""
    results = [each for claim in case["allocated"] for each in claim["status"]["allocation"]["devices"]["results"]]
    return any(all(each[key] == result[key] for key in ("driver", "pool", "device")) for each in results)


def _drop_result(rng: random.Random, case: Case, allocations: list[Json]) -> bool:
    allocation = _with_results(rng, allocations)
    if allocation is None:
        return False
    results = allocation["devices"]["results"]
    results.pop(rng.randrange(len(results)))
    return True


def _repeat_result(rng: random.Random, case: Case, allocations: list[Json]) -> bool:
    allocation = _with_results(rng, allocations)
    if allocation is None:
        return False
    results = allocation["devices"]["results"]
    results.append(copy.deepcopy(rng.choice(results)))
    return True


def _drop_allocation(rng: random.Random, case: Case, allocations: list[Json]) -> bool:
    if allocations:
        allocations.pop()
    return bool(case["claims"])


def _change(field: str, value: object) -> Mutation:
    """Give a field of a result another value."""

    def mutation(rng: random.Random, case: Case, allocations: list[Json]) -> bool:
        result = _result(rng, allocations)
        if result is not None:
            result[field] = value
        return result is not None

    return mutation


def _drop(field: str) -> Mutation:
    """Take a field away from a result that has it."""

    def mutation(rng: random.Random, case: Case, allocations: list[Json]) -> bool:
        result = _result(rng, allocations, field)
        if result is not None:
            del result[field]
        return result is not None

    return mutation


def _toggle_admin(rng: random.Random, case: Case, allocations: list[Json]) -> bool:
    result = _result(rng, allocations)
    if result is not None:
        result["adminAccess"] = not result.get("adminAccess")
    return result is not None


def _consume_more(rng: random.Random, case: Case, allocations: list[Json]) -> bool:
    result = _result(rng, allocations, "consumedCapacity")
    if result is None:
        return False
    name = rng.choice(list(result["consumedCapacity"]))
    result["consumedCapacity"][name] = "123456789"
    return True


def _other_node(rng: random.Random, case: Case, allocations: list[Json]) -> bool:
    allocation = _with_results(rng, allocations)
    if allocation is None:
        return False
    name = {"key": "metadata.name", "operator": "In", "values": ["somewhere"]}
    allocation["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [name]}]}
    return True


def _everywhere(rng: random.Random, case: Case, allocations: list[Json]) -> bool:
    selective = [allocation for allocation in allocations if allocation.get("nodeSelector")]
    if selective:
        del rng.choice(selective)["nodeSelector"]
    return bool(selective)


def _drop_configuration(rng: random.Random, case: Case, allocations: list[Json]) -> bool:
    configured = [allocation["devices"] for allocation in allocations if allocation["devices"].get("config")]
    if not configured:
        return False
    devices = rng.choice(configured)
    dropped = rng.choice(devices["config"])
    devices["config"] = [each for each in devices["config"] if each != dropped]
    return True


def _turn_configuration(rng: random.Random, case: Case, allocations: list[Json]) -> bool:
    for allocation in allocations:
        config = allocation["devices"].get("config", [])
        if config and config[0] != config[-1]:
            config.reverse()
            return True
    return False


def _allocate_before(rng: random.Random, case: Case, allocations: list[Json]) -> bool:
    """A device was allocated whole before."""
    result = _result(rng, allocations)
    if result is None or result.get("adminAccess"):
        return False
    taken = {"request": "before", **{name: result[name] for name in ("driver", "pool", "device")}}
    claim = {"metadata": {"name": "before"}, "status": {"allocation": {"devices": {"results": [taken]}}}}
    case["allocated"].append(claim)
    return True


def _taint(rng: random.Random, case: Case, allocations: list[Json]) -> bool:
    result = _result(rng, allocations)
    if result is None or any(not each.get("key") for each in result.get("tolerations", ())):
        return False
    _device(case, result).setdefault("taints", []).append(dict(UNTOLERATED))
    return True


def _remove_device(rng: random.Random, case: Case, allocations: list[Json]) -> bool:
    result = _result(rng, allocations)
    if result is not None:
        _device(case, result)["name"] += "-renamed"
    return result is not None


def _make_incomplete(rng: random.Random, case: Case, allocations: list[Json]) -> bool:
    result = _result(rng, allocations)
    if result is None:
        return False
    for each in case["slices"]:
        if each["spec"]["driver"] == result["driver"] and each["spec"]["pool"]["name"] == result["pool"]:
            each["spec"]["pool"]["resourceSliceCount"] += 1
    return True


def _make_outdated(rng: random.Random, case: Case, allocations: list[Json]) -> bool:
    result = _result(rng, allocations)
    if result is None:
        return False
    pool = {"name": result["pool"], "generation": 2**40, "resourceSliceCount": 1}
    spec = {"driver": result["driver"], "pool": pool, "allNodes": True, "devices": []}
    case["slices"].append({"metadata": {"name": "newer"}, "spec": spec})
    return True


def _use_up_counters(rng: random.Random, case: Case, allocations: list[Json]) -> bool:
    """There is none of a counter that a device consumes, one that is not in use as a share."""
    result = _result(rng, allocations)
    if result is None or result.get("adminAccess") or _in_use(case, result):
        return False
    consumed = _device(case, result).get("consumesCounters", ())
    for each in case["slices"]:
        for counter_set in each["spec"].get("sharedCounters", ()):
            if consumed and counter_set["name"] == consumed[0]["counterSet"]:
                for counter in counter_set["counters"].values():
                    counter["value"] = "0"
    return bool(consumed)


def _use_up_capacity(rng: random.Random, case: Case, allocations: list[Json]) -> bool:
    """What a share consumes was consumed before."""
    result = _result(rng, allocations, "consumedCapacity")
    if result is None or result.get("adminAccess"):
        return False
    name, amount = rng.choice(list(result["consumedCapacity"].items()))
    if amount == "0":
        return False
    whole = _device(case, result)["capacity"][name]["value"]
    share = {key: result[key] for key in ("driver", "pool", "device")}
    share.update(request="before", shareID="11111111-1111-4111-8111-111111111111", consumedCapacity={name: whole})
    claim = {"metadata": {"name": "before"}, "status": {"allocation": {"devices": {"results": [share]}}}}
    case["allocated"].append(claim)
    return True


def _constrain(rng: random.Random, case: Case, allocations: list[Json]) -> bool:
    """The claim has a constraint about an attribute that no device has."""
    numbers = [number for number, each in enumerate(allocations) if each["devices"].get("results")]
    if not numbers:
        return False
    devices = case["claims"][rng.choice(numbers)]["spec"]["devices"]
    kind = rng.choice(("matchAttribute", "distinctAttribute"))
    devices.setdefault("constraints", []).append({kind: "example.com/missing"})
    return True


def _ask_for_more(rng: random.Random, case: Case, allocations: list[Json]) -> bool:
    """A request asks for another device."""
    requests = [
        request["exactly"]
        for claim in case["claims"]
        for request in claim["spec"]["devices"]["requests"]
        if request.get("exactly", {}).get("allocationMode") == "ExactCount"
    ]
    if requests:
        rng.choice(requests)["count"] += 1
    return bool(requests)


def _move_node(rng: random.Random, case: Case, allocations: list[Json]) -> bool:
    """The node has access to nothing that is for one node."""
    case["node"]["metadata"]["name"] = "elsewhere"
    return any(
        "metadata.name" in str(allocation.get("nodeSelector"))
        for allocation in allocations
        if allocation["devices"].get("results")
    )


MUTATIONS: Final[dict[str, Mutation]] = {
    "a result is missing": _drop_result,
    "a result is there twice": _repeat_result,
    "an allocation is missing": _drop_allocation,
    "a device that does not exist": _change("device", "no-such-device"),
    "a pool that does not exist": _change("pool", "no-such-pool"),
    "another driver": _change("driver", "no.such.driver"),
    "a request that does not exist": _change("request", "no-such-request"),
    "other tolerations": _change("tolerations", [{"key": "example.com/other", "operator": "Exists"}]),
    "no tolerations": _drop("tolerations"),
    "other binding conditions": _change("bindingConditions", ["example.com/other"]),
    "no binding conditions": _drop("bindingConditions"),
    "no binding failure conditions": _drop("bindingFailureConditions"),
    "no share": _drop("shareID"),
    "a share without UUID": _change("shareID", "share-1"),
    "no consumed capacity": _drop("consumedCapacity"),
    "more consumed capacity": _consume_more,
    "other administrative access": _toggle_admin,
    "a selector for another node": _other_node,
    "no node selector": _everywhere,
    "configuration is missing": _drop_configuration,
    "configuration in another order": _turn_configuration,
    "a device in use": _allocate_before,
    "a taint": _taint,
    "a device that was renamed": _remove_device,
    "an incomplete pool": _make_incomplete,
    "a newer generation": _make_outdated,
    "counters that are used up": _use_up_counters,
    "capacity that is used up": _use_up_capacity,
    "another constraint": _constrain,
    "a larger count": _ask_for_more,
    "another node": _move_node,
}
