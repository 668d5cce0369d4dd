"""Names for pod groups that users and controllers write: APIs with a kind PodGroup, and keys on pods.

All names are those of the projects that define them.
"""

from enum import StrEnum
from typing import Any, Final

from topo_scheduler.api.objects import ApiObject


class GroupApi(StrEnum):
    """API groups with a kind PodGroup, in order of precedence; the value is the name of the API group."""

    NATIVE = "scheduling.k8s.io"
    PLUGINS = "scheduling.x-k8s.io"
    SIGS = "scheduling.sigs.k8s.io"
    VOLCANO = "scheduling.volcano.sh"


VERSIONS: Final[dict[GroupApi, tuple[str, ...]]] = {
    GroupApi.NATIVE: ("v1", "v1beta1", "v1alpha3", "v1alpha2"),
    GroupApi.PLUGINS: ("v1alpha1",),
    GroupApi.SIGS: ("v1alpha1",),
    GroupApi.VOLCANO: ("v1beta1",),
}
"""Supported versions, the newest first; of the served ones the first is read."""

PLURAL: Final = "podgroups"

PLUGINS_LABEL: Final = "scheduling.x-k8s.io/pod-group"
SIGS_LABEL: Final = "pod-group.scheduling.sigs.k8s.io"
VOLCANO_ANNOTATIONS: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
VOLCANO_MIN_MEMBER: Final = "scheduling.volcano.sh/group-min-member"

SIZED_ON_PODS: Final = (
    ("kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"),
    ("gang.scheduling.koordinator.sh/name", "gang.scheduling.koordinator.sh/min-available"),
    ("pod-group.scheduling.sigs.k8s.io/name", "pod-group.scheduling.sigs.k8s.io/min-available"),
)
"""Keys of labels or annotations on a pod with the name of its group and the group's number of pods."""

JOB_INDEX: Final = "batch.kubernetes.io/job-completion-index"
POD_INDEX: Final = "apps.kubernetes.io/pod-index"

JOBSET_NAME: Final = "jobset.sigs.k8s.io/jobset-name"
JOBSET_JOB_INDEX: Final = "jobset.sigs.k8s.io/job-global-index"

LWS_NAME: Final = "leaderworkerset.sigs.k8s.io/name"
LWS_GROUP: Final = "leaderworkerset.sigs.k8s.io/group-index"
LWS_WORKER: Final = "leaderworkerset.sigs.k8s.io/worker-index"
LWS_SIZE: Final = "leaderworkerset.sigs.k8s.io/size"
LWS_SUBGROUP_SIZE: Final = "leaderworkerset.sigs.k8s.io/subgroup-size"
LWS_SUBGROUP_POLICY: Final = "leaderworkerset.sigs.k8s.io/subgroup-policy-type"
LEADER_EXCLUDED: Final = "LeaderExcluded"
"""Policy with which the leader of a LeaderWorkerSet is in none of its subgroups; otherwise it is in the first."""

KUBEFLOW_TYPE: Final = "training.kubeflow.org/replica-type"
KUBEFLOW_INDEX: Final = "training.kubeflow.org/replica-index"
KUBEFLOW_ROLE: Final = "training.kubeflow.org/job-role"
LEADERS: Final = ("master", "launcher", "chief", "scheduler")
"""Replica types that come before all others; `SERVERS` come next."""
SERVERS: Final = ("ps", "server")
"""Replica types of parameter servers."""

VOLCANO_TASK: Final = "volcano.sh/task-spec"
VOLCANO_INDEX: Final = "volcano.sh/task-index"

GROVE_CLIQUE: Final = "grove.io/podclique"
GROVE_INDEX: Final = "grove.io/podclique-pod-index"

READ_OF_PODS: Final = frozenset(
    (
        *(PLUGINS_LABEL, SIGS_LABEL, *VOLCANO_ANNOTATIONS, VOLCANO_MIN_MEMBER),
        *(key for keys in SIZED_ON_PODS for key in keys),
        *(JOB_INDEX, POD_INDEX, JOBSET_NAME, JOBSET_JOB_INDEX),
        *(LWS_NAME, LWS_GROUP, LWS_WORKER, LWS_SIZE, LWS_SUBGROUP_SIZE, LWS_SUBGROUP_POLICY),
        *(KUBEFLOW_TYPE, KUBEFLOW_INDEX, KUBEFLOW_ROLE, VOLCANO_TASK, VOLCANO_INDEX, GROVE_CLIQUE, GROVE_INDEX),
    )
)
"""Keys of labels and annotations of controllers and other schedulers that this scheduler reads on pods."""


TOO_LONG: Final = "tooLong"
"""The only field of a PodGroup's ``spec`` that was too long to keep: its size in bytes as JSON."""
TOO_DEEP: Final = "tooDeep"
"""The only field of a PodGroup's ``spec`` that was nested too deeply to keep: the levels that are kept."""
MAX_SPEC_BYTES: Final = 32_768
"""Maximum bytes of the ``spec`` of a PodGroup, a PodDisruptionBudget or a claim, as JSON."""


class PodGroupObject(ApiObject):
    """A PodGroup of any API, undecoded: the meaning of its fields differs by API, see ``state.pods.pod_groups``."""

    spec: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies defaults
    status: dict[str, Any] = {}  # noqa: RUF012
