"""All rules by which containers of the daemon drop entries, with the constant of each and the test that holds it."""

import ast
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

import topo_scheduler

PACKAGE: Final = Path(next(iter(topo_scheduler.__path__)))
NOT_OF_THE_DAEMON: Final = ("simulation", "cli")
SMALL: Final = 2
"""What constants are set to, so that a few pods exceed them."""


@dataclass(frozen=True)
class Rule:
    """A container that drops entries beyond a constant.

    ``paths`` are the ends of its paths in the table of caps. With a constant of n it has at most ``times`` · n + 1
    entries. ``test`` is the test that holds it, empty where the fuzz of `test_containers.py` does.
    """

    module: str
    container: str
    constant: str
    """May be several, with spaces between them; the first counts."""
    paths: tuple[str, ...] = ()
    times: int = 1
    test: str = ""
    entries: int = 0
    """The bound of a container without a constant."""

    def imported(self) -> ModuleType:
        return importlib.import_module(f"topo_scheduler.{self.module}")

    @property
    def constants(self) -> list[str]:
        return self.constant.split()

    def bound(self, limit: int) -> int:
        """Return the entries that the container has at most, with this value of its constant."""
        return self.entries or self.times * limit + 1


FED: Final = "scheduling/test_eviction_rules.py::test_a_container_drops_entries_as_keys_come"
BUDGETS: Final = "observability/test_log_budget.py::test_a_bounded_number_of_budgets_is_known"
CLOSE: Final = "scheduling/test_close_claims.py::test_the_fits_of_close_gpus_that_are_kept_are_bounded"
CONFIRMATIONS: Final = "kube/test_containers.py::test_confirmations_of_pods_that_preempt"
COUNTS: Final = "scheduling/test_applied_terms.py::test_counts_of_a_search_are_dropped_beyond_their_memory"
CRASHES: Final = "recovery/test_containers.py::test_pods_that_crash_without_end_are_remembered_up_to_a_cap"
EVENTS: Final = "kube/test_events.py::test_memory_of_what_was_said_is_bounded"
TOKENS: Final = "kube/test_token_review.py::test_made_up_tokens_are_neither_kept_nor_asked_about_without_end"
WARNED: Final = "state/test_tenant_memory.py::test_a_namespace_is_warned_once_until_it_has_half_its_limit_again"
RULES: Final = (
    Rule("scheduling.attempts", "_asked", "MAX_CACHED_DEMANDS", ("engine.attempts._asked",)),
    Rule("scheduling.attempts", "_domains", "MAX_CACHED_DOMAINS", ("engine.attempts._domains",)),
    Rule("scheduling.attempts", "_failures", "MAX_CACHED_DEMANDS", ("engine.attempts._failures",)),
    Rule("scheduling.devices.gpu_sets", "fits", "MAX_FITS", ("gpu_sets.results.fits",)),
    Rule("scheduling.devices.gpu_sets", "topologies", "MAX_TOPOLOGIES", ("gpu_sets.results.topologies",)),
    Rule("scheduling.devices.hardware_table", "_described", "MAX_DESCRIPTIONS", ("hardware._described",)),
    Rule("scheduling.devices.hardware_table", "_published_of", "MAX_DESCRIPTIONS", ("hardware._published_of",)),
    Rule("scheduling.devices.node_devices", "empty", "MAX_KNOWN_FITS", ("around.devices._fits[].empty",), times=3),
    Rule("scheduling.devices.node_devices", "known", "MAX_KNOWN_FITS", ("around.devices._fits[].known",), times=3),
    Rule(
        "scheduling.devices.node_devices", "of_shape", "MAX_KNOWN_FITS", ("around.devices._fits[].of_shape",), times=3
    ),
    Rule("scheduling.devices.node_devices", "_fits", "MAX_CLAIM_SETS MIN_CLAIM_SETS", ("around.devices._fits",)),
    Rule("scheduling.devices.node_devices", "_known", "MAX_NODE_CANDIDATES", ("_known_candidates._known",)),
    Rule("scheduling.devices.node_devices", "_layouts", "MAX_LAYOUTS", ("devices._layouts",)),
    Rule("scheduling.devices.selectors", "_compiled", "MAX_EXPRESSIONS", ("selectors._compiled",)),
    Rule("scheduling.explaining.explainer", "_made", "MAX_CACHED", ("engine.why._made",)),
    Rule("scheduling.intake.rereading", "_shares", "MAX_NAMESPACES", ("_rereading._pace._shares",)),
    Rule("scheduling.placing.context.planning_context", "_rules", "MAX_CACHED_RULES", ("engine.planner._rules",)),
    Rule("scheduling.placing.model.class_views", "_views", "MAX_VIEWS", ("engine.planner.views._views",)),
    Rule("scheduling.placing.small_pods.scores", "_kept", "MAX_CLASSES", ("engine.planner.node_scores._kept",)),
    Rule("scheduling.queueing.failure_cache", "_words", "MAX_TEXTS", ("engine._failure_cache._words",)),
    Rule("scheduling.queueing.fair_queue", "_last_turn", "MIN_KEPT_NAMESPACES", ("_fair_queue._last_turn",)),
    Rule("scheduling.queueing.quotas", "_of", "MAX_NAMESPACES", ("engine.sharing._quotas._of",)),
    Rule("scheduling.queueing.sharing", "_shut", "MAX_NAMESPACES", ("engine.sharing._shut",)),
    Rule("state.devices.slice_reader", "_parts", "MAX_SHARED_PARTS", ("inventory._parts._parts",)),
    Rule("state.ledger.claimed_gpus", "_of_kind", "MAX_SHAPES", ("claimed_gpus._of_kind",), test=FED),
    Rule("state.ledger.claimed_gpus", "_of_shape", "MAX_SHAPES", ("claimed_gpus._of_shape",)),
    Rule("state.nodes.node_table", "_allocatable_rows", "MAX_ALLOCATABLE_ROWS", ("nodes._allocatable_rows",)),
    Rule("state.nodes.resources", "_read", "_MAX_REQUESTS", ("resources._read",)),
    Rule("state.pods.pod_index", "_log", "MAX_LOG_ENTRIES", ("world.pod_index._log",)),
    Rule("state.pods.pod_index", "_repels", "MAX_ANTI_AFFINITY_SETS", ("pod_index._repels", "no_pods._repels")),
    Rule("state.pods.pod_index", "_tallies", "MAX_TALLIES", ("pod_index._tallies", "no_pods._tallies")),
    Rule("state.statistics.run_times", "_of_similar", "MAX_WORKLOADS", ("world.runs._of_similar",)),
    Rule("recording.audit", "_logged_reasons", "MAX_LOGGED_REASONS", test=FED),
    Rule("recording.audit", "_shared", "MAX_SHARED_ORIGINS", test=FED),
    Rule("recording.recorder", "_lineages", "MAX_LINEAGES", test=FED),
    Rule(
        "scheduling.binding.contention",
        "_proven_namespaces",
        "MAX_PROVEN_NAMESPACES",
        ("contention._proven_namespaces",),
        test=FED,
    ),
    Rule("scheduling.binding.contention", "_doubted", "MAX_DOUBTED_NAMESPACES", ("contention._doubted",), test=FED),
    Rule("kube.reading.token_review", "answers", "REMEMBERED_TOKENS", test=TOKENS),
    Rule("kube.writing.events", "_known", "REMEMBERED_MESSAGES", ("events._known",), test=EVENTS),
    Rule("kube.writing.fair_queue", "_heap", "STALE_ENTRIES", test=FED, times=2),
    Rule("observability.log_budget", "_budgets", "MAX_BUDGETS", test=BUDGETS),
    Rule("recovery.core.waiting_lines", "_heap", "SPARE_ENTRIES", test=FED),
    Rule("recovery.detection.pod_failures", "_failures", "MAX_FAILING_PODS", ("pod_failures._failures",), test=CRASHES),
    Rule("recovery.model.migration_context", "asked", "KEPT_HELPERS", test=FED),
    Rule("recovery.model.migration_context", "counted", "MOST_GONE_REPLACEMENTS", test=FED),
    Rule("runtime.owner_confirmation", "_confirmed", "MAX_CACHED_ANSWERS", test=CONFIRMATIONS),
    Rule("scheduling.binding.outcomes", "_lacking_room", "MIN_REMEMBERED_WORKLOADS", test=FED),
    Rule("scheduling.binding.unsettled", "_due", "", test=FED, entries=67),
    Rule("scheduling.binding.volume_binding", "_due", "", test=FED, entries=65),
    Rule("scheduling.devices.hardware_table", "_numbers", "MAX_KINDS_WITHOUT_NODE", test=FED),
    Rule("scheduling.devices.known_choices", "_known", "", test=FED, entries=SMALL),
    Rule("scheduling.devices.node_devices", "close_known", "MAX_KNOWN_FITS", test=CLOSE),
    Rule("scheduling.devices.node_devices", "_pools", "", test=FED, entries=67),
    Rule("scheduling.devices.node_devices", "_variants", "MAX_VARIANTS", ("devices._variants",), test=FED),
    Rule("scheduling.devices.shape_tables", "_approximate", "MAX_SMALL_TABLES", ("tables._approximate",), test=FED),
    Rule("scheduling.intake.leaving", "_unreported", "MIN_UNREPORTED", test=FED, times=2),
    Rule("scheduling.intake.unread", "_due", "", test=FED, entries=67),
    Rule("scheduling.queueing.queue", "_due", "", test=FED, entries=67),
    Rule("scheduling.queueing.fair_queue", "by_share", "", test=FED, entries=69),
    Rule("state.nodes.change_log", "_rows", "", test=FED, entries=2 * SMALL),
    Rule("scheduling.rules.interpod_filters", "remembered", "MIN_COUNTS COUNTS_BYTES", test=COUNTS),
    Rule("state.pods.applied_terms", "_sets", "MAX_CACHED_TERMS", ("_term_sets._sets",), test=FED),
    Rule("state.pods.workloads", "ran", "MAX_LOST_RANKS", test=FED),
    Rule("state.statistics.duration_claims", "_heap", "", test=FED, entries=67),
    Rule("state.storage.storage_capacities", "_of_size", "MAX_SIZES", test=FED),
    Rule("state.tenant_memory", "_warned", "MAX_WARNED_NAMESPACES", ("_memory._warned",), test=WARNED),
    Rule("scheduling.intake.pending", "warned", "MAX_WARNINGS", test=FED),
    Rule("scheduling.preemption.vain_searches", "_searches", "MAX_SEARCHES", test=FED),
    Rule("scheduling.preemption.vain_searches", "_unused", "MAX_UNUSED_SEARCHES", ("_searches._unused",), test=FED),
    Rule("scheduling.queueing.fair_queue", "_levels", "MIN_KEPT_LEVELS", test=FED, times=4),
    Rule("scheduling.queueing.fair_queue", "_tokens", "MIN_KEPT_NAMESPACES", ("_fair_queue._tokens",), test=FED),
    Rule("scheduling.queueing.passed_over", "had_attempt", "MAX_HAD_ATTEMPT", (".had_attempt",), test=FED),
    Rule("state.statistics.duration_claims", "_records", "MAX_NAMESPACES", ("._records",), test=FED),
    Rule("state.statistics.gang_sizes", "_weights", "MAX_SIZES", test=FED),
    Rule("state.statistics.run_times", "_of_namespace", "MAX_WORKLOADS", ("._of_namespace",), test=FED),
    Rule("state.storage.storage_capacities", "_full", "MAX_WARNED_NAMESPACES", ("_kept_capacities._full",), test=FED),
    Rule("state.storage.storage_capacities", "_too_long", "MAX_WARNED_NAMESPACES", ("._too_long",), test=FED),
    Rule("state.topology.rails", "_names", "MAX_UNITS", test=FED),
)
"""A rule without a constant gets its limit from its caller."""
NO_RULES: Final = {
    ("api.printable", "text"): "cuts a text",
    ("kube.reading.slimming", "owner_references"): "cuts a list of an object",
    ("scheduling.explaining.ending_by_trial", "times"): "a variable of a search",
    ("scheduling.devices.shape_tables", "_known"): "drops what no node uses; what limits it is `_has_room`",
    ("scheduling.preemption.clearing", "order"): "a variable of a search",
    ("scheduling.rules.numa", "reasons"): "a variable of a message",
    ("scheduling.rules.remembered", "counted_pods"): "undoes what was counted",
    ("state.nodes.gpu_shares", "free"): "widens an array",
    ("state.statistics.run_times", "images"): "cuts a text",
    ("state.statistics.run_times", "parts"): "parts of a name",
}
"""Conditions of `rules_in_code` that bound no container, with what they do instead."""


def rules_in_code() -> Iterator[tuple[str, str]]:
    """Yield module and container of each condition on the size of a container whose consequence drops entries."""
    for path in sorted(PACKAGE.rglob("*.py")):
        names = path.relative_to(PACKAGE).with_suffix("").parts
        if names[0] in NOT_OF_THE_DAEMON:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.If | ast.While):
                yield from ((".".join(names), name) for name in _dropped_from(node))


def _dropped_from(node: ast.If | ast.While) -> Iterator[str]:
    consequence = "\n".join(map(ast.unparse, node.body))
    for compared in ast.walk(node.test):
        match compared:
            case ast.Compare(left=ast.Call(func=ast.Name(id="len"), args=[sized]), ops=[ast.Gt() | ast.GtE()]):
                text = ast.unparse(sized)
                drops = (f"{text}.clear(", f"{text}.popitem(", f"{text}.pop(", f"del {text}[", f"{text} = ")
                if any(drop in consequence for drop in (*drops, "self._drop_", "._forget_", ".forget_")):
                    yield text.rpartition(".")[2]
