"""What an allocation copies from the claim, the class and the slice: conditions, tolerations, configuration, nodes."""

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from tests.differential.choices import Json

from .inventory import Device, quantity, selected


def copied_problems(
    where: str, spec: Json, device: Device, result: Json, consumption: Mapping[str, Fraction | None]
) -> Iterator[str]:
    """What is not, or wrongly, copied into the result for one device."""
    if (result.get("tolerations") or []) != (spec.get("tolerations") or []):
        yield f"{where}: tolerations are not those of the request"
    for name in ("bindingConditions", "bindingFailureConditions"):
        if (result.get(name) or []) != (device.raw.get(name) or []):
            yield f"{where}: {name} are not those of the device"
    if not device.shareable:
        if result.get("shareID") or result.get("consumedCapacity"):
            yield f"{where}: a share of a device that is not shared"
        return
    if not _is_uuid(result.get("shareID")):
        yield f"{where}: shareID {result.get('shareID')} is no UUID"
    consumed = {name: quantity(amount) for name, amount in (result.get("consumedCapacity") or {}).items()}
    if consumed != consumption:
        yield f"{where}: consumedCapacity is not what the request consumes"


def _is_uuid(text: object) -> bool:
    try:
        return str(uuid.UUID(str(text))) == text
    except ValueError:
        return False


def configuration_problems(
    index: int, claim: Json, allocation: Json, chosen: Sequence[tuple[str, str]], classes: Mapping[str, Json]
) -> Iterator[str]:
    """Whether configuration is that of the classes, then that of the claim; doing it twice does no harm."""
    configured = allocation.get("devices", {}).get("config") or []
    if _distinct(configured) != _distinct(expected_configuration(claim, chosen, classes)):
        yield f"claim {index}: configuration is not that of its classes and its own"


def expected_configuration(claim: Json, chosen: Sequence[tuple[str, str]], classes: Mapping[str, Json]) -> list[Json]:
    """The configuration of an allocation.

    Args:
        claim: the claim.
        chosen: the requests, or the alternatives chosen of them, each with its class.
        classes: the specs of the device classes.
    """
    expected: list[Json] = []
    for class_name in dict.fromkeys(class_name for _, class_name in chosen):
        names = [name for name, other in chosen if other == class_name]
        of_class = classes.get(class_name, {}).get("config", ())
        expected += [{"source": "FromClass", "requests": names, **config} for config in of_class]
    known = {name for name, _ in chosen} | {name.partition("/")[0] for name, _ in chosen}
    expected += [
        {"source": "FromClaim", **config}
        for config in claim["spec"]["devices"].get("config", ())
        if not config.get("requests") or known & set(config["requests"])
    ]
    return expected


def _distinct(configurations: Sequence[Json]) -> list[str]:
    """Each configuration once, in order, whatever the order of the requests it is for."""
    texts = [
        json.dumps({**each, "requests": sorted(each.get("requests") or ())}, sort_keys=True) for each in configurations
    ]
    return list(dict.fromkeys(texts))


def node_selector_problems(index: int, allocation: Json, devices: Sequence[Device], node: Json) -> Iterator[str]:
    """Whether the node selector holds for the node, and for no node that lacks access to a device."""
    selector = allocation.get("nodeSelector")
    if selector is not None and not selected(selector, node):
        yield f"claim {index}: the node selector does not hold for the node"
    if _requirements(selector) != _requirements(expected_selector(devices, node)):
        yield f"claim {index}: the node selector is not that of the devices"


def expected_selector(devices: Sequence[Device], node: Json) -> Json | None:
    """One node where a device is bound to it; what all devices require otherwise."""
    selections = [device.node_selection for device in devices]
    if any(each.get("nodeName") for each in selections) or any(device.raw.get("bindsToNode") for device in devices):
        name = {"key": "metadata.name", "operator": "In", "values": [node["metadata"]["name"]]}
        return {"nodeSelectorTerms": [{"matchFields": [name]}]}
    term: Json = {}
    for each in selections:
        for kind, requirements in each.get("nodeSelector", {"nodeSelectorTerms": [{}]})["nodeSelectorTerms"][0].items():
            term.setdefault(kind, []).extend(requirements)
    return {"nodeSelectorTerms": [term]} if term else None


def _requirements(selector: Mapping[str, Any] | None) -> set[str]:
    """The requirements of a selector of one term; a second one would make it an alternative."""
    if selector is None:
        return set()
    requirements = set()
    for number, term in enumerate(selector["nodeSelectorTerms"]):
        for kind in ("matchExpressions", "matchFields"):
            for each in term.get(kind) or ():
                values = sorted(each.get("values") or ())
                requirements.add(json.dumps([number, kind, each["key"], each["operator"], values]))
    return requirements
