"""NUMA nodes of all machines whose kubelet rejects pods that it can't align, and what may be used of them by now.

A report is old: pods come and go after it. What the pods of a machine may hold beyond the report can be on any NUMA
node, so it counts on each of them. That never promises more than there is.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from topo_scheduler.api.numa import NodeResourceTopology
from topo_scheduler.state.nodes.numa_report import NumaAmounts, NumaReport, NumaReportError, is_memory, read_report
from topo_scheduler.state.pods.numa_request import NumaRequest
from topo_scheduler.state.pods.possible_numa_use import FreeAmounts, possibly_free

REPORT_SECONDS: Final = 180.0
"""Time after which a machine without a new report counts as reported again: an unchanged report reaches no watch.

Exporters look at the machine each 60 s by default.
"""


@dataclass(frozen=True, slots=True)
class NumaState:
    """What is known of the NUMA nodes of a machine.

    Attributes:
        report: the report.
        unreported: what pods may hold beyond it, on any NUMA node.
        alike: pods that the report does not show yet, if they are alike and hold exactly what is unreported.
        spans: whether the memory of a pod there may be spread over several NUMA nodes.
        possible: what may be free of each resource by NUMA node if pods ended that the report shows: one of these.
    """

    report: NumaReport
    unreported: NumaAmounts = ()
    alike: tuple[NumaRequest, int] | None = None
    spans: bool = False
    possible: tuple[FreeAmounts, ...] = ()


@dataclass(slots=True)
class _PodChanges:
    """Pods that came, and those that ended, between two reports."""

    came: Counter[NumaRequest] = field(default_factory=Counter)
    ended: Counter[NumaRequest] = field(default_factory=Counter)

    def __bool__(self) -> bool:
        return bool(self.came or self.ended)


@dataclass(slots=True)
class _ReportedMachine:
    """One machine: its last report, and changes since it and between it and the report before.

    ``reported`` is when `REPORT_SECONDS` began, in seconds; None until the next `NumaZones.settle`.
    """

    report: NumaReport
    since: _PodChanges
    before: _PodChanges
    reported: float | None = None
    state: NumaState | None = None

    def rotate(self) -> None:
        self.before, self.since, self.reported, self.state = self.since, _PodChanges(), None, None


class NumaZones:
    """Reports of all machines, and the pods of each machine with resources that are aligned."""

    def __init__(self) -> None:
        self.objects: dict[str, NodeResourceTopology] = {}
        """Objects without their contents, which are in the reports."""
        self.unlisted: dict[str, bool] = {}
        self.machines: dict[str, _ReportedMachine] = {}
        """Machines whose kubelet rejects pods, by name of the node. Each decision asks whether there are any."""
        self._problems: dict[str, str] = {}
        self._new_problems: dict[str, None] = {}
        self._held: dict[str, dict[str, NumaRequest]] = {}
        """Pods by node and uid. They are counted only where a report is read: most clusters have none."""
        self._changed: dict[str, bool] = {}
        self._waiting: dict[str, None] = {}
        """Machines with changes that no report may show yet."""

    # ------------------------------------------------------------ observed objects

    def put(self, table: dict[str, NodeResourceTopology], name: str, item: NodeResourceTopology) -> None:
        """Read an object that appeared or changed."""
        table[name] = NodeResourceTopology(item.metadata)
        try:
            report = read_report(item)
        except NumaReportError as error:
            if self._problems.get(name) != str(error):
                self._problems[name] = str(error)
                self._new_problems[name] = None
            self._forget_machine(name)
            return
        self._problems.pop(name, None)
        if not report.enforced:
            self._forget_machine(name)
            return
        machine, before_it = self.machines.get(name), self.state(name)
        if machine is None:
            # It is not known how old the pods are that are there already.
            before = _PodChanges(came=self._pods_on(name))
            self.machines[name] = machine = _ReportedMachine(report, _PodChanges(), before)
        else:
            machine.report = report
            machine.rotate()
        self._note(name, machine)
        self._compare(name, before_it)

    def drop(self, table: dict[str, NodeResourceTopology], name: str) -> None:
        """Forget an object that was deleted."""
        table.pop(name, None)
        self._problems.pop(name, None)
        self._forget_machine(name)

    def listed(self, resource: str) -> None:
        """Record that the list is complete."""
        self.unlisted.pop(resource, None)

    def refused(self, resource: str) -> None:
        """Record that the API server refuses to list the kind: no pod waits for it."""
        self.unlisted[resource] = True

    def take_changes(self) -> Mapping[str, bool]:
        """Return the nodes where other pods may fit than at the last call.

        The value is whether more changed than what is free: what the machine has, or how its kubelet decides.
        """
        changed, self._changed = self._changed, {}
        return changed

    def take_problems(self) -> list[str]:
        """Return messages about objects that can't be used, each problem of an object once."""
        names, self._new_problems = self._new_problems, {}
        return [
            f"NodeResourceTopology {name} is not used, so pods may fail there with TopologyAffinityError:"
            f" {self._problems[name]}"
            for name in names
            if name in self._problems
        ]

    def settle(self, now: float) -> None:
        """Let changes count as reported once they are old enough; ``now`` in seconds."""
        for name in list(self._waiting):
            machine = self.machines[name]
            if machine.reported is None:
                machine.reported = now
            elif now - machine.reported >= REPORT_SECONDS:
                before_it = self.state(name)
                machine.rotate()
                self._note(name, machine)
                self._compare(name, before_it)

    def next_due(self) -> float | None:
        """Return when `settle` has something to do, in seconds; None for never."""
        if not self._waiting:
            return None
        times = [self.machines[name].reported for name in self._waiting]
        return min(REPORT_SECONDS + time if time is not None else 0.0 for time in times)

    def _forget_machine(self, name: str) -> None:
        self._waiting.pop(name, None)
        if self.machines.pop(name, None) is not None:
            self._changed[name] = True

    def _compare(self, name: str, before_it: NumaState | None) -> None:
        state = self.state(name)
        assert state is not None
        if before_it is None or state.report.machine != before_it.report.machine:
            self._changed[name] = True
        elif state != before_it:
            self._changed.setdefault(name, False)

    def _note(self, name: str, machine: _ReportedMachine) -> None:
        machine.state = None
        if machine.since or machine.before:
            self._waiting[name] = None
        else:
            self._waiting.pop(name, None)

    # ------------------------------------------------------------ pods

    def hold(self, node: str, uid: str, request: NumaRequest) -> None:
        """Count a pod on a node, from the decision on."""
        self._held.setdefault(node, {})[uid] = request
        if (machine := self.machines.get(node)) is not None:
            machine.since.came[request] += 1
            self._note(node, machine)

    def release(self, node: str, uid: str) -> None:
        """Count a pod no longer."""
        held = self._held[node]
        request = held.pop(uid)
        if not held:
            del self._held[node]
        if (machine := self.machines.get(node)) is not None:
            if _is_aligned(request, machine.report):
                machine.since.ended[request] += 1
            self._note(node, machine)

    # ------------------------------------------------------------ states

    def names(self) -> Iterable[str]:
        """Return the nodes whose kubelet rejects pods that it can't align."""
        return self.machines.keys()

    def state(self, node: str) -> NumaState | None:
        """Return what is known of a node whose kubelet rejects pods; None for other nodes."""
        machine = self.machines.get(node)
        if machine is None:
            return None
        if machine.state is None:
            machine.state = self._state(machine, self._pods_on(node))
        return machine.state

    def runs_on(self, node: str, uid: str) -> bool:
        """Return whether a pod with resources that are aligned counts on a node."""
        return uid in self._held.get(node, _NO_PODS)

    def state_after(self, node: str, departed: Container[str], come: Sequence[NumaRequest]) -> NumaState | None:
        """Return what would be known of a node if some of its pods had ended, given by uid, and others had come."""
        machine = self.machines.get(node)
        ended = Counter(request for uid, request in self._held.get(node, _NO_PODS).items() if uid in departed)
        if machine is None or not (ended or come):
            return self.state(node)
        shown = Counter({request: number for request, number in ended.items() if _is_aligned(request, machine.report)})
        since = _PodChanges(machine.since.came + Counter(come), machine.since.ended + shown)
        return self._state(replace(machine, since=since), self._pods_on(node) - ended + Counter(come))

    def _pods_on(self, node: str) -> Counter[NumaRequest]:
        return Counter(self._held.get(node, _NO_PODS).values())

    def _state(self, machine: _ReportedMachine, pods: Counter[NumaRequest]) -> NumaState:
        report = machine.report
        unreported = _unreported(machine, pods)
        spans = any(_spans(request, report) for request in (*pods, *machine.since.ended, *machine.before.ended))
        came = machine.since.came + machine.before.came
        alike = None
        if unreported and len(came) == 1 and not (machine.since.ended or machine.before.ended):
            ((request, number),) = came.items()
            shown = {name: amount for name, amount in request.total if name in report.resources}
            for missing in range(1, number + 1):
                if {name: missing * amount for name, amount in shown.items()} == unreported:
                    alike = request, missing
        possible: tuple[FreeAmounts, ...] = ()
        # The report may show those that ended before it or not.
        for ended in (machine.since.ended, machine.since.ended + machine.before.ended):
            possible = possible or possibly_free(report, pods, ended, unreported)
        return NumaState(report, tuple(sorted(unreported.items())), alike, spans, possible)


