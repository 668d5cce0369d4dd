"""Where the NVLink domain of a ComputeDomain's pods is decided already, as a sentence for those that are pending."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from topo_scheduler.api.text import counted
from topo_scheduler.scheduling.rules.interpod_filters import FilterContext
from topo_scheduler.state.nodes.node_table import UNKNOWN
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.compute_domains import CLIQUE_LABEL, template_of

MAX_NAMED_DOMAINS: Final = 2


def compute_domain_sentence(context: FilterContext, classes: Sequence[PodClass]) -> str:
    """Return what ties pending pods to an NVLink domain; empty if no ComputeDomain does."""
    constraints = next((cls.constraints for cls in classes if template_of(cls.constraints)), None)
    if constraints is None:
        return ""
    (term,) = constraints.affinity
    nodes = context.nodes
    column = nodes.label_column(CLIQUE_LABEL)
    tally = context.pod_index.tally(((term.selector, term.namespaces),)).counts(nodes.rows)
    values = column[np.flatnonzero((tally > 0) & (column != UNKNOWN))]
    domains = sorted({nodes.values[value] for value in np.unique(values).tolist()})
    named = ", ".join(domains[:MAX_NAMED_DOMAINS])
    more = f" and {len(domains) - MAX_NAMED_DOMAINS} more" if len(domains) > MAX_NAMED_DOMAINS else ""
    owner = f"The ComputeDomain of claim template {constraints.namespace}/{template_of(constraints)}"
    if domains:
        return f"{owner} has pods in NVLink domain {named}{more}, so its other pods have to go there too."
    labelled = len(np.unique(column[(column != UNKNOWN) & nodes.exists]))
    if not labelled:
        return (
            f"{owner} needs nodes with the label {CLIQUE_LABEL}, and no node has it; check that the driver of"
            " ComputeDomains or GPU feature discovery runs, which set it."
        )
    there_are = counted(labelled, "value")
    return f"{owner} needs all of its pods on nodes with one value of the label {CLIQUE_LABEL}; nodes have {there_are}."
