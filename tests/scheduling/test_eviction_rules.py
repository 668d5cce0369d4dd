"""Each rule by which a container drops entries is listed and held by a test; the table of caps has its constant."""

import re
from collections.abc import Callable, Sized
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np
import pytest

from tests.bounds import bounds
from tests.helpers import controlled_by, make_node, make_pod
from tests.scheduling.device_driver import DeviceDriver
from tests.scheduling.driver import Driver
from tests.scheduling.eviction_rules import FED, NO_RULES, RULES, SMALL, Rule, rules_in_code
from topo_scheduler.api.migrations import Move
from topo_scheduler.api.reasons import Reason
from topo_scheduler.kube.writing.fair_queue import _Heads
from topo_scheduler.recording.audit import Audit
from topo_scheduler.recording.recorder import Recorder
from topo_scheduler.recovery.core.waiting_lines import WaitingMigrations
from topo_scheduler.recovery.model.migration_context import MigrationContext
from topo_scheduler.scheduling.binding.contention import SchedulerContention
from topo_scheduler.scheduling.binding.outcomes import Outcomes
from topo_scheduler.scheduling.binding.unsettled import Unsettled
from topo_scheduler.scheduling.binding.volume_binding import VolumeBinding
from topo_scheduler.scheduling.devices.known_choices import KnownChoices
from topo_scheduler.scheduling.devices.node_devices import NodeDevices
from topo_scheduler.scheduling.devices.shape_tables import ShapeTables
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.scheduling.intake.leaving import Leaving
from topo_scheduler.scheduling.intake.pending import EmittedEvents
from topo_scheduler.scheduling.intake.understand import Lineage
from topo_scheduler.scheduling.intake.unread import Unread
from topo_scheduler.scheduling.preemption.vain_searches import VainSearches
from topo_scheduler.scheduling.queueing.fair_queue import FairnessLimits, FairWorkloadQueue, Order, _PriorityLevel
from topo_scheduler.scheduling.queueing.passed_over import PassedOver
from topo_scheduler.scheduling.queueing.queue import Place, Queue
from topo_scheduler.state.decision import Verdict
from topo_scheduler.state.devices.hardware import Gpu, GpuLink, NodeHardware
from topo_scheduler.state.devices.pod_claims import PodClaim
from topo_scheduler.state.devices.pools import DeviceKind, NodeScope, PublishedDevice
from topo_scheduler.state.nodes.change_log import ChangeLog
from topo_scheduler.state.pods.applied_terms import TermSets
from topo_scheduler.state.pods.workloads import Workload
from topo_scheduler.state.statistics.duration_claims import Promises
from topo_scheduler.state.statistics.gang_sizes import GangSizeHistory
from topo_scheduler.state.statistics.run_times import CompletedRun, _KnownRun
from topo_scheduler.state.storage.storage_capacities import KeptCapacities, _ClassRoom
from topo_scheduler.state.topology.rails import RailReader

pytestmark = pytest.mark.unrecorded

TESTS: Final = Path(__file__).parents[1]
Feed = Callable[[int], Sized]
"""Adds the n-th key and returns the container."""
NOT_DROPPED: Final = {
    "engine._parts._backoffs": "one for each part of a step",
    "engine.device_taints._recent": "entries of the last hour",
    "engine.outcomes.claims.protection._under_way": "waits while it is full",
    "engine.planner.typical_pods._shares.left": "one for each share of a GPU",
    "engine.planner.typical_pods._shares.price": "one for each share of a GPU",
    "engine.preempting.vain_evictions._pauses_by_taker": "one for each who may take room",
    "engine.planner.no_pods._free_bits": "bits of the counts that were dropped",
    "engine.world.pod_index._free_bits": "bits of the counts that were dropped",
    "engine.world.around.devices._original_fits": "the fits of before a trial",
    "engine.world.estimates._doubted": "those of the records",
    "engine.world.promises._doubted": "those of the records",
    "engine.world.hardware._complaints": "further ones are left out",
    "engine.world.resources._column": "further ones are refused",
    "engine.world.resources.names": "further ones are refused",
    "engine.world.resources._unoffered": "further ones are refused",
    "engine.world.around.gpu_sets.tables._known": "tables in use are kept: tests/scheduling/test_shape_tables.py",
    "engine.world.unread_labels._reported": "further ones are left out",
    "events._queue": "the number of events is bounded: tests/kube/test_events.py",
    "events._replaceable": "the number of events is bounded: tests/kube/test_events.py",
    "events._writer._loans": "bounds requests in progress",
    "owners._confirmations._loans": "bounds requests in progress",
    "owners._slots._loans": "bounds requests in progress",
    "owners._reader": "no further one is added",
}
"""Beginnings of the paths of containers with a bound in entries that no rule drops from, with the reason."""


