"""Policies by their names on the command line, and the engine of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from topo_scheduler.api.annotations import (
    EXPECTED_DURATION,
    GANG,
    GANG_NAME,
    GANG_SIZE,
    GPU_COUNT,
    GPU_FRACTION,
    GPU_MODEL,
    GPU_MODEL_MIXED,
)
from topo_scheduler.api.config import (
    ConfigError,
    Configuration,
    PreemptionSpec,
    TopologySchedulerConfig,
    TopologySpec,
    load_configuration,
)
from topo_scheduler.api.contention import Contention
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.process import FabricSettings, Level, PendingPodsSettings
from topo_scheduler.api.sharing import GpusByAnnotation
from topo_scheduler.api.waiting import ReservationSpec
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.intake.arrivals import Resolve
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.simulation.cases.model import CaseError
from topo_scheduler.simulation.policies.placing import RULES, BaselinePlanner, BaselineRule
from topo_scheduler.state.pods.pod_groups import PodGroup
from topo_scheduler.state.statistics.typical_pods import Popular
from topo_scheduler.state.topology.fabric import Fabric

TOPO: Final = "topo"
BLIND_GANG: Final = "blind-gang"
MAX_SEEDS: Final = 10_000
_RULES: Final[Mapping[str, BaselineRule]] = {rule.name: rule for rule in RULES}
NAMES: Final[Sequence[str]] = (TOPO, BLIND_GANG, *_RULES)
VISIBLE_ANNOTATIONS: Final = frozenset(
    (GANG, GANG_NAME, GANG_SIZE, GPU_COUNT, GPU_FRACTION, GPU_MODEL, GPU_MODEL_MIXED, EXPECTED_DURATION)
)
"""Annotations that policies without topology understand; they ignore the other annotations of this project."""
_NO_LEVELS: Final = FabricSettings(levels=(Level.model_construct(name="cluster", labels=()),))
"""A level that no node is in. No file can configure one without labels."""


@dataclass(frozen=True, slots=True)
class SimulatedPolicy:
    """A policy. ``name`` is as given by the user; ``source`` is its configuration file, ``config`` the text of it."""

    name: str
    kind: str
    source: str = ""
    config: str = ""

    @property
    def knows_topology(self) -> bool:
        """Whether it is this scheduler with topology."""
        return self.kind == TOPO


def read_policies(names: str) -> list[SimulatedPolicy]:
    """Return the policies of a comma-separated list.

    Raises:
        CaseError: a name is unknown or occurs twice, or a file can't be used.
    """
    policies = [_read(name.strip()) for name in names.split(",") if name.strip()]
    if not policies:
        raise CaseError(f"--policy: none is named; write one or more of {', '.join(NAMES)}, with commas between them")
    given_names = [policy.name for policy in policies]
    if duplicate := next((name for name in given_names if given_names.count(name) > 1), None):
        raise CaseError(f"--policy: {duplicate} is named twice; keep one")
    return policies


def _read(name: str) -> SimulatedPolicy:
    kind, _, file = name.partition(":")
    if kind not in NAMES:
        from topo_scheduler.simulation.devices.mig_replay import MIG_POLICIES
        from topo_scheduler.simulation.devices.replay import POLICIES

        chooser = name in POLICIES or name in MIG_POLICIES
        elsewhere = ". Choosers of devices are named by --device-policy and --mig-policy" if chooser else ""
        raise CaseError(f"--policy: {name!r} is unknown; the policies are {', '.join(NAMES)}, and topo:FILE{elsewhere}")
    if not file:
        if name != kind:
            raise CaseError(f"--policy: {name!r} names no file; write topo:FILE, or topo for the default configuration")
        return SimulatedPolicy(name, kind)
    if kind != TOPO:
        raise CaseError(f"--policy: {kind} has no configuration; only topo:FILE has one")
    try:
        text = Path(file).read_text(encoding="utf-8")
        load_configuration({file: text})
    except (OSError, UnicodeDecodeError) as error:
        raise CaseError(f"--policy: {name}: can't read {file}: {error}") from error
    except ConfigError as error:
        raise CaseError(f"--policy: {name}: {error}") from error
    return SimulatedPolicy(name, kind, file, text)


_EVERY_NAMESPACE: Final = GpusByAnnotation(namespaces=("*",))
_EVERY_POD: Final = PendingPodsSettings(max_per_namespace=1_000_000, memory=1 << 50)


def configuration_of(policy: SimulatedPolicy, topology: TopologySpec | None, base: Configuration) -> Configuration:
    """Return the configuration for the engine of a policy.

    Args:
        policy: the policy.
        topology: topology configuration from the source of the cluster; supplies links.
        base: the common configuration. ``topo`` without a file uses all of it, the others only its topology levels.
    """
    if policy.source:  # not `config`: an empty text means all defaults
        config = load_configuration({policy.source: policy.config})
        scheduler = config.scheduler if config.scheduler.model_fields_set else base.scheduler
        config = Configuration(scheduler, config.topology)
    else:
        config = base
    # The simulation has no memory limit for pending pods, so none is left outside the queue.
    config = Configuration(config.scheduler.model_copy(update={"pending_pods": _EVERY_POD}), config.topology)
    if policy.kind == TOPO:
        spec = config.topology.spec
        links_update = {"links": topology.links} if topology is not None and not spec.links else {}
        # A simulation has no other schedulers, and allows GPUs by annotation in all namespaces.
        update = {
            **links_update,
            "other_schedulers": Contention(reserved_pods_per_node=0),
            "gpus_by_annotation": _EVERY_NAMESPACE,
        }
        spec = spec.model_copy(update=update)
        return Configuration(config.scheduler, config.topology.model_copy(update={"spec": spec}))
    scheduler = config.scheduler
    if policy.kind == BLIND_GANG:
        scheduler = scheduler.model_copy(update={"topology": _NO_LEVELS})
    greedy = TopologySpec(
        other_schedulers=Contention(reserved_pods_per_node=0),
        gpus_by_annotation=_EVERY_NAMESPACE,
        reservation=ReservationSpec(enabled=False),
        preemption=PreemptionSpec(enabled=False),
    )
    return Configuration(scheduler, TopologySchedulerConfig(spec=greedy))


def engine_of(
    policy: SimulatedPolicy,
    config: Configuration,
    resolve: Resolve,
    epoch: float,
    seed: int,
    base: Configuration,
    *,
    explains: bool = False,
) -> Engine:
    """Return a new engine for a policy. ``explains``: whether it explains failures in text.

    ``base`` is the common configuration. The engine does not warn about node labels that only ``base`` reads.
    """
    rule = _RULES.get(policy.kind)
    make_planner = Planner if rule is None else partial(BaselinePlanner, baseline=rule, seed=seed)
    engine = Engine(config, resolve, epoch=epoch, make_planner=make_planner, explains=explains)
    if not policy.knows_topology:
        keys = Fabric(base.scheduler.topology).label_keys()
        engine.world.unread_labels.configure((*keys, *base.topology.spec.recovery.link_label_keys))
    return engine


def set_typical_pods(engine: Engine, typical: Popular) -> None:
    """Set the typical pods of the whole workload for a baseline, as its authors do; ``topo`` counts pods itself."""
    if isinstance(engine.planner, BaselinePlanner):
        engine.planner.set_typical(typical)


def annotations_without_topology(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations that a policy without topology sees."""
    return {
        name: value for name, value in annotations.items() if name in VISIBLE_ANNOTATIONS or not name.startswith(PREFIX)
    }


