"""Pods of one ComputeDomain of NVIDIA's DRA driver, which have to share an NVLink domain.

The driver makes one ResourceClaimTemplate for each ComputeDomain. So pods of a namespace with claims of that template
belong together, pending or bound. The claims say that they are channels of a ComputeDomain. Their pods get required
affinity for each other over the node label with the NVLink domain.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from topo_scheduler.api.devices import ResourceClaimSpec
from topo_scheduler.api.objects import Pod
from topo_scheduler.state.pods.constraints import Constraints
from topo_scheduler.state.pods.profile_labels import TEMPLATE_LABEL
from topo_scheduler.state.pods.profiles import CountedTerm
from topo_scheduler.state.pods.selectors import Clause, Selector

CLIQUE_LABEL: Final = "nvidia.com/gpu.clique"
"""Node label with the NVLink domain: cluster UUID and clique ID."""
DRIVER: Final = "compute-domain.nvidia.com"
_API_GROUP: Final = "resource.nvidia.com/"
_CHANNEL: Final = "ComputeDomainChannelConfig"
MAX_DOMAIN_ID_CHARACTERS: Final = 64
"""Characters of a ComputeDomain's uid that messages show."""


def compute_domain_of(spec: ResourceClaimSpec) -> str:
    """Return the uid of the ComputeDomain of which a claim asks for a channel; empty for other claims."""
    for config in spec.devices.config:
        if config.opaque is None or config.opaque.driver != DRIVER:
            continue
        parameters = config.opaque.parameters
        if (
            isinstance(parameters, Mapping)
            and parameters.get("kind") == _CHANNEL
            and str(parameters.get("apiVersion", "")).startswith(_API_GROUP)
        ):
            return str(parameters.get("domainID", ""))[:MAX_DOMAIN_ID_CHARACTERS]
    return ""


def in_one_domain(constraints: Constraints | None, pod: Pod, template: str) -> tuple[Constraints | None, str]:
    """Add to the constraints of a pod that it shares an NVLink domain with all pods of a template.

    Returns:
        The constraints, and why they can't be joined with other affinity of the pod; empty if they can.
    """
    namespace = pod.metadata.namespace
    constraints = constraints or Constraints(namespace)
    if any(term.topology_key != CLIQUE_LABEL for term in constraints.affinity) or (
        constraints.affinity and not constraints.self_affine
    ):
        return constraints, (
            f"it belongs to a ComputeDomain (claim template {template}) and requires other pod affinity than to its own"
            f" workload over {CLIQUE_LABEL}; this scheduler does not support both together, so remove that affinity"
        )
    selector = Selector((Clause(f"{TEMPLATE_LABEL}{template}", "Exists"),))
    term = CountedTerm(selector, frozenset((namespace,)), CLIQUE_LABEL)
    # Affinity of the workload to itself over the same label is part of that.
    return replace(constraints, affinity=(term,), self_affine=True, affine_by_namespace=frozenset()), ""


def template_of(constraints: Constraints | None) -> str:
    """Return the claim template of the ComputeDomain to which `in_one_domain` tied a pod; empty for none."""
    for term in constraints.affinity if constraints is not None else ():
        for clause in term.selector.clauses:
            if clause.key.startswith(TEMPLATE_LABEL):
                return clause.key.removeprefix(TEMPLATE_LABEL)
    return ""
