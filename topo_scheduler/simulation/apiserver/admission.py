"""What a real server adds to an object that is created, and what it refuses: defaults and admission, kind by kind.

Only what a scheduler, a controller or a kubelet reads is defaulted. Each rule is a function from object to object,
registered under the resource it is for; a resource without one is stored as it came.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol

from topo_scheduler.api.quantity import QuantityError, parse_quantity

from . import crds
from .errors import APIError, bad_request, forbidden, invalid
from .kinds import ApiKind, Registry
from .log import ObjectVersion
from .objects import Json, changed, condition, meta, spec, timestamp
from .selectors import from_label_selector, matches_labels

GATED = "Scheduling is blocked due to non-empty scheduling gates"
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
_POD_DEFAULTS: Json = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "securityContext": {},
    "schedulerName": "default-scheduler",
    "enableServiceLinks": True,
}
_CONTAINER_DEFAULTS: Json = {
    "resources": {},
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
_MAY_CHANGE = frozenset({"activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates"})
_GATED_MAY_CHANGE = _MAY_CHANGE | {"nodeSelector", "affinity"}
_POD_IMMUTABLE = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
    "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


class Lookup(Protocol):
    """What admission may ask of the store."""

    kinds: Registry

    def find(self, kind: ApiKind | str, name: str, namespace: str = "") -> ObjectVersion | None:
        """An object, or None."""

    def list(self, kind: ApiKind | str) -> list[ObjectVersion]:
        """All objects of a kind."""


def admit(kind: ApiKind, obj: Json, store: Lookup, moment: datetime) -> Json:
    """The object with its defaults, or a refusal."""
    if kind.namespaced:
        _check_namespace(obj["metadata"]["namespace"], kind, obj, store)
    rule = _ON_CREATE.get(kind.id)
    return rule(kind, default(kind, obj), store, moment) if rule else default(kind, obj)


def default(kind: ApiKind, obj: Json) -> Json:
    """The object with the values a decoder fills in; a second time changes nothing."""
    rule = _DEFAULTS.get(kind.id)
    return rule(obj) if rule else obj


def check_update(kind: ApiKind, old: Json, new: Json) -> None:
    """Refuse changes of a pod's spec that only the binding, or nobody, may make."""
    if kind.id != "pods" or old["spec"] == new.get("spec"):
        return
    if _fixed(old, spec(old)) != _fixed(old, spec(new)):
        raise invalid(kind, old["metadata"]["name"], [("spec", _POD_IMMUTABLE)])


def _fixed(old: Json, pod_spec: Json) -> Json:
    free = _GATED_MAY_CHANGE if spec(old).get("schedulingGates") else _MAY_CHANGE
    rest = {field: value for field, value in pod_spec.items() if field not in free}
    for part in ("containers", "initContainers"):
        if part in rest:
            rest[part] = [{**container, "image": ""} for container in rest[part]]
    return rest


def _check_namespace(namespace: str, kind: ApiKind, obj: Json, store: Lookup) -> None:
    found = store.find("namespaces", namespace)
    if found is None:
        raise APIError(404, "NotFound", f'namespaces "{namespace}" not found', name=namespace, kind="namespaces")
    if "deletionTimestamp" in found["metadata"]:
        why = f"unable to create new content in namespace {namespace} because it is being terminated"
        cause = {"reason": "NamespaceTerminating", "message": f"namespace {namespace} is being terminated"}
        cause["field"] = "metadata.namespace"
        raise forbidden(kind.id, obj["metadata"]["name"], why, kind=kind.plural, causes=[cause])


# Pods


def pod_spec_defaults(pod_spec: Json) -> Json:
    """A pod's spec, or a template's, as a decoder completes it."""
    filled = {**_POD_DEFAULTS, **pod_spec}
    for part in ("containers", "initContainers"):
        if filled.get(part):
            filled[part] = [_container_defaults(container) for container in filled[part]]
    return filled


