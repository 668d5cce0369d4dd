"""What the controller of a pod shows: whether the pod belongs to its node, and whether its kind makes new pods.

Pods of DaemonSets and mirrors of static pods belong to their node. Evicting them frees no room.

Tenants may write any owner and any annotation, so a pod counts only if the cluster deletes it where these are wrong:

- The garbage collector deletes a pod whose DaemonSet does not exist in its namespace. The DaemonSet controller
  releases pods that its DaemonSet does not select, and deletes those beyond one for each of its nodes. Both know
  owners by API group and kind. A kind of the same name in another group may have no controller. The garbage collector
  can't tell whether an owner of a version exists that is not served.
- A kubelet does not run mirror pods, and deletes those without a static pod on its node. A Node as owner shows nothing:
  any pod may name its node.
"""

from typing import Final

from topo_scheduler.api.objects import ObjectMeta

MIRROR: Final = "kubernetes.io/config.mirror"
_POD_MAKERS: Final = frozenset(
    ("DaemonSet", "Job", "ReplicaSet", "ReplicationController", "SparkApplication", "StatefulSet")
)
"""Kinds that make pods, in the groups of Kubernetes; SparkApplication has such a group although others define it."""
_POD_GROUP: Final = "PodGroup"
"""Kind that several groups define, and that makes no pods in any."""
_OWN_GROUP: Final = "topology.scheduler"
"""Group of Migrations, which make no pods. Tenants cause the scheduler to create them."""


def is_daemon_pod(pod: ObjectMeta) -> bool:
    """Return whether the controller of a pod is a DaemonSet of ``apps/v1``."""
    controller = pod.controller
    return controller is not None and controller.kind == "DaemonSet" and controller.api_version == "apps/v1"


def belongs_to_node(pod: ObjectMeta) -> bool:
    """Return whether a pod is of a DaemonSet, or the mirror of a static pod."""
    return MIRROR in pod.annotations or is_daemon_pod(pod)


def has_pod_maker(pod: ObjectMeta) -> bool:
    """Return whether the controller of a pod is of a kind that makes pods, by the reference alone.

    In the groups of Kubernetes only a few kinds do: a pod's user may name its own Pod, its ServiceAccount or a
    ConfigMap as the controller. Of other groups any kind may make pods. Whether the controller exists is another
    question.
    """
    controller = pod.controller
    if controller is None:
        return False
    group = controller.api_version.rpartition("/")[0]
    if "." not in group or group.endswith(".k8s.io"):
        return controller.kind in _POD_MAKERS
    return controller.kind != _POD_GROUP and group != _OWN_GROUP
