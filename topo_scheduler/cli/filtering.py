"""Filtering of a snapshot's nodes by the rules of Kubernetes alone, without a cluster and without our own rules."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml

from topo_scheduler.api.objects import Node, PartialObject, Pod
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.api.quantity import QuantityError
from topo_scheduler.kube.connection.odd_json import without_nulls
from topo_scheduler.kube.reading.storage import store_sinks
from topo_scheduler.scheduling.intake.device_claims import device_claims
from topo_scheduler.scheduling.rules.feasible import Nominated, reasons
from topo_scheduler.scheduling.world import World
from topo_scheduler.simulation.cases.directory import SNAPSHOT_KEYS
from topo_scheduler.simulation.cases.documents import RESOLVERS
from topo_scheduler.state.nodes.resources import as_amounts
from topo_scheduler.state.pods.classes import pod_class
from topo_scheduler.state.pods.constraints import constraints_of, profile_of
from topo_scheduler.state.pods.requests import pod_amounts
from topo_scheduler.state.pods.selectors import SelectorError

T = TypeVar("T", bound="msgspec.Struct")

_REMEDY: Final = "correct the object, or leave it out"

KEYS: Final = tuple(SNAPSHOT_KEYS)
_KEY_OF_KIND: Final = {kind: key for key, (_, kind) in SNAPSHOT_KEYS.items() if kind != "Pod"}
"""Key of the snapshot for each kind of object in a ``List``; a Pod without a node is pending."""


class SnapshotError(ValueError):
    """A snapshot that can't be read; the message names the object and the problem."""


@dataclass(slots=True)
class FilterAnswer:
    """By pod (``namespace/name``): the feasible nodes, in order, and the reason for each other node."""

    feasible: dict[str, list[str]] = field(default_factory=dict)
    reasons: dict[str, dict[str, str]] = field(default_factory=dict)


class _SnapshotLoader(yaml.SafeLoader):
    """Loads timestamps as plain strings."""


_SnapshotLoader.yaml_implicit_resolvers = RESOLVERS


