"""Defaulting and admission of new objects by kind, as a real API server does them.

Only fields that a scheduler, a controller or a kubelet reads get defaults. Each rule is a function from object to
object, registered by resource. Objects of other resources are stored unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from topo_scheduler.api.quantity import QuantityError, parse_quantity

from . import crds
from .errors import StatusError, bad_request, forbidden, invalid
from .kinds import ApiKind, Registry
from .log import ObjectVersion
from .objects import Json, changed, is_ready, meta, spec, timestamp
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
    """The part of the store that admission uses."""

    kinds: Registry

    def find(self, kind: ApiKind | str, name: str, namespace: str = "") -> ObjectVersion | None:
        """Return an object, or None."""

    def list(self, kind: ApiKind | str) -> list[ObjectVersion]:
        """Return all objects of a kind."""


def admit(kind: ApiKind, obj: Json, store: Lookup, moment: datetime) -> Json:
    """Return the object with its defaults; raises `StatusError` if admission rejects it."""
    if kind.namespaced:
        _check_namespace(obj["metadata"]["namespace"], kind, obj, store)
    rule = _ON_CREATE.get(kind.id)
    return rule(kind, default(kind, obj), store, moment) if rule else default(kind, obj)


def default(kind: ApiKind, obj: Json) -> Json:
    """Return the object with the defaults that a decoder sets; the function is idempotent."""
    rule = _DEFAULTS.get(kind.id)
    return rule(obj) if rule else obj


def check_update(kind: ApiKind, old: Json, new: Json) -> None:
    """Reject changes of immutable fields of a pod's spec, and of its node."""
    if kind.id != "pods" or old["spec"] == new.get("spec"):
        return
    if _fixed(old, spec(old)) != _fixed(old, spec(new)):
        raise invalid(kind, old["metadata"]["name"], [("spec", _POD_IMMUTABLE)])


def _fixed(old: Json, pod_spec: Json) -> Json:
    mutable = _GATED_MAY_CHANGE if spec(old).get("schedulingGates") else _MAY_CHANGE
    immutable = {field: value for field, value in pod_spec.items() if field not in mutable}
    for list_name in ("containers", "initContainers"):
        if list_name in immutable:
            immutable[list_name] = [{**container, "image": ""} for container in immutable[list_name]]
    return immutable


def _check_namespace(namespace: str, kind: ApiKind, obj: Json, store: Lookup) -> None:
    namespace_record = store.find("namespaces", namespace)
    if namespace_record is None:
        raise StatusError(404, "NotFound", f'namespaces "{namespace}" not found', name=namespace, kind="namespaces")
    if "deletionTimestamp" in namespace_record["metadata"]:
        reason = f"unable to create new content in namespace {namespace} because it is being terminated"
        cause = {"reason": "NamespaceTerminating", "message": f"namespace {namespace} is being terminated"}
        cause["field"] = "metadata.namespace"
        raise forbidden(kind.id, obj["metadata"]["name"], reason, kind=kind.plural, causes=[cause])


# Pods


def pod_spec_defaults(pod_spec: Json) -> Json:
    """Return the spec of a pod or a template with the defaults of a decoder."""
    complete = {**_POD_DEFAULTS, **pod_spec}
    for list_name in ("containers", "initContainers"):
        if complete.get(list_name):
            complete[list_name] = [_container_defaults(container) for container in complete[list_name]]
    return complete


def _container_defaults(container: Json) -> Json:
    image = str(container.get("image", ""))
    pull_always = image.endswith(":latest") or ":" not in image.rpartition("/")[2]
    complete = {**_CONTAINER_DEFAULTS, "imagePullPolicy": "Always" if pull_always else "IfNotPresent", **container}
    resources = complete["resources"]
    if resources.get("limits"):
        complete["resources"] = {**resources, "requests": {**resources["limits"], **(resources.get("requests") or {})}}
    return complete


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
    """Return the fields that the Priority admission plugin writes."""
    class_name = pod_spec.get("priorityClassName")
    if class_name:
        priority_class: ObjectVersion | None = _priority_class(kind, name, class_name, store)
    else:
        classes = store.list("priorityclasses.scheduling.k8s.io")
        priority_class = max(
            (candidate for candidate in classes if candidate.get("globalDefault")),
            key=lambda candidate: int(candidate["value"]),
            default=None,
        )
    value = int(priority_class["value"]) if priority_class else 0
    if pod_spec.get("priority") not in (None, value):
        reason = (
            f"the integer value of priority ({pod_spec['priority']}) must not be provided in pod spec; "
            f"priority admission controller computed {value} from the given PriorityClass name"
        )
        raise forbidden("pods", name, reason, kind="pods")
    policy = priority_class.get("preemptionPolicy") if priority_class else None
    fields = {"priority": value, "preemptionPolicy": policy or "PreemptLowerPriority"}
    return {**fields, "priorityClassName": priority_class["metadata"]["name"]} if priority_class else fields


