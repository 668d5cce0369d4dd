"""The nodes that can use a volume: its node affinity, as interpreted by kube-scheduler 1.36."""

import numpy as np

from topo_scheduler.api.selectors import NodeSelectorTerm
from topo_scheduler.api.storage import PersistentVolume
from topo_scheduler.scheduling.rules.filters import Bool, can_match, fields_well_formed, term_matches
from topo_scheduler.scheduling.rules.interpod_filters import FilterContext
from topo_scheduler.scheduling.rules.volume_limits import ClaimError
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.storage.csi_translation import MIGRATED, plugin_of, translated_terms


def reached_rows(context: FilterContext, volume: PersistentVolume) -> Int64 | None:
    """Return the rows that the node affinity of a volume allows, ascending (int64); None for all rows."""
    nodes, cache = context.nodes, context.reach
    if cache.facts_position != nodes.facts_changes.position:
        cache.rows.clear()
        cache.facts_position = nodes.facts_changes.position
    name = volume.metadata.name
    cached = cache.rows.get(name)
    if cached is None or (cached[0] is not volume and cached[0].spec.node_affinity != volume.spec.node_affinity):
        cached = cache.rows[name] = (volume, _reached(context, volume))
    return cached[1]


def _reached(context: FilterContext, volume: PersistentVolume) -> Int64 | None:
    affinity = volume.spec.node_affinity
    required = affinity.required if affinity else None
    if required is None:
        return None
    terms = required.node_selector_terms
    if len(terms) == 1 and len(terms[0].match_expressions) == 1 and not terms[0].match_fields:
        # A local volume, of which there may be thousands. If Kubernetes can't parse the value, no node matches.
        requirement = terms[0].match_expressions[0]
        if requirement.operator == "In" and len(requirement.values) == 1 and can_match(terms[0]):
            return context.nodes.rows_with(requirement.key, requirement.values[0])
    all_rows = np.arange(context.nodes.rows, dtype=np.int64)
    return np.flatnonzero(_any_matches(context, terms, all_rows)).astype(np.int64)


def reaches(context: FilterContext, volume: PersistentVolume, rows: Int64) -> Bool:
    """Return which of the rows the node affinity of a volume allows."""
    reached = reached_rows(context, volume)
    if reached is None:
        return np.ones(len(rows), np.bool_)
    if not len(reached):
        return np.zeros(len(rows), np.bool_)
    allowed: Bool = reached[np.minimum(np.searchsorted(reached, rows), len(reached) - 1)] == rows
    return allowed


def reaches_bound(context: FilterContext, volume: PersistentVolume, rows: Int64, remaining: Bool) -> Bool:
    """Do the same for a bound volume, with its translation to CSI on nodes where its plugin is migrated."""
    reached = reaches(context, volume, rows)
    plugin = plugin_of(volume)
    if plugin is None:
        return reached
    csi_nodes = (context.storage.csi_nodes.get(context.nodes.names[int(row)]) for row in rows)
    plugins = (node.metadata.annotations.get(MIGRATED, "").split(",") if node else () for node in csi_nodes)
    migrated = np.array([plugin.name in migrated_plugins for migrated_plugins in plugins], np.bool_)
    try:
        translated = _any_matches(context, translated_terms(volume, plugin), rows)
    except ValueError as error:
        if (remaining & migrated).any():
            raise ClaimError(str(error)) from error
        return reached
    return np.where(migrated, translated, reached)


def _any_matches(context: FilterContext, terms: tuple[NodeSelectorTerm, ...] | None, rows: Int64) -> Bool:
    if terms is None:
        return np.ones(len(rows), np.bool_)
    matched = np.zeros(len(rows), np.bool_)
    for term in terms:
        matched |= _labels_match(context, term, rows)
    return matched


def _labels_match(context: FilterContext, term: NodeSelectorTerm, rows: Int64) -> Bool:
    # kube-scheduler evaluates the node without its name here, so conditions on the name hold.
    if not fields_well_formed(term):
        return np.zeros(len(rows), np.bool_)
    if term.match_fields and not term.match_expressions:
        return np.ones(len(rows), np.bool_)
    return term_matches(context.nodes, NodeSelectorTerm(term.match_expressions), rows)
