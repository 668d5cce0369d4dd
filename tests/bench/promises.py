"""Every figure that the project promises of its speed, shown beside what was measured, kept or not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .objects import Json
from .ratios import figure

EVENTS_SECONDS: Final = 30.0
"""From the last bind until every pod has its event, as promised; a race does not wait for longer."""


@dataclass(frozen=True, slots=True)
class Promise:
    """A figure by its path (see `ratios`), divided by another where ``by`` names one, and its bound.

    ``at_least``: it must reach the bound; otherwise it must stay below. ``factor`` from its unit to ``unit``. ``needs``
    figures of the run and the least that each must be: otherwise this one was measured under other conditions.
    ``healed`` the path of what was healed: gangs that got no room there are printed with the figure, as they have none.
    ``checked``: ``bench-check --from`` fails where a run misses it, as it does for each promise ``at_least``.
    """

    tells: str
    path: str
    bound: float
    unit: str
    factor: float = 1.0
    by: str = ""
    at_least: bool = False
    needs: tuple[tuple[str, float], ...] = ()
    healed: str = ""
    checked: bool = False

    @property
    def promised(self) -> str:
        """The bound in words."""
        return f"{'at least' if self.at_least else 'under'} {self.bound:g} {self.unit}"

    def measured(self, parts: Mapping[str, Json]) -> float | None:
        """Return what was measured in the unit, None where it was not."""
        if any((figure(parts, path) or 0.0) < least for path, least in self.needs):
            return None
        measured = figure(parts, self.path)
        base = figure(parts, self.by) if self.by else 1.0
        return None if measured is None or not base else measured * self.factor / base

    def kept(self, measured: float) -> bool:
        """Whether a figure in the unit keeps it."""
        return measured >= self.bound if self.at_least else measured < self.bound

    def told(self, measured: float) -> str:
        """Return a figure with its unit, in three digits, or as many as show on which side of the bound it is."""
        digits = max(3, len(f"{abs(measured):.0f}"))
        while digits < 17 and self.kept(float(f"{measured:.{digits}g}")) != self.kept(measured):
            digits += 1
        return f"{measured:.{digits}g} {self.unit}"

    def remark(self, parts: Mapping[str, Json]) -> str:
        """Return what the figure leaves out in a run: gangs that stayed without room; empty where there are none."""
        names = ("gangs_that_wait_for_room", "gangs_hit", "their_pods_on_dead_nodes")
        waits, hit, pods = (int(figure(parts, f"{self.healed}.{name}") or 0) for name in names)
        return f"{waits} of {hit} gangs ({pods} pods) stayed without room" if self.healed and waits else ""


@dataclass(frozen=True, slots=True)
class SettledElsewhere:
    """A promise whose verdict no part of the bench measures: what another page of docs/reference says of it."""

    tells: str
    promised: str
    measured: str
    kept: bool
    page: str


_US: Final = 1e-3
_AT_WORK: Final = (("load.statuses_of_pods_written", 1), ("load.at_work.decisions_per_s", 90))
"""Kubelets report, and the machine keeps up with what is asked of it."""
_MB_OF_MIB: Final = 2**20 / 1e6
_MIG_DEVICES: Final = (("slices.nodes", 5000), ("slices.devices", 5000 * 208))
_MIG_NODES: Final = "5,000 nodes with 8 H100s, whole or as 200 MIG places"
PROMISES: Final = (
    Promise(
        "gang of 4 on 5,000 nodes in 50 leaves, 99th percentile", "decisions.targets.gang_of_4.p99_us", 1, "ms", _US
    ),
    Promise(
        "gang of 64 on 100,000 nodes with 800,000 GPUs, 99th percentile",
        "decisions.targets.gang_of_64.p99_us",
        10,
        "ms",
        _US,
    ),
    Promise(
        "gang of 1,000 pods in 100 segments on 1,000 nodes in 100 leaves, the longest",
        "decisions.targets.gang_in_segments.max_us",
        50,
        "ms",
        _US,
    ),
    Promise(
        "gang of 64 without room, looked at again where nothing helps it, 99th percentile",
        "decisions.targets.recheck.p99_us",
        20,
        "µs",
    ),
    Promise(
        "why a gang of 64 waits and what would help, 1,000 nodes, the longest",
        "roomless.explanations.1000_nodes_8_each_gang_of_64.max_ms",
        1,
        "s",
        _US,
    ),
    *(
        Promise(
            f"choice of victims for {what}, 2,000 nodes and 700 candidates, the longest",
            f"roomless.preemption.{place}.max_ms",
            1,
            "s",
            _US,
            needs=((f"roomless.preemption.{place}.candidates", 700), (f"roomless.preemption.{place}.nodes", 2000)),
        )
        for place, what in ((0, "a pod of 8 GPUs"), (1, "a gang of 4 pods of 8 GPUs"))
    ),
    Promise(
        "8 of 992 nodes fail: CPU until the seat of every lost pod is held",
        "recovery.healing.8.cpu_s_until_all_seats_are_held",
        1,
        "s",
    ),
    *(
        Promise(
            f"{what} of 1,000 nodes: from not ready to the last replacement bound, without the Job controller",
            f"heal.{name}.s_from_not_ready.last_bound_less_the_job_controller",
            30,
            "s",
            healed=f"heal.{name}",
        )
        for what, name in (("eight nodes", "eight_nodes"), ("a leaf", "leaf"), ("a spine", "spine"))
    ),
    Promise(
        "eight nodes of 1,000, no GPU free, spares lent: the same",
        "heal_full.eight_nodes.s_from_not_ready.last_bound_less_the_job_controller",
        30,
        "s",
        healed="heal_full.eight_nodes",
    ),
    *(
        Promise(f"from the end of the debounce to the plan: {what}", f"{part}.{name}.to_plan_s", 1, "s")
        for part, name, what in (
            ("heal", "eight_nodes", "eight nodes of 1,000"),
            ("heal", "leaf", "a leaf of 1,000 nodes"),
            ("heal", "spine", "a spine of 1,000 nodes"),
            ("heal_full", "eight_nodes", "eight nodes of 1,000, no GPU free, spares lent"),
        )
    ),
    *(
        Promise(
            f"{pods} on {nodes:,} nodes: from the last bind until every pod has its event",
            f"{race}.{nodes}.ours.events_complete_after_s",
            EVENTS_SECONDS,
            "s",
        )
        for race, pods in (("plain", "4,000 plain pods"), ("gangs", "gangs of 8"))
        for nodes in (1000, 5000)
    ),
    *(
        Promise(
            f"gang of {members} on {nodes:,} nodes, 99th percentile",
            f"decisions.{figures}.{nodes}.p99_us",
            milliseconds,
            "ms",
            _US,
        )
        for members, figures in ((4, "growth.gang_of_4"), (8, "gang_of_8"), (64, "growth.gang_of_64"))
        for nodes, milliseconds in ((1000, 1), (10000, 5))
    ),
    Promise(
        "first bind from the start of a process, kernels compiled, 992 nodes, the longest of three",
        "takeover.first_bind.max_s",
        3,
        "s",
        checked=True,
    ),
    Promise(
        "the same with 5,000 nodes and 20,000 bound pods, embedded API server on the same CPUs, one start",
        "memory.5000.20000.first_bind_after_s",
        3,
        "s",
    ),
    Promise(
        "first bind after SIGKILL of the leader, 992 nodes, beyond the lease duration of 15 s, the longest of three",
        "takeover.after_sigkill_beyond_lease.max_s",
        2,
        "s",
        checked=True,
    ),
    Promise("relist of 10,000 nodes that all changed, once decoded", "starting.nodes.relist_all_changed_ms", 100, "ms"),
    Promise("one node's changed labels, 99th percentile", "starting.nodes.one_change.p99_us", 1, "ms", _US),
    Promise("all kernels compiled, nothing cached", "starting.kernels.cold.seconds", 6, "s"),
    Promise(
        "`check-config`, `topology`, `explain`, `drain`: CPU until the first request, the longest",
        "starting.commands.longest_cpu_s",
        0.5,
        "s",
    ),
    Promise(
        "plain pods of 2 GPUs on 1,000 nodes: pods a second over kube-scheduler's",
        "plain.1000.ours.pods_per_s",
        3,
        "times",
        by="plain.1000.kube_scheduler.pods_per_s",
        at_least=True,
    ),
    Promise("gangs of 8 in leaves of 16 on 5,000 nodes", "gangs.5000.ours.pods_per_s", 600, "pods/s", at_least=True),
    Promise(
        "gangs of 8 in leaves of 16 on 5,000 nodes: pods a second over kube-scheduler's",
        "gangs.5000.ours.pods_per_s",
        40,
        "times",
        by="gangs.5000.kube_scheduler.pods_per_s",
        at_least=True,
    ),
    Promise(
        "gangs of 8 in leaves of 16 on 5,000 nodes: pods a second over KAI-Scheduler's",
        "gangs.5000.ours.pods_per_s",
        8,
        "times",
        by="kai.5000.kai.pods_per_s",
        at_least=True,
    ),
    Promise(
        "memory of the process, 5,000 nodes and 20,000 bound pods, the peak",
        "memory.5000.20000.peak_rss_mb",
        512,
        "MiB",
    ),
    *(
        Promise(f"{tells}, kubelets report", path, bound, unit, needs=_AT_WORK)
        for tells, path, bound, unit in (
            ("memory at 100 decisions a second, 5,000 nodes", "load.rss_mb_after_load", 512, "MiB"),
            ("CPU at 100 decisions a second, 5,000 nodes", "load.at_work.cpu_cores", 1, "core"),
            ("received at 100 decisions a second, 5,000 nodes", "load.at_work.received_mb_per_s", 1, "MB/s"),
            ("sent at 100 decisions a second, 5,000 nodes", "load.at_work.sent_mb_per_s", 1, "MB/s"),
        )
    ),
    Promise(
        "pods with a claim for one GPU each: pods a second over kube-scheduler's",
        "claims.ratio",
        1.5,
        "times",
        at_least=True,
        checked=True,
    ),
    Promise(
        f"pod with a claim for one MIG instance, {_MIG_NODES}: a decision, the median",
        "slices.placing.decision_ms.p50",
        0.2,
        "ms",
        needs=_MIG_DEVICES,
    ),
    Promise(
        f"{_MIG_NODES}: memory of the process, the peak",
        "slices.rss_mb.peak",
        600,
        "MB",
        _MB_OF_MIB,
        needs=_MIG_DEVICES,
    ),
    Promise(f"{_MIG_NODES}: listed first", "slices.listed.s", 30, "s", needs=_MIG_DEVICES),
    Promise(f"{_MIG_NODES}: listed again", "slices.listed_anew.s", 30, "s", needs=_MIG_DEVICES),
    Promise("a whole experiment by the protocol of FGD, our score", "fgd.ours.seconds", 5, "s"),
    Promise("a whole experiment by the protocol of FGD, the published score", "fgd.fgd.seconds", 5, "s"),
)
SETTLED_ELSEWHERE: Final = (
    SettledElsewhere(
        "binds that the kubelet refused, beside kube-scheduler on 100 nodes that are 92 % full, the most of three runs",
        "at most 0.1 %",
        "0.02 %",
        True,
        "measurements-limits.md#beside-kube-scheduler",
    ),
    SettledElsewhere(
        "baseline `fgd` of `simulate`: GPUs allocated, from the published, the list that differs most",
        "within 0.3",
        "0.09 (`cpu050`)",
        True,
        "measurements-simulation.md#gpus-allocated-in-a-fill",
    ),
    SettledElsewhere(
        "the published score in this scheduler (`smallPods.scoring: fgd`): the same",
        "within 0.3",
        "0.31 (`gpuspec20`)",
        False,
        "measurements-fgd.md",
    ),
)
"""Measured by commands of their own, not by the bench; a test compares each with the page that is named."""