def _container_defaults(container: Json) -> Json:
    image = str(container.get("image", ""))
    always = image.endswith(":latest") or ":" not in image.rpartition("/")[2]
    filled = {**_CONTAINER_DEFAULTS, "imagePullPolicy": "Always" if always else "IfNotPresent", **container}
    resources = filled["resources"]
    if resources.get("limits"):
        filled["resources"] = {**resources, "requests": {**resources["limits"], **(resources.get("requests") or {})}}
    return filled


def _pod(obj: Json) -> Json:
    return {**obj, "spec": pod_spec_defaults(spec(obj))}


def _admit_pod(kind: ApiKind, pod: Json, store: Lookup, moment: datetime) -> Json:
    name, pod_spec = pod["metadata"]["name"], pod["spec"]
    if not pod_spec.get("containers"):
        raise invalid(kind, name, [("spec.containers", "Required value")])
    status: Json = {"phase": "Pending", "qosClass": qos_class(pod_spec)}
    if pod_spec.get("schedulingGates"):
        status["conditions"] = [{
            "type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": GATED,
            "lastProbeTime": None, "lastTransitionTime": timestamp(moment),
        }]  # fmt: skip
    pod_spec = {**pod_spec, **_priority(kind, name, pod_spec, store), "tolerations": _tolerations(pod_spec)}
    return {**pod, "spec": pod_spec, "status": status}


def _priority(kind: ApiKind, name: str, pod_spec: Json, store: Lookup) -> Json:
    """What the Priority admission plugin writes."""
    wanted = pod_spec.get("priorityClassName")
    if wanted:
        found = store.find("priorityclasses.scheduling.k8s.io", wanted)
        if found is None:
            raise forbidden("pods", name, f"no PriorityClass with name {wanted} was found", kind="pods")
    else:
        classes = store.list("priorityclasses.scheduling.k8s.io")
        found = max((c for c in classes if c.get("globalDefault")), key=lambda c: int(c["value"]), default=None)
    value = int(found["value"]) if found else 0
    if pod_spec.get("priority") not in (None, value):
        why = (
            f"the integer value of priority ({pod_spec['priority']}) must not be provided in pod spec; "
            f"priority admission controller computed {value} from the given PriorityClass name"
        )
        raise forbidden("pods", name, why, kind="pods")
    policy = found.get("preemptionPolicy") if found else None
    written = {"priority": value, "preemptionPolicy": policy or "PreemptLowerPriority"}
    return {**written, "priorityClassName": found["metadata"]["name"]} if found else written