def origins() -> Feed:
    audit = Audit(cast("Any", SimpleNamespace(put=lambda _: None)))

    def add(number: int) -> Sized:
        audit._add_pod(make_pod("pod", owner=controlled_by("Job", f"job-{number}")), None)
        return audit._shared

    return add


def logged_reasons() -> Feed:
    audit = Audit(cast("Any", SimpleNamespace(put=lambda _: None)))

    def add(number: int) -> Sized:
        decision: Any = SimpleNamespace(id=number, workload=f"w{number}", name="ns/name", verdict=Verdict.UNSCHEDULABLE)
        decision.message, decision.score, decision.seats, decision.leaves = "no room", None, (), ()
        audit._decided(decision)
        return audit._logged_reasons

    return add


def warned_of_pod() -> Feed:
    emitted = EmittedEvents()

    def add(number: int) -> Sized:
        emitted.is_new("uid", Reason.SCHEDULED, f"warning {number}")
        return emitted._warned["uid"]

    return add


def searches() -> Feed:
    vain = VainSearches()

    def add(number: int) -> Sized:
        vain.share(f"workload-{number}", number)
        return vain._searches

    return add


def unused_searches() -> Feed:
    vain = VainSearches()

    def add(number: int) -> Sized:
        vain.share(f"workload-{number}", number)
        vain.leave(f"workload-{number}")
        return vain._unused

    return add


def doubted_namespaces() -> Feed:
    config = SimpleNamespace(max_wait=1)
    contention: Any = SimpleNamespace(_config=config, _doubted={}, _waiting={}, _unbound={})

    def add(number: int) -> Sized:
        contention._unproven = {f"ns{number}": SimpleNamespace(since=0, placed=())}
        SchedulerContention._doubt(contention, 10)
        return cast("Sized", contention._doubted)

    return add


def choices() -> Feed:
    known = KnownChoices()

    def add(number: int) -> Sized:
        known.choose(number, [], lambda: None, SMALL)
        return known._known

    return add


def proven_namespaces() -> Feed:
    contention: Any = SimpleNamespace(_proven_namespaces=set(), _doubted={}, _unproven={}, _asked=lambda _: ())

    def add(number: int) -> Sized:
        SchedulerContention._proven(contention, make_pod("p", namespace=f"ns{number}"))
        return cast("Sized", contention._proven_namespaces)

    return add


def tokens() -> Feed:
    queue = FairWorkloadQueue(None, FairnessLimits(rate=1.0, burst=1))

    def add(number: int) -> Sized:
        queue._take_turn(f"ns{number}", 10.0 * number)
        return queue._tokens

    return add


def priorities() -> Feed:
    queue = FairWorkloadQueue()

    def add(number: int) -> Sized:
        queue.put(Order(number, 0.0, "workload", "ns"))
        return queue._levels

    return add


def attempts_of_passed_over() -> Feed:
    passed_over = PassedOver()

    def add(number: int) -> Sized:
        passed_over.tried(f"ns{number}", 0, by_rules=False, in_vain=True, counts=True, now=0.0)
        return passed_over.had_attempt

    return add


def runs_of_namespaces() -> Feed:
    runs = _KnownRun(3)

    def add(number: int) -> Sized:
        runs.add(f"ns{number}", number, CompletedRun(f"run-{number}", 10.0, 10.0))
        return runs._of_namespace

    return add


def overruns() -> Feed:
    promises = Promises()

    def add(number: int) -> Sized:
        promises._record(f"ns{number}")
        return promises._records

    return add


def gang_sizes() -> Feed:
    history = GangSizeHistory()

    def add(number: int) -> Sized:
        history.note(0, number + 1)
        return history._weights

    return add