def _unreported(machine: _ReportedMachine, pods: Mapping[NumaRequest, int]) -> dict[str, int]:
    """Return what pods of a machine may hold beyond what its report shows as used, by resource.

    A pod that the report does not show came after the report before it. What the report shows as used may belong to
    pods that ended after the report before it.
    """
    report, came, ended = machine.report, _total(machine, "came"), _total(machine, "ended")
    held: Counter[str] = Counter()
    for request, number in pods.items():
        for name, amount in request.total:
            held[name] += number * amount
    missing: dict[str, int] = {}
    for index, name in enumerate(report.resources):
        used = sum(report.allocatable[index]) - sum(report.available[index])
        beyond = max(held[name] - used, min(held[name] + ended[name] - used, came[name]))
        if beyond > 0:
            missing[name] = beyond
    return missing


def _total(machine: _ReportedMachine, kind: str) -> Counter[str]:
    total: Counter[str] = Counter()
    for changes in (machine.since, machine.before):
        requests: Mapping[NumaRequest, int] = getattr(changes, kind)
        for request, number in requests.items():
            for name, amount in request.total:
                total[name] += number * amount
    return total


def _is_aligned(request: NumaRequest, report: NumaReport) -> bool:
    return any(name in report.resources for name, _ in request.total)


def _spans(request: NumaRequest, report: NumaReport) -> bool:
    """Return whether the memory of a container may be spread over several NUMA nodes."""
    largest = {name: max(report.allocatable[index]) for index, name in enumerate(report.resources) if is_memory(name)}
    return any(amount > largest.get(name, amount) for name, amount in request.total)


_NO_PODS: Final[Mapping[str, NumaRequest]] = {}