def _priority_class(kind: ApiKind, name: str, class_name: str, store: Lookup) -> ObjectVersion:
    priority_class = store.find("priorityclasses.scheduling.k8s.io", class_name)
    if priority_class is None:
        raise forbidden(kind.id, name, f"no PriorityClass with name {class_name} was found", kind=kind.plural)
    return priority_class


def _tolerations(pod_spec: Json) -> list[Json]:
    """Return the tolerations, with those of DefaultTolerationSeconds unless the pod has its own for failing nodes."""
    tolerations = list(pod_spec.get("tolerations") or [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(
            toleration.get("key") in (None, "", key) and toleration.get("effect") in (None, "", "NoExecute")
            for toleration in tolerations
        ):
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
    return tolerations


def qos_class(pod_spec: Json) -> str:
    """Return the QoS class Guaranteed, Burstable or BestEffort, from CPU and memory only."""
    containers = [*pod_spec["containers"], *(pod_spec.get("initContainers") or [])]
    container_amounts = [_cpu_and_memory(container.get("resources") or {}) for container in containers]
    if all(not limits and not requests for limits, requests in container_amounts):
        return "BestEffort"
    guaranteed = all(len(limits) == 2 and limits == requests for limits, requests in container_amounts)
    return "Guaranteed" if guaranteed else "Burstable"


def _cpu_and_memory(resources: Json) -> tuple[dict[str, int], dict[str, int]]:
    try:
        return _amounts(resources.get("limits") or {}), _amounts(resources.get("requests") or {})
    except QuantityError as error:
        raise bad_request(f'Pod in version "v1" cannot be handled as a Pod: {error}') from error


def _amounts(quantities: Json) -> dict[str, int]:
    """Return the amounts that decide the QoS class. All quantities are parsed, so invalid ones are rejected."""
    amounts = {name: parse_quantity(value, 1000 if name == "cpu" else 1) for name, value in quantities.items()}
    return {name: amount for name, amount in amounts.items() if amount and name in ("cpu", "memory")}


# Workloads


def _with_template(obj: Json, **defaults: Any) -> Json:
    workload_spec = {**defaults, **spec(obj)}
    template = workload_spec.get("template") or {}
    workload_spec["template"] = {**template, "spec": pod_spec_defaults(template.get("spec") or {})}
    return {**obj, "spec": workload_spec}


def _job(obj: Json) -> Json:
    job_spec = spec(obj)
    completions = {} if "parallelism" in job_spec and "completions" not in job_spec else {"completions": 1}
    return _with_template(
        obj, parallelism=1, **completions, backoffLimit=6, completionMode="NonIndexed", suspend=False,
        podReplacementPolicy="Failed" if job_spec.get("podFailurePolicy") else "TerminatingOrFailed",
    )  # fmt: skip


def _admit_job(kind: ApiKind, job: Json, store: Lookup, moment: datetime) -> Json:
    job_spec, name, uid = job["spec"], job["metadata"]["name"], job["metadata"]["uid"]
    template = job_spec["template"]
    restart = (spec(template)).get("restartPolicy")
    if restart not in ("OnFailure", "Never"):
        problem = f'Unsupported value: "{restart}": supported values: "OnFailure", "Never"'
        raise invalid(kind, name, [("spec.template.spec.restartPolicy", problem)])
    if job_spec.get("manualSelector"):
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


# Other kinds


def _node(obj: Json) -> Json:
    status = obj.get("status") or {}
    if "capacity" in status and "allocatable" not in status:
        return changed(obj, "status", allocatable=status["capacity"])
    return obj


def _admit_node(kind: ApiKind, node: Json, store: Lookup, moment: datetime) -> Json:
    """Return the node, tainted as not ready until its kubelet reports that it is ready."""
    if is_ready(node):
        return node
    return changed(node, "spec", taints=[*(spec(node).get("taints") or []), NOT_READY])


def _admit_namespace(kind: ApiKind, namespace: Json, store: Lookup, moment: datetime) -> Json:
    name = namespace["metadata"]["name"]
    labels = {**(namespace["metadata"].get("labels") or {}), "kubernetes.io/metadata.name": name}
    labelled = changed(namespace, "metadata", labels=labels)
    return {**labelled, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}


def _admit_pod_group(kind: ApiKind, group: Json, store: Lookup, moment: datetime) -> Json:
    """Check that there is exactly one policy and a positive count, and set the number of the priority class."""
    name, group_spec = group["metadata"]["name"], spec(group)
    policy = group_spec.get("schedulingPolicy") or {}
    if len(policy.keys() & {"gang", "basic"}) != 1:
        raise invalid(kind, name, [("spec.schedulingPolicy", "must specify one of: `basic`, `gang`")])
    if "gang" in policy and int((policy["gang"] or {}).get("minCount", 0)) < 1:
        problem = "Invalid value: must be greater than or equal to 1"
        raise invalid(kind, name, [("spec.schedulingPolicy.gang.minCount", problem)])
    if not (class_name := group_spec.get("priorityClassName")):
        return group
    return changed(group, "spec", priority=int(_priority_class(kind, name, class_name, store)["value"]))


_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


def _with_fields(**defaults: str) -> Callable[[Json], Json]:
    """Return a rule that adds the fields which an object lacks. They follow its type, which must stay first."""
    return lambda obj: {**obj, **{name: value for name, value in defaults.items() if name not in obj}}


def _with_spec(**defaults: str) -> Callable[[Json], Json]:
    return lambda obj: {**obj, "spec": {**defaults, **spec(obj)}}


def _admit_claim(kind: ApiKind, claim: Json, store: Lookup, moment: datetime) -> Json:
    """Return the claim with the default storage class, as the DefaultStorageClass admission plugin does."""
    if "storageClassName" in spec(claim):
        return claim
    classes = store.list("storageclasses.storage.k8s.io")
    default_classes = [
        storage_class
        for storage_class in classes
        if (meta(storage_class.obj).get("annotations") or {}).get(_DEFAULT_CLASS) == "true"
    ]
    if not default_classes:
        return claim
    newest = max(default_classes, key=lambda storage_class: storage_class.revision)
    return changed(claim, "spec", storageClassName=newest.key.name)


def _admit_crd(kind: ApiKind, crd: Json, store: Lookup, moment: datetime) -> Json:
    crd_spec = crd.get("spec") or {}
    expected = f"{(crd_spec.get('names') or {}).get('plural')}.{crd_spec.get('group')}"
    if crd["metadata"]["name"] != expected:
        problem = f'Invalid value: "{crd["metadata"]["name"]}": must be spec.names.plural+"."+spec.group'
        raise invalid(kind, crd["metadata"]["name"], [("metadata.name", problem)])
    return crds.established(crd, timestamp(moment))


_DEFAULTS: dict[str, Callable[[Json], Json]] = {
    "pods": lambda obj: {**obj, "spec": pod_spec_defaults(spec(obj))},
    "nodes": _node,
    "jobs.batch": _job,
    "deployments.apps": _deployment,
    "replicasets.apps": partial(_with_template, replicas=1),
    "statefulsets.apps": _stateful_set,
    "daemonsets.apps": _with_template,
    "priorityclasses.scheduling.k8s.io": _with_fields(preemptionPolicy="PreemptLowerPriority"),
    "storageclasses.storage.k8s.io": _with_fields(reclaimPolicy="Delete", volumeBindingMode="Immediate"),
    "persistentvolumeclaims": _with_spec(volumeMode="Filesystem"),
    "persistentvolumes": _with_spec(volumeMode="Filesystem", persistentVolumeReclaimPolicy="Retain"),
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