def _tolerations(pod_spec: Json) -> list[Json]:
    """What DefaultTolerationSeconds adds, unless the pod already says how long it stays on a failing node."""
    given = list(pod_spec.get("tolerations") or [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(t.get("key") in (None, "", key) and t.get("effect") in (None, "", "NoExecute") for t in given):
            given.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
    return given


def qos_class(pod_spec: Json) -> str:
    """Guaranteed, Burstable or BestEffort, from cpu and memory alone."""
    containers = [*pod_spec["containers"], *(pod_spec.get("initContainers") or [])]
    stated = [_cpu_and_memory(container.get("resources") or {}) for container in containers]
    if all(not limits and not requests for limits, requests in stated):
        return "BestEffort"
    guaranteed = all(len(limits) == 2 and limits == requests for limits, requests in stated)
    return "Guaranteed" if guaranteed else "Burstable"


def _cpu_and_memory(resources: Json) -> tuple[dict[str, int], dict[str, int]]:
    stated = (resources.get("limits") or {}, resources.get("requests") or {})
    try:
        return _amounts(stated[0]), _amounts(stated[1])
    except QuantityError as error:
        raise bad_request(f'Pod in version "v1" cannot be handled as a Pod: {error}') from error


def _amounts(stated: Json) -> dict[str, int]:
    """What matters for the quality of service; every other quantity is read, too, to refuse what is none."""
    scaled = {name: parse_quantity(value, 1000 if name == "cpu" else 1) for name, value in stated.items()}
    return {name: amount for name, amount in scaled.items() if amount and name in ("cpu", "memory")}


# Workloads


def _with_template(obj: Json, **defaults: Any) -> Json:
    body = {**defaults, **spec(obj)}
    template = body.get("template") or {}
    body["template"] = {**template, "spec": pod_spec_defaults(template.get("spec") or {})}
    return {**obj, "spec": body}


def _job(obj: Json) -> Json:
    body = spec(obj)
    ones = {} if "parallelism" in body and "completions" not in body else {"completions": 1}
    return _with_template(
        obj, parallelism=1, **ones, backoffLimit=6, completionMode="NonIndexed", suspend=False,
        podReplacementPolicy="Failed" if body.get("podFailurePolicy") else "TerminatingOrFailed",
    )  # fmt: skip


def _admit_job(kind: ApiKind, job: Json, store: Lookup, moment: datetime) -> Json:
    body, name, uid = job["spec"], job["metadata"]["name"], job["metadata"]["uid"]
    template = body["template"]
    restart = (spec(template)).get("restartPolicy")
    if restart not in ("OnFailure", "Never"):
        problem = f'Unsupported value: "{restart}": supported values: "OnFailure", "Never"'
        raise invalid(kind, name, [("spec.template.spec.restartPolicy", problem)])
    if body.get("manualSelector"):
        return job
    labels = {
        **(meta(template).get("labels") or {}),
        "batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": name,
        "controller-uid": uid, "job-name": name,
    }  # fmt: skip
    selector = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    return changed(job, "spec", selector=selector, template=changed(template, "metadata", labels=labels))


def _deployment(obj: Json) -> Json:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}}
    return _with_template(obj, replicas=1, strategy=rolling, revisionHistoryLimit=10, progressDeadlineSeconds=600)


def _replica_set(obj: Json) -> Json:
    return _with_template(obj, replicas=1)


def _stateful_set(obj: Json) -> Json:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}
    return _with_template(
        obj, replicas=1, podManagementPolicy="OrderedReady", updateStrategy=rolling, revisionHistoryLimit=10
    )


def _admit_workload(kind: ApiKind, obj: Json, store: Lookup, moment: datetime) -> Json:
    labels = meta(obj["spec"]["template"]).get("labels")
    selector = obj["spec"].get("selector")
    if not selector:
        raise invalid(kind, obj["metadata"]["name"], [("spec.selector", "Required value")])
    if not matches_labels(from_label_selector(selector), labels):
        problem = f"Invalid value: {labels}: `selector` does not match template `labels`"
        raise invalid(kind, obj["metadata"]["name"], [("spec.template.metadata.labels", problem)])
    return obj


# Everything else


def _node(obj: Json) -> Json:
    status = obj.get("status") or {}
    if "capacity" in status and "allocatable" not in status:
        return changed(obj, "status", allocatable=status["capacity"])
    return obj


def _admit_node(kind: ApiKind, node: Json, store: Lookup, moment: datetime) -> Json:
    """A node that doesn't say it is ready is tainted until its kubelet does."""
    ready = condition(node, "Ready")
    if ready is not None and ready.get("status") == "True":
        return node
    return changed(node, "spec", taints=[*(spec(node).get("taints") or []), NOT_READY])


def _admit_namespace(kind: ApiKind, namespace: Json, store: Lookup, moment: datetime) -> Json:
    name = namespace["metadata"]["name"]
    labels = {**(namespace["metadata"].get("labels") or {}), "kubernetes.io/metadata.name": name}
    named = changed(namespace, "metadata", labels=labels)
    return {**named, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}


