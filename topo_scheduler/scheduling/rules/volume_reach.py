"""On which nodes a volume can be used: its node affinity, as kube-scheduler 1.36 reads it."""

import numpy as np

from topo_scheduler.api.selectors import NodeSelectorTerm
from topo_scheduler.api.storage import PersistentVolume
from topo_scheduler.scheduling.rules.filters import Bool, can_match, fields_well_formed, term_matches
from topo_scheduler.scheduling.rules.neighbours import FilterContext
from topo_scheduler.scheduling.rules.volume_limits import ClaimError
from topo_scheduler.state.migration import MIGRATED, plugin_of, translated_terms
from topo_scheduler.state.nodes import Int64


def reached_rows(around: FilterContext, volume: PersistentVolume) -> Int64 | None:
    """Return the rows that a volume's node affinity allows, ascending (int64); None for all of them."""
    nodes, known = around.nodes, around.reach
    if known.at != nodes.facts_changes.position:
        known.rows.clear()
        known.at = nodes.facts_changes.position
    name = volume.metadata.name
    found = known.rows.get(name)
    if found is None or (found[0] is not volume and found[0].spec.node_affinity != volume.spec.node_affinity):
        found = known.rows[name] = (volume, _reached(around, volume))
    return found[1]


def _reached(around: FilterContext, volume: PersistentVolume) -> Int64 | None:
    affinity = volume.spec.node_affinity
    required = affinity.required if affinity else None
    if required is None:
        return None
    terms = required.node_selector_terms
    if len(terms) == 1 and len(terms[0].match_expressions) == 1 and not terms[0].match_fields:
        # A local volume: one of thousands alike. Where Kubernetes can't parse the value, no node matches it.
        only = terms[0].match_expressions[0]
        if only.operator == "In" and len(only.values) == 1 and can_match(terms[0]):
            return around.nodes.rows_with(only.key, only.values[0])
    everything = np.arange(around.nodes.rows, dtype=np.int64)
    return np.flatnonzero(_any_matches(around, terms, everything)).astype(np.int64)


def reaches(around: FilterContext, volume: PersistentVolume, rows: Int64) -> Bool:
    """Return which rows a volume's node affinity allows."""
    reached = reached_rows(around, volume)
    if reached is None:
        return np.ones(len(rows), np.bool_)
    if not len(reached):
        return np.zeros(len(rows), np.bool_)
    found: Bool = reached[np.minimum(np.searchsorted(reached, rows), len(reached) - 1)] == rows
    return found


def reaches_bound(around: FilterContext, volume: PersistentVolume, rows: Int64, left: Bool) -> Bool:
    """Return the same for a volume in use: as its CSI driver sees it where the node has that."""
    reached = reaches(around, volume, rows)
    plugin = plugin_of(volume)
    if plugin is None:
        return reached
    csi_nodes = (around.storage.csi_nodes.get(around.nodes.names[int(row)]) for row in rows)
    plugins = (node.metadata.annotations.get(MIGRATED, "").split(",") if node else () for node in csi_nodes)
    migrated = np.array([plugin.name in there for there in plugins], np.bool_)
    try:
        translated = _any_matches(around, translated_terms(volume, plugin), rows)
    except ValueError as error:
        if (left & migrated).any():
            raise ClaimError(str(error)) from error
        return reached
    return np.where(migrated, translated, reached)


def _any_matches(around: FilterContext, terms: tuple[NodeSelectorTerm, ...] | None, rows: Int64) -> Bool:
    if terms is None:
        return np.ones(len(rows), np.bool_)
    matched = np.zeros(len(rows), np.bool_)
    for term in terms:
        matched |= _labels_match(around, term, rows)
    return matched


def _labels_match(around: FilterContext, term: NodeSelectorTerm, rows: Int64) -> Bool:
    # The node is looked at without its name here, and then conditions on it hold.
    if not fields_well_formed(term):
        return np.zeros(len(rows), np.bool_)
    if term.match_fields and not term.match_expressions:
        return np.ones(len(rows), np.bool_)
    return term_matches(around.nodes, NodeSelectorTerm(term.match_expressions), rows)
