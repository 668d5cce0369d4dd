"""Which pods a name on the command line means: a pod, or the workload that made them."""

import re
from dataclasses import dataclass
from typing import Final

from topo_scheduler.api.annotations import GANG_ID, GANG_NAME, RANK, written_number
from topo_scheduler.api.objects import Pod
from topo_scheduler.cli.common import USAGE, CommandFailure
from topo_scheduler.kube.client import Client
from topo_scheduler.kube.decoding import Codec
from topo_scheduler.kube.errors import NotFound
from topo_scheduler.kube.listing import TIMEOUT_SECONDS, list_all
from topo_scheduler.kube.resources import PODS

_codec: Final = Codec(PODS)
_TYPES: Final = {
    "pod": ("pods", "po"),
    "job": ("jobs",),
    "cronjob": ("cronjobs", "cj"),
    "jobset": ("jobsets",),
    "deployment": ("deployments", "deploy"),
    "replicaset": ("replicasets", "rs"),
    "statefulset": ("statefulsets", "sts"),
    "daemonset": ("daemonsets", "ds"),
    "replicationcontroller": ("replicationcontrollers", "rc"),
    "leaderworkerset": ("leaderworkersets", "lws"),
    "pytorchjob": ("pytorchjobs",),
    "tfjob": ("tfjobs",),
    "mpijob": ("mpijobs",),
    "xgboostjob": ("xgboostjobs",),
    "paddlejob": ("paddlejobs",),
    "jaxjob": ("jaxjobs",),
    "trainjob": ("trainjobs",),
    "rayjob": ("rayjobs",),
    "raycluster": ("rayclusters",),
    "podgroup": ("podgroups", "pg"),
    "gang": ("gangs",),
}
_TYPE_OF: Final = {alias: kind for kind, aliases in _TYPES.items() for alias in (kind, *aliases)}
_KUBEFLOW: Final = "training.kubeflow.org/job-name"
_OWNER_LABELS: Final = (
    ("job", "batch.kubernetes.io/job-name"),
    ("job", "job-name"),
    ("jobset", "jobset.sigs.k8s.io/jobset-name"),
    ("leaderworkerset", "leaderworkerset.sigs.k8s.io/name"),
    ("podgroup", "scheduling.x-k8s.io/pod-group"),
    *((kind, _KUBEFLOW) for kind in ("pytorchjob", "tfjob", "mpijob", "xgboostjob", "paddlejob", "jaxjob")),
)
_TEMPLATE_HASH: Final = "pod-template-hash"


@dataclass(frozen=True, slots=True)
class NamedObject:
    """What the command line names. ``kind`` in lower case, empty for a pod or whatever else has the name.

    ``namespace`` empty for all of them; ``first`` what was taken for a namespace, as it is no type.
    """

    kind: str
    namespace: str
    name: str
    first: str = ""

    @property
    def described(self) -> str:
        """What it is called in messages."""
        return f"{self.kind or 'pod'} {self.name}"

    @property
    def where(self) -> str:
        """The namespace as messages have it."""
        return f"in namespace {self.namespace}" if self.namespace else "in any namespace"


def wanted(target: str, namespace: str) -> NamedObject:
    """Read ``NAME``, ``TYPE/NAME`` or ``NAMESPACE/NAME``; a type comes first where the word is both.

    Raises:
        Failure: it is none of these.
    """
    first, slash, rest = target.partition("/")
    if not slash:
        return NamedObject("", namespace, target)
    if not first or not rest or "/" in rest:
        raise CommandFailure(f"{target!r}: write a pod's NAME, or TYPE/NAME as in job/train", USAGE)
    kind = _TYPE_OF.get(first.lower().partition(".")[0])
    return NamedObject(kind, namespace, rest) if kind else NamedObject("", first, rest, first)


async def find_pod(client: Client, scheduler: str, asked: NamedObject) -> Pod:
    """Return the pod of a name; else of the pods of a workload of that name the first that waits, else the first.

    Raises:
        Failure: there is none, or in several namespaces.
        KubeError: no answer from the API server.
    """
    if asked.namespace and asked.kind in ("", "pod"):
        try:
            path = PODS.path(asked.namespace, asked.name)
        except ValueError as error:
            raise CommandFailure(str(error)) from error
        try:
            return _codec.one(await client.request("GET", path, timeout=TIMEOUT_SECONDS))
        except NotFound as error:
            if asked.kind == "pod":
                raise CommandFailure(f"there is no pod {asked.name} {asked.where}; {_HINT}") from error
    pods, _ = await list_all(client, PODS, asked.namespace or None)
    found = [pod for pod in pods if asked.kind in ("", "pod") and pod.metadata.name == asked.name]
    found = found or [pod for pod in pods if _is_of(pod, asked)]
    if not found:
        beside = "" if asked.kind else ", and no pods of a workload of that name"
        has = f"{asked.described} has no pods" if asked.kind not in ("", "pod") else f"there is no {asked.described}"
        if asked.first:
            types = ", ".join(_TYPES)
            raise CommandFailure(f"{has} {asked.where}{beside}: {asked.first} is no type of workload ({types})")
        raise CommandFailure(f"{has} {asked.where}{beside}; {_HINT}")
    namespaces = sorted({pod.metadata.namespace for pod in found})
    if len(namespaces) > 1:
        raise CommandFailure(f"{asked.described} is in namespaces {', '.join(namespaces)}; choose one with -n", USAGE)

    def order(pod: Pod) -> tuple[bool, bool, int, str]:
        rank = written_number(pod.metadata.annotations, RANK) or 0
        return pod.spec.scheduler_name != scheduler, state_of(pod) != "pending", rank, pod.metadata.name

    return min(found, key=order)


_HINT: Final = "-n names another namespace, -A searches all"


def state_of(pod: Pod) -> str:
    """Return ``finished``, ``bound``, ``deleted``, ``gated`` or ``pending``."""
    if pod.finished:
        return "finished"
    if pod.spec.node_name:
        return "bound"
    if pod.metadata.deletion_timestamp:
        return "deleted"
    return "gated" if pod.spec.scheduling_gates else "pending"


def _is_of(pod: Pod, asked: NamedObject) -> bool:
    return any(name == asked.name and asked.kind in ("", kind) for kind, name in _workloads(pod))


def _workloads(pod: Pod) -> set[tuple[str, str]]:
    """Return kind and name of the workloads that a pod belongs to, as far as the pod itself tells."""
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    found = {(kind, labels[label]) for kind, label in _OWNER_LABELS if labels.get(label)}
    found |= {("gang", annotations.get(GANG_NAME, "")), ("gang", annotations.get(GANG_ID, "").rpartition("/")[2])}
    if pod.spec.scheduling_group:
        found.add(("podgroup", str(pod.spec.scheduling_group.get("podGroupName", ""))))
    controller = pod.metadata.controller
    if controller is not None:
        kind = controller.kind.lower()
        found.add((kind, controller.name))
        template = labels.get(_TEMPLATE_HASH)
        if kind == "replicaset" and template and controller.name.endswith(f"-{template}"):
            found.add(("deployment", controller.name.removesuffix(f"-{template}")))
        if kind == "job" and (made := re.fullmatch(r"(.+)-\d{8,}", controller.name)):
            found.add(("cronjob", made[1]))
    return found