def _admit_pod_group(kind: ApiKind, group: Json, store: Lookup, moment: datetime) -> Json:
    """Exactly one policy, a positive count, and the number of the priority class."""
    name, body = group["metadata"]["name"], spec(group)
    policy = body.get("schedulingPolicy") or {}
    if len(policy.keys() & {"gang", "basic"}) != 1:
        raise invalid(kind, name, [("spec.schedulingPolicy", "must specify one of: `basic`, `gang`")])
    if "gang" in policy and int((policy["gang"] or {}).get("minCount", 0)) < 1:
        problem = "Invalid value: must be greater than or equal to 1"
        raise invalid(kind, name, [("spec.schedulingPolicy.gang.minCount", problem)])
    if not (wanted := body.get("priorityClassName")):
        return group
    found = store.find("priorityclasses.scheduling.k8s.io", wanted)
    if found is None:
        raise forbidden(kind.id, name, f"no PriorityClass with name {wanted} was found", kind=kind.plural)
    return changed(group, "spec", priority=int(found["value"]))


def _priority_class(obj: Json) -> Json:
    return {**obj, **_missing(obj, preemptionPolicy="PreemptLowerPriority")}


_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


def _storage_class(obj: Json) -> Json:
    return {**obj, **_missing(obj, reclaimPolicy="Delete", volumeBindingMode="Immediate")}


def _missing(obj: Json, **defaults: str) -> Json:
    """The defaults that an object lacks: they go behind its type, which must stay first."""
    return {name: value for name, value in defaults.items() if name not in obj}


def _claim(obj: Json) -> Json:
    return {**obj, "spec": {"volumeMode": "Filesystem", **spec(obj)}}


def _volume(obj: Json) -> Json:
    return {**obj, "spec": {"volumeMode": "Filesystem", "persistentVolumeReclaimPolicy": "Retain", **spec(obj)}}


def _admit_claim(kind: ApiKind, claim: Json, store: Lookup, moment: datetime) -> Json:
    """What the DefaultStorageClass admission plugin writes."""
    if "storageClassName" in spec(claim):
        return claim
    classes = store.list("storageclasses.storage.k8s.io")
    marked = [one for one in classes if (meta(one.obj).get("annotations") or {}).get(_DEFAULT_CLASS) == "true"]
    if not marked:
        return claim
    newest = max(marked, key=lambda one: one.revision)
    return changed(claim, "spec", storageClassName=newest.key.name)


def _admit_crd(kind: ApiKind, crd: Json, store: Lookup, moment: datetime) -> Json:
    body = crd.get("spec") or {}
    expected = f"{(body.get('names') or {}).get('plural')}.{body.get('group')}"
    if crd["metadata"]["name"] != expected:
        problem = f'Invalid value: "{crd["metadata"]["name"]}": must be spec.names.plural+"."+spec.group'
        raise invalid(kind, crd["metadata"]["name"], [("metadata.name", problem)])
    return crds.established(crd, timestamp(moment))


_DEFAULTS: dict[str, Callable[[Json], Json]] = {
    "pods": _pod,
    "nodes": _node,
    "jobs.batch": _job,
    "deployments.apps": _deployment,
    "replicasets.apps": _replica_set,
    "statefulsets.apps": _stateful_set,
    "daemonsets.apps": _with_template,
    "priorityclasses.scheduling.k8s.io": _priority_class,
    "storageclasses.storage.k8s.io": _storage_class,
    "persistentvolumeclaims": _claim,
    "persistentvolumes": _volume,
}
_ON_CREATE: dict[str, Callable[[ApiKind, Json, Lookup, datetime], Json]] = {
    "pods": _admit_pod,
    "nodes": _admit_node,
    "namespaces": _admit_namespace,
    "persistentvolumeclaims": _admit_claim,
    "jobs.batch": _admit_job,
    "deployments.apps": _admit_workload,
    "replicasets.apps": _admit_workload,
    "statefulsets.apps": _admit_workload,
    "daemonsets.apps": _admit_workload,
    "podgroups.scheduling.k8s.io": _admit_pod_group,
    crds.ID: _admit_crd,
}
