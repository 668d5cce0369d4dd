"""Resolution of a name on the command line: a pod, or the pods of a workload."""

import re
from dataclasses import dataclass
from typing import Final

from topo_scheduler.api.annotations import GANG_ID, GANG_NAME, RANK, written_number
from topo_scheduler.api.objects import Pod
from topo_scheduler.cli.common import USAGE, CommandFailure
from topo_scheduler.cli.missing_pods import why_no_pods
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import NotFound
from topo_scheduler.kube.connection.resources import PODS
from topo_scheduler.kube.reading.decoding import Codec
from topo_scheduler.kube.reading.listing import TIMEOUT_SECONDS, list_all

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
    """The object that the command line names. ``kind`` is in lower case, empty for any kind with this name.

    ``namespace`` is empty for all namespaces. ``first`` is the word before the slash if it is no type, and so counts as
    a namespace.
    """

    kind: str
    namespace: str
    name: str
    first: str = ""

    @property
    def described(self) -> str:
        """Kind and name, for messages."""
        return f"{self.kind or 'pod'} {self.name}"

    @property
    def where(self) -> str:
        """The namespace, for messages."""
        return f"in namespace {self.namespace}" if self.namespace else "in any namespace"

    @property
    def elsewhere(self) -> str:
        """Where else to search, for messages; empty once all namespaces were searched."""
        return "; -n names another namespace, -A searches all" if self.namespace else ""


def parse_target(target: str, namespace: str) -> NamedObject:
    """Parse ``NAME``, ``TYPE/NAME`` or ``NAMESPACE/NAME``; a word that may be both counts as a type.

    Raises:
        CommandFailure: the target has none of these forms.
    """
    first, slash, name = target.partition("/")
    if not slash:
        return NamedObject("", namespace, target)
    if not first or not name or "/" in name:
        raise CommandFailure(f"{target!r}: write a pod's NAME, or TYPE/NAME as in job/train", USAGE)
    kind = _TYPE_OF.get(first.lower().partition(".")[0])
    return NamedObject(kind, namespace, name) if kind else NamedObject("", first, name, first)


async def find_pod(client: Client, scheduler: str, target: NamedObject) -> Pod:
    """Return the pod of this name; else the first pending pod of the workload of this name, else its first pod.

    Raises:
        CommandFailure: there is none, or there are some in several namespaces.
        KubeError: no answer from the API server.
    """
    if target.namespace and target.kind in ("", "pod"):
        try:
            path = PODS.path(target.namespace, target.name)
        except ValueError as error:
            raise CommandFailure(str(error)) from error
        try:
            return _codec.one(await client.request("GET", path, timeout=TIMEOUT_SECONDS))
        except NotFound as error:
            if target.kind == "pod":
                raise CommandFailure(f"there is no pod {target.name} {target.where}{target.elsewhere}") from error
    pods, _ = await list_all(client, PODS, target.namespace or None)
    candidates = [pod for pod in pods if target.kind in ("", "pod") and pod.metadata.name == target.name]
    candidates = candidates or [pod for pod in pods if _is_of(pod, target)]
    if not candidates:
        nothing_else = "" if target.kind else ", and no pods of a workload of that name"
        missing = (
            f"{target.described} has no pods" if target.kind not in ("", "pod") else f"there is no {target.described}"
        )
        reason = await why_no_pods(client, target.kind or "job", target.namespace, target.name)
        if reason:
            raise CommandFailure(f"{missing} {target.where}: {reason}")
        if target.first:
            types = ", ".join(_TYPES)
            raise CommandFailure(
                f"{missing} {target.where}{nothing_else}: {target.first} is no type of workload ({types})"
            )
        raise CommandFailure(f"{missing} {target.where}{nothing_else}{target.elsewhere}")
    namespaces = sorted({pod.metadata.namespace for pod in candidates})
    if len(namespaces) > 1:
        raise CommandFailure(f"{target.described} is in namespaces {', '.join(namespaces)}; choose one with -n", USAGE)

    def order(pod: Pod) -> tuple[bool, bool, int, str]:
        rank = written_number(pod.metadata.annotations, RANK) or 0
        return pod.spec.scheduler_name != scheduler, state_of(pod) != "pending", rank, pod.metadata.name

    return min(candidates, key=order)


def state_of(pod: Pod) -> str:
    """Return ``finished``, ``bound``, ``deleted``, ``gated`` or ``pending``."""
    if pod.finished:
        return "finished"
    if pod.spec.node_name:
        return "bound"
    if pod.metadata.deletion_timestamp:
        return "deleted"
    return "gated" if pod.spec.scheduling_gates else "pending"


def _is_of(pod: Pod, target: NamedObject) -> bool:
    return any(name == target.name and target.kind in ("", kind) for kind, name in _workloads(pod))


def _workloads(pod: Pod) -> set[tuple[str, str]]:
    """Return kind and name of the workloads of a pod, as far as the pod itself names them."""
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    workloads = {(kind, labels[label]) for kind, label in _OWNER_LABELS if labels.get(label)}
    workloads |= {("gang", annotations.get(GANG_NAME, "")), ("gang", annotations.get(GANG_ID, "").rpartition("/")[2])}
    if pod.spec.scheduling_group:
        workloads.add(("podgroup", str(pod.spec.scheduling_group.get("podGroupName", ""))))
    controller = pod.metadata.controller
    if controller is not None:
        kind = controller.kind.lower()
        workloads.add((kind, controller.name))
        template = labels.get(_TEMPLATE_HASH)
        if kind == "replicaset" and template and controller.name.endswith(f"-{template}"):
            workloads.add(("deployment", controller.name.removesuffix(f"-{template}")))
        if kind == "job" and (cronjob_match := re.fullmatch(r"(.+)-\d{8,}", controller.name)):
            workloads.add(("cronjob", cronjob_match[1]))
    return workloads