def long_capacities() -> Feed:
    kept = KeptCapacities()

    def add(number: int) -> Sized:
        kept._warn_too_long(f"ns{number}", "name", "too long")
        return kept._too_long

    return add


def full_namespaces() -> Feed:
    kept = KeptCapacities()

    def add(number: int) -> Sized:
        kept._warn_full(f"ns{number}", "name", "1 byte")
        return kept._full

    return add


def units() -> Feed:
    reader = RailReader(("rail",), 1)

    def add(number: int) -> Sized:
        reader.unit({"rail": f"leaf-{number}"})
        return reader._names

    return add


def lineages() -> Feed:
    recorder = cast("Any", SimpleNamespace(_lineages={}, _numbered=0))

    def add(number: int) -> Sized:
        Recorder._number(recorder, Lineage((), complaint=f"problem {number}"), [])
        return cast("Sized", recorder._lineages)

    return add


def heads() -> Feed:
    first = _Heads(lambda _: True)

    def add(number: int) -> Sized:
        first.offer("ns", 0.0, number)
        return first._heap

    return add


def waiting_migrations() -> Feed:
    lines = WaitingMigrations()

    def add(number: int) -> Sized:
        lines._heap.append((float(number), "outdated"))
        lines._drop_outdated()
        return lines._heap

    return add


def helpers() -> Feed:
    context = cast("Any", SimpleNamespace(asked={}, tracked={}))

    def add(number: int) -> Sized:
        MigrationContext.ask_for_room(context, cast("Any", SimpleNamespace(key=f"ns/m{number}")))
        return cast("Sized", context.asked)

    return add


def replacements_of_moved_pods() -> Feed:
    view = SimpleNamespace(entry=lambda _: None)
    context = cast("Any", SimpleNamespace(counted={}, _counted_before=0, view=view, may_name=lambda *_: True))
    migration = cast("Any", SimpleNamespace(key="ns/m"))

    def add(number: int) -> Sized:
        MigrationContext.count_replacements(context, migration, [Move(replacement=f"uid-{number}")])
        return cast("Sized", context.counted)

    return add


def workloads_without_room() -> Feed:
    unsettled = SimpleNamespace(unanswered=list)
    known: Any = SimpleNamespace(_lacking_room={}, _workloads={}, _unsettled=unsettled)
    known._most_lacking, known._forget_placed = SMALL, lambda: Outcomes._forget_placed(known)

    def add(number: int) -> Sized:
        Outcomes.yield_room(known, f"workload-{number}", 0, 0.0)
        return cast("Sized", known._lacking_room)

    return add


def unsettled_binds() -> Feed:
    unsettled = Unsettled()

    def add(number: int) -> Sized:
        unsettled.put("uid", "ns", float(number))
        return unsettled._due

    return add


def volumes() -> Feed:
    binding: Any = SimpleNamespace(_due=[], _waiting={})

    def add(number: int) -> Sized:
        VolumeBinding._schedule(binding, f"uid-{number}", cast("Any", SimpleNamespace(due=0.0)))
        return cast("Sized", binding._due)

    return add


def kinds_of_hardware() -> Feed:
    hardware = Driver().engine.world.hardware

    def add(number: int) -> Sized:
        hardware._number(cast("Any", number))
        return hardware._numbers

    return add


def kinds_of_devices() -> Feed:
    gpus = Driver().engine.world.claimed_gpus
    inventory = SimpleNamespace(shapes_of_pool=lambda _: (1,), counters_of=lambda _: {})
    gpus._inventory = cast("Any", inventory)

    def add(number: int) -> Sized:
        id_ = "gpu.example.com", "node-1", f"gpu-{number}"
        gpus._gpus_of_device(id_, PublishedDevice(id_, DeviceKind(), {}, NodeScope()), None)
        return gpus._of_kind

    return add


def pools() -> Feed:
    d = DeviceDriver([])
    devices = cast("NodeDevices", d.engine.world.around.devices)

    def add(number: int) -> Sized:
        d.nodes(make_node(f"n{number}", "s/l"))
        devices.pools_of(d.engine.world.nodes.row_of[f"n{number}"])
        d.drop_node(f"n{number}")
        return devices._pools

    return add