def group_without_topology(group: PodGroup) -> PodGroup:
    """Return a PodGroup as a policy without topology sees it: with size and priority, without requested levels."""
    return replace(group, level_key="", tiers=0, subgroups=None)


def seeds_of(text: str) -> list[int]:
    """Return the seeds of ``42``, ``42..51`` or ``42,50..51``.

    Raises:
        CaseError: the text has another form.
    """
    seeds: list[int] = []
    for entry in text.split(","):
        low, dots, high = entry.strip().partition("..")
        try:
            first, last = int(low), int(high if dots else low)
        except ValueError:
            remedy = "is neither a number nor a range; write 42, 42..51 or 1,5,42..51"
            raise CaseError(f"--seeds: {text!r} {remedy}") from None
        if last < first:
            raise CaseError(f"--seeds: {entry.strip()!r} goes backwards; write {last}..{first}")
        if first < 0:
            raise CaseError(f"--seeds: {entry.strip()!r} is below 0; write numbers from 0 up")
        if len(seeds) + last - first >= MAX_SEEDS:  # checked before a huge range is expanded
            raise CaseError(f"--seeds: {text!r} is more than {MAX_SEEDS:,} seeds; write fewer")
        seeds += range(first, last + 1)
    if len(set(seeds)) < len(seeds):
        raise CaseError(f"--seeds: {text!r} names a seed twice")
    return seeds
