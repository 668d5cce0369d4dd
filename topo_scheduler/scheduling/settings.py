"""Derives the settings of the engine's components from the configuration."""

import numpy as np

from topo_scheduler.api.config import Configuration
from topo_scheduler.api.waiting import RepairSpec
from topo_scheduler.scheduling.extensions.registry import Extensions
from topo_scheduler.scheduling.placing.model.placement_query import SizeRuleLimits
from topo_scheduler.scheduling.placing.model.policy import Policy, configured_rules
from topo_scheduler.scheduling.placing.small_pods.scores import configured_kinds, scoring_of
from topo_scheduler.scheduling.queueing.fair_queue import FairnessLimits


def policy_of(config: Configuration, extensions: Extensions) -> Policy:
    """Return the planner's policy from the configuration."""
    spec = config.topology.spec
    constraints = spec.topology_constraints
    return Policy(
        np.array(spec.scoring_weights.milli(), np.int64),
        SizeRuleLimits(
            constraints.enforcement, constraints.max_nodes_per_leaf or 0, constraints.max_gpus_per_leaf or 0
        ),
        np.array(spec.scoring_weights.added_milli({s.name: s.weight for s in extensions.added_scores}), np.int64),
        configured_rules(spec.placement_rules),
        spec.max_nodes_to_score or 0,
        scoring_of(spec, extensions),
        configured_kinds(spec.small_pods),
    )


def fairness_of(config: Configuration) -> FairnessLimits:
    """Return the fairness limits of the queue from the configuration."""
    fairness = config.topology.spec.fairness
    return FairnessLimits(fairness.overdue_after, fairness.decisions_per_second, fairness.decision_burst)


def repair_of(config: Configuration) -> RepairSpec:
    """Return the settings of the search for moves from the configuration.

    The search is enabled if the scheduler reports moves, and also if recovery carries them out.
    """
    spec = config.topology.spec
    makes = spec.recovery.enabled and spec.recovery.defragmentation.enabled
    return spec.repair.model_copy(update={"enabled": spec.repair.enabled or makes})


def moves_slots(config: Configuration) -> bool:
    """Return whether recovery moves pods for pending pods that ask for MIG slots."""
    spec = config.topology.spec.recovery
    return spec.enabled and spec.defragmentation.mig_slots