def variants() -> Feed:
    nodes = SimpleNamespace(offers=lambda *_: True)
    devices: Any = SimpleNamespace(_nodes=nodes, _variants={})

    def add(number: int) -> Sized:
        claim = PodClaim(b"{}", None, (f"example.com/r{number}",))
        NodeDevices.claims_at(devices, (claim,), 0)
        return cast("Sized", devices._variants)

    return add


def approximate_tables() -> Feed:
    tables: Any = SimpleNamespace(_approximate={})

    def add(number: int) -> Sized:
        links = (GpuLink(0, 1, 1, 1_000 + number),)
        ShapeTables._approximation(tables, NodeHardware((Gpu(0), Gpu(1)), links=links))
        return cast("Sized", tables._approximate)

    return add


def leaving() -> Feed:
    pods = Leaving()

    def add(number: int) -> Sized:
        pods.put(PodRef("ns", "pod", "uid"), "its Job was deleted", float(number))
        return pods._unreported

    return add


def unread() -> Feed:
    objects: Unread[str] = Unread()

    def add(number: int) -> Sized:
        objects.fail("pod", "version", float(number))
        return objects._due

    return add


def paused_workloads() -> Feed:
    queue = Queue()

    def add(number: int) -> Sized:
        queue._put(Order(0, 0.0, "workload"), Place.BACKOFF, float(number))
        return queue._due

    return add


def lost_ranks() -> Feed:
    gang: Any = SimpleNamespace(complete=False, ran={}, ran_of=0, size=0, members={}, kept_ranks=0)
    gang.forget_lost = lambda: gang.ran.clear()

    def add(number: int) -> Sized:
        Workload.note_ran(gang, cast("Any", SimpleNamespace(rank=number, leaving=False, uid=f"uid-{number}")))
        return cast("Sized", gang.ran)

    return add


def ends_of_claims() -> Feed:
    promises = Promises()
    promises.claimed("uid", "ns", 60.0)

    def add(number: int) -> Sized:
        promises.began("uid", -float(number) - 1, 1.0)
        return promises._heap

    return add


def sizes_of_volumes() -> Feed:
    room: Any = SimpleNamespace(_of_size={}, _limits=np.zeros(0, np.int64), _rows=[], _largest=np.zeros(8, np.int64))

    def add(number: int) -> Sized:
        _ClassRoom.of_size(room, number + 1)
        return cast("Sized", room._of_size)

    return add


def changes() -> Feed:
    logs = ChangeLog(SMALL), ChangeLog(SMALL)

    def add(number: int) -> Sized:
        logs[0].append(number)
        logs[1].extend([number])
        return max((log._rows for log in logs), key=len)

    return add


def sets_of_terms() -> Feed:
    sets = TermSets()

    def add(number: int) -> Sized:
        sets.put(frozenset((number,)))
        return sets._sets

    return add


def shares() -> Feed:
    queue, level = FairWorkloadQueue(), _PriorityLevel()

    def add(number: int) -> Sized:
        queue._key = lambda *_: (number, 0.0, "w")  # type: ignore[method-assign]
        queue._insert(level, "ns")
        return level.by_share

    return add


