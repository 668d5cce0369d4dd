"""Labels of pods, and labels that the scheduler adds to them for rules of its own."""

from typing import Final

from topo_scheduler.api.objects import Pod
from topo_scheduler.state.pods.caps import MAX_RESOURCE_CLAIMS, readable_labels

TEMPLATE_LABEL: Final = "claim template "
"""Prefix of a label for each ResourceClaimTemplate of a pod; Kubernetes allows no such key, so no selector of a pod
can name it."""


def profile_labels(pod: Pod) -> dict[str, str]:
    """Return the labels by which rules match a pod."""
    labels = readable_labels(pod.metadata.labels)
    if not pod.spec.resource_claims:
        return labels
    templates = (entry.resource_claim_template_name for entry in pod.spec.resource_claims[:MAX_RESOURCE_CLAIMS])
    return labels | {f"{TEMPLATE_LABEL}{name}": "" for name in templates if name}
