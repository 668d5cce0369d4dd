"""Pods that belong to their node: those of DaemonSets, and the mirrors of static pods. Evicting them frees no room.

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


def is_daemon_pod(pod: ObjectMeta) -> bool:
    """Return whether the controller of a pod is a DaemonSet of ``apps/v1``."""
    controller = pod.controller
    return controller is not None and controller.kind == "DaemonSet" and controller.api_version == "apps/v1"


def belongs_to_node(pod: ObjectMeta) -> bool:
    """Return whether a pod is of a DaemonSet, or the mirror of a static pod."""
    return MIRROR in pod.annotations or is_daemon_pod(pod)