FEEDS: Final[dict[tuple[str, str], Callable[[], Feed]]] = {
    ("recording.audit", "_logged_reasons"): logged_reasons,
    ("recording.audit", "_shared"): origins,
    ("recording.recorder", "_lineages"): lineages,
    ("kube.writing.fair_queue", "_heap"): heads,
    ("recovery.core.waiting_lines", "_heap"): waiting_migrations,
    ("recovery.model.migration_context", "asked"): helpers,
    ("recovery.model.migration_context", "counted"): replacements_of_moved_pods,
    ("scheduling.binding.outcomes", "_lacking_room"): workloads_without_room,
    ("scheduling.binding.unsettled", "_due"): unsettled_binds,
    ("scheduling.binding.volume_binding", "_due"): volumes,
    ("scheduling.devices.hardware_table", "_numbers"): kinds_of_hardware,
    ("scheduling.devices.node_devices", "_pools"): pools,
    ("scheduling.devices.node_devices", "_variants"): variants,
    ("scheduling.devices.shape_tables", "_approximate"): approximate_tables,
    ("state.ledger.claimed_gpus", "_of_kind"): kinds_of_devices,
    ("scheduling.intake.leaving", "_unreported"): leaving,
    ("scheduling.intake.unread", "_due"): unread,
    ("scheduling.queueing.queue", "_due"): paused_workloads,
    ("scheduling.queueing.fair_queue", "by_share"): shares,
    ("state.nodes.change_log", "_rows"): changes,
    ("state.pods.applied_terms", "_sets"): sets_of_terms,
    ("state.pods.workloads", "ran"): lost_ranks,
    ("state.statistics.duration_claims", "_heap"): ends_of_claims,
    ("state.storage.storage_capacities", "_of_size"): sizes_of_volumes,
    ("scheduling.binding.contention", "_doubted"): doubted_namespaces,
    ("scheduling.binding.contention", "_proven_namespaces"): proven_namespaces,
    ("scheduling.devices.known_choices", "_known"): choices,
    ("scheduling.intake.pending", "warned"): warned_of_pod,
    ("scheduling.preemption.vain_searches", "_searches"): searches,
    ("scheduling.preemption.vain_searches", "_unused"): unused_searches,
    ("scheduling.queueing.fair_queue", "_tokens"): tokens,
    ("scheduling.queueing.fair_queue", "_levels"): priorities,
    ("scheduling.queueing.passed_over", "had_attempt"): attempts_of_passed_over,
    ("state.statistics.duration_claims", "_records"): overruns,
    ("state.statistics.gang_sizes", "_weights"): gang_sizes,
    ("state.statistics.run_times", "_of_namespace"): runs_of_namespaces,
    ("state.storage.storage_capacities", "_full"): full_namespaces,
    ("state.storage.storage_capacities", "_too_long"): long_capacities,
    ("state.topology.rails", "_names"): units,
}
BY_FEED: Final = [rule for rule in RULES if rule.test == FED]
ROWS: Final = {
    path: int(number[0].replace(",", ""))
    for root in ("engine", "recovery", "events", "owners")
    for path, bound in bounds(root).items()
    if (number := re.match(r"[\d,]+(?= entries)", bound))
}


@pytest.mark.parametrize("rule", BY_FEED, ids=lambda rule: f"{rule.module}:{rule.container}")
def test_a_container_drops_entries_as_keys_come(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    if rule.constant:
        monkeypatch.setattr(rule.imported(), rule.constant, SMALL)
    feed = FEEDS[rule.module, rule.container]()
    keys = rule.bound(SMALL) + 20
    entries = [len(feed(number)) for number in range(keys)]
    assert entries[:2] == [1, 2], "each key adds an entry"
    assert max(entries) <= rule.bound(SMALL)


def test_each_rule_of_the_code_is_listed_and_held() -> None:
    listed = [(rule.module, rule.container) for rule in RULES]
    assert len(set(listed)) == len(listed)
    assert set(listed) >= set(rules_in_code()) - set(NO_RULES)
    assert set(rules_in_code()) >= set(NO_RULES)
    assert {(rule.module, rule.container) for rule in BY_FEED} == set(FEEDS)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.module}:{rule.container}")
def test_each_rule_names_its_constant_and_an_existing_test(rule: Rule) -> None:
    assert all(isinstance(getattr(rule.imported(), constant), int) for constant in rule.constants)
    if rule.test:
        path, _, name = rule.test.partition("::")
        assert f"def {name}(" in (TESTS / path).read_text(encoding="utf-8")


def test_each_row_with_a_number_has_a_rule_with_that_number() -> None:
    wrong = {}
    for path, number in ROWS.items():
        rules = [rule for rule in RULES if path.endswith(rule.paths)]
        bounds_by_code = [rule.bound(getattr(rule.imported(), rule.constants[0])) for rule in rules]
        allowed = {entries for bound in bounds_by_code for entries in (bound - 1, bound)}
        if not path.startswith(tuple(NOT_DROPPED)) and (len(rules) != 1 or number not in allowed):
            wrong[path] = number, bounds_by_code
    assert wrong == {}
    assert [begins for begins in NOT_DROPPED if not any(path.startswith(begins) for path in ROWS)] == []