def read_snapshot(path: Path) -> Mapping[str, Any]:
    """Read a snapshot, or a ``List`` as kubectl writes it, from a JSON or YAML file.

    Raises:
        SnapshotError: the file can't be read, or is neither.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SnapshotError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SnapshotError(f"{path}: not UTF-8 text: {error}; save it as UTF-8") from error
    try:
        document = json.loads(text) if text.lstrip().startswith("{") else yaml.load(text, _SnapshotLoader)
    except RecursionError as error:
        raise SnapshotError(f"{path}: mappings or lists are nested too deeply; is a bracket left open?") from error
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        # PyYAML raises other errors than its own too, e.g. for a date such as 2026-13-01.
        raise SnapshotError(f"{path}: {error}") from error
    if not isinstance(document, Mapping):
        raise SnapshotError(f"{path}: an object with lists was expected, such as {{nodes, pods, pending}}")
    return _by_kind(document) if isinstance(document.get("items"), list) else document


def _by_kind(listed: Mapping[str, Any]) -> dict[str, list[Any]]:
    snapshot: dict[str, list[Any]] = {key: [] for key in KEYS}
    for item in listed["items"]:
        kind = str(item.get("kind", "")) if isinstance(item, Mapping) else ""
        if kind == "Pod":
            spec = item.get("spec")
            has_node = isinstance(spec, Mapping) and spec.get("nodeName")
            snapshot["pods" if has_node else "pending"].append(item)
        elif kind in _KEY_OF_KIND:
            snapshot[_KEY_OF_KIND[kind]].append(item)
    return snapshot


def filter_snapshot(snapshot: Mapping[str, Any]) -> FilterAnswer:
    """Apply the rules of kube-scheduler 1.36 to each pending pod of a snapshot separately.

    Args:
        snapshot: lists of Kubernetes objects as in JSON, under the names in `KEYS`.

    Raises:
        SnapshotError: an object can't be read; the message names it.
    """
    unknown = sorted(set(snapshot) - set(KEYS) - {"apiVersion", "kind", "metadata"})
    if unknown:
        raise SnapshotError(f"unknown key {unknown[0]!r}; there are {', '.join(KEYS)}")
    world = _world(snapshot)
    pending = list(_objects(snapshot, "pending", Pod))
    unplaced = [pod for pod in _objects(snapshot, "pods", Pod) if not pod.spec.node_name and not pod.finished]
    nominated = list(_nominated(world, [*unplaced, *pending]))
    answer = FilterAnswer()
    for pod in pending:
        reason_by_node = _reason_by_node(world, pod, nominated)
        answer.feasible[pod.key] = sorted(node for node, reason in reason_by_node.items() if not reason)
        answer.reasons[pod.key] = {node: str(reason) for node, reason in sorted(reason_by_node.items()) if reason}
    return answer


def _reason_by_node(world: World, pod: Pod, nominated: list[Nominated]) -> dict[str, str]:
    try:
        amounts = as_amounts(pod_amounts(world.resources, pod))
        constraints = constraints_of(pod)
    except (QuantityError, SelectorError) as error:
        return dict.fromkeys(world.nodes.row_of, str(error))
    claims = device_claims(pod, world.inventory)
    if claims.problem:
        return dict.fromkeys(world.nodes.row_of, claims.problem)
    world.settle_devices()  # now that the pod's resources are known
    world.nodes.widen()
    cls = replace(pod_class(pod, amounts, (), 0, constraints), claims=claims.claims)
    other_nominations = [
        nomination
        for nomination in nominated
        if nomination.uid != pod.metadata.uid and nomination.priority >= pod.spec.priority
    ]
    reason_by_node = reasons(world.around, cls, profile_of(world.pod_index, pod), other_nominations, ours=False)
    if pod.spec.node_name:
        other_node = "node(s) didn't match the requested node name"
        reason_by_node = {
            node: reason if node == pod.spec.node_name else reason or other_node
            for node, reason in reason_by_node.items()
        }
    return reason_by_node


def _nominated(world: World, pods: list[Pod]) -> Iterator[Nominated]:
    for pod in pods:
        row = world.nodes.row_of.get(pod.status.nominated_node_name)
        if row is not None:
            try:
                amounts = as_amounts(pod_amounts(world.resources, pod))
            except QuantityError as error:
                raise SnapshotError(f"{pod.key}: {error}") from error
            yield Nominated(row, pod.spec.priority, pod.metadata.uid, profile_of(world.pod_index, pod), amounts)


def _world(snapshot: Mapping[str, Any]) -> World:
    world = World(SchedulerConfig())
    for node in _objects(snapshot, "nodes", Node):
        world.put_node(node, 0.0)
    around = world.around
    around.namespaces = {
        item.metadata.name: item.metadata.labels for item in _objects(snapshot, "namespaces", PartialObject)
    }
    for sink in store_sinks(around.storage, world.inventory):
        sink.applied(list(_objects(snapshot, _KEY_OF_KIND[sink.resource.kind], sink.resource.type)))
        sink.synced()
    for pod in _objects(snapshot, "pods", Pod):
        if pod.spec.node_name and not pod.finished:
            world.bound(pod)
    return world


def _objects(snapshot: Mapping[str, Any], key: str, kind: type[T]) -> Iterator[T]:
    items = snapshot.get(key) or []
    if not isinstance(items, list):
        raise SnapshotError(f"{key}: expected a list of objects, found {type(items).__name__}")
    for item in items:
        try:
            _check_text(item)
            obj = msgspec.convert(without_nulls(item), kind)
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            metadata = item.get("metadata") if isinstance(item, Mapping) else None
            names = [metadata.get(part) for part in ("namespace", "name")] if isinstance(metadata, Mapping) else []
            name = "/".join(str(part) for part in names if part)
            raise SnapshotError(f"{key}: {name or 'an object without a name'}: {error}; {_REMEDY}") from error
        if isinstance(obj, Pod) and not obj.metadata.uid:
            obj.metadata.uid = f"{obj.metadata.namespace}/{obj.metadata.name}"
        yield obj


def _check_text(value: object) -> None:
    """Raise UnicodeEncodeError if a string has half of a surrogate pair, which JSON and YAML can escape."""
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, Mapping):
        for name, field in value.items():
            _check_text(name)
            _check_text(field)
    elif isinstance(value, list):
        for item in value:
            _check_text(item)
