"""Messages about scores that the configuration names but no plugin provides."""

from typing import TYPE_CHECKING

from topo_scheduler.api.config import Configuration
from topo_scheduler.api.small_pods import OFF, SmallPods

if TYPE_CHECKING:
    from topo_scheduler.scheduling.extensions.registry import Extensions


def unknown_scores(config: Configuration, extensions: "Extensions") -> list[str]:
    """Return messages about configured scores that no loaded plugin provides."""
    known = {score.name for score in extensions.added_scores}
    listed = ", ".join(sorted(known)) or "none"
    return [
        f"TopologySchedulerConfig: spec.scoringWeights.plugins.{name}: no plugin that is loaded has a score of this"
        f" name; there are {listed}. It is ignored"
        for name in config.topology.spec.scoring_weights.plugins
        if name not in known
    ] + _unknown_scoring(config.topology.spec.small_pods, extensions)


def _unknown_scoring(config: SmallPods, extensions: "Extensions") -> list[str]:
    """Return a message if no plugin provides the configured score for pods placed alone; otherwise an empty list."""
    if config.scoring in (None, OFF, *extensions.alone):
        return []
    known = ", ".join((OFF, *sorted(extensions.alone)))
    return [
        "TopologySchedulerConfig: spec.smallPods.scoring: no plugin that is loaded has a score called"
        f" {config.scoring}; there are {known}. Pods placed alone are scored as gangs"
    ]


def names_scores(config: Configuration) -> bool:
    """Return whether the configuration names a score. Only the loaded plugins show whether such a score exists."""
    spec = config.topology.spec
    return bool(spec.scoring_weights.plugins) or spec.small_pods.scoring not in (None, OFF)
