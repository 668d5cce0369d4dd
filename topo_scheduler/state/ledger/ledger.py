"""The ledger: what every pod holds of its node, assumed or confirmed.

States of a pod's entry: (none) -assume-> assumed -confirm-> confirmed -release-> (none), or assumed -release-> (none)
if its bind failed. A pod bound by another scheduler appears confirmed. Watch events may arrive in any order: every
operation may be repeated, and a later state replaces an earlier one. The sum of the entries of a row always equals
``requested`` of the node table; a GPU that pods hold in shares counts there as a whole GPU.
"""

from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import dataclass

from topo_scheduler.state.ledger.namespace_usage import Accounts
from topo_scheduler.state.nodes.gpu_shares import Holding
from topo_scheduler.state.nodes.node_table import NodeTable
from topo_scheduler.state.nodes.resources import GPU, GPU_SHARE, Amounts, amount_in
from topo_scheduler.state.pods.kept_profiles import KeptProfiles
from topo_scheduler.state.pods.numa_request import NumaRequest
from topo_scheduler.state.pods.numa_zones import NumaZones
from topo_scheduler.state.pods.pod_index import PodIndex
from topo_scheduler.state.pods.profiles import Profile
from topo_scheduler.state.pods.victim_info import VictimInfo
from topo_scheduler.state.tenant_memory import MAX_TENANT_BYTES, TenantMemory


@dataclass(slots=True)
class LedgerEntry:
    """What one pod holds. ``row`` is -1 while its node is unknown, ``occupant`` None until the pod is seen bound.

    ``devices`` has the indexes of its GPUs, as recorded on its Binding; empty without a record. ``created_there``: the
    pod was created with its node, so no scheduler placed it. ``numa``: what the kubelet aligns to NUMA nodes.
    ``waiting`` describes an assumed pod whose bind waits for volumes or devices: it can give up its room without an
    eviction.
    """

    node: str
    row: int
    amounts: Amounts
    assumed: bool
    daemon: bool
    profile: Profile | None = None
    occupant: VictimInfo | None = None
    devices: tuple[int, ...] = ()
    created_there: bool = False
    numa: NumaRequest | None = None
    waiting: VictimInfo | None = None

    def amount(self, column: int) -> int:
        """Return the amount that the pod holds of one resource."""
        return amount_in(self.amounts, column)


class Ledger:
    """All entries by pod uid; the only writer of the node table's ``requested``, the bound pods and the accounts."""

    def __init__(
        self,
        nodes: NodeTable,
        pod_index: PodIndex | None = None,
        accounts: Accounts | None = None,
        numa_zones: NumaZones | None = None,
        memory: TenantMemory | None = None,
    ) -> None:
        self._nodes = nodes
        self._numa_zones = numa_zones if numa_zones is not None else NumaZones()
        self._accounts = accounts if accounts is not None else Accounts(nodes)
        self._pod_index = pod_index if pod_index is not None else PodIndex()
        self.profiles = KeptProfiles(self._pod_index, memory or TenantMemory(MAX_TENANT_BYTES))
        self._entries: dict[str, LedgerEntry] = {}
        self._reduced: dict[str, None] = {}
        """Pods whose profiles were replaced, by uid."""
        self._by_node: dict[str, set[str]] = {}
        self._on_absent: dict[str, set[str]] = {}
        """Pods that a scheduler placed on nodes that are not listed, by node."""
        self.assumed = 0
        """Entries assumed and not yet confirmed."""
        self.priorities: Counter[int] = Counter()
        """Number of preemptible pods by priority."""
        self.sizes: Counter[int] = Counter()
        """Number of pods by the number of GPUs that they hold."""
        self.occupied = 0
        """Counts changes to the occupants of entries."""
        self.changes = 0
        """Counts entries that were added or removed."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, uid: str) -> LedgerEntry | None:
        """Return a pod's entry."""
        return self._entries.get(uid)

    def namespace_of(self, uid: str) -> str | None:
        """Return the namespace of a pod with an entry, None if it is not known."""
        entry = self._entries.get(uid)
        return entry.profile.namespace if entry is not None and entry.profile is not None else None

    def items(self) -> Iterator[tuple[str, LedgerEntry]]:
        """Iterate over uid and entry."""
        return iter(self._entries.items())

    def on_node(self, name: str) -> frozenset[str]:
        """Return the uids of the pods that hold resources of a node."""
        return frozenset(self._by_node.get(name, ()))

    @property
    def absent_nodes(self) -> Set[str]:
        """Names of the nodes that are not listed and on which a scheduler placed pods; a view that changes."""
        return self._on_absent.keys()

    def assume(
        self,
        uid: str,
        node: str,
        amounts: Amounts,
        profile: Profile | None = None,
        devices: tuple[int, ...] = (),
        numa: NumaRequest | None = None,
    ) -> None:
        """Charge a pod that is about to be bound to its node."""
        if uid in self._entries:
            raise ValueError(f"pod {uid} already has an entry")
        self._add(uid, LedgerEntry(node, -1, amounts, True, False, profile, devices=devices, numa=numa))

    def confirm(
        self,
        uid: str,
        node: str,
        amounts: Amounts,
        *,
        daemon: bool = False,
        profile: Profile | None = None,
        devices: tuple[int, ...] = (),
        created_there: bool = False,
        numa: NumaRequest | None = None,
    ) -> bool:
        """Record a bound pod as the API server reports it; return whether it differs from the known entry.

        ``created_there`` counts only for a pod without an entry.
        """
        entry = self._entries.get(uid)
        if (
            entry is not None
            and entry.node == node
            and (entry.assumed or (entry.amounts, entry.devices) == (amounts, devices))
        ):
            # An assumed entry may hold GPUs that the pod's spec does not show.
            self.assumed -= entry.assumed
            entry.assumed = False
            if profile is not entry.profile:
                self._charge_namespace(entry, -1)
                if entry.profile is not None:
                    self.profiles.remove(uid, entry.profile)
                entry.profile = self.profiles.add(uid, profile) if profile is not None else None
                self._charge_namespace(entry, 1)
                self.reduce_profiles()
            return False
        if entry is not None:
            self.release(uid)
            created_there = entry.created_there
        self._add(uid, LedgerEntry(node, -1, amounts, False, daemon, profile, None, devices, created_there, numa))
        return True

    def reduce_profiles(self) -> None:
        """Replace the profiles of pods that lost their room in memory."""
        for uid, profile in self.profiles.take_lost():
            if (entry := self._entries.get(uid)) is None:
                continue
            self._charge_namespace(entry, -1)
            entry.profile = profile
            self._charge_namespace(entry, 1)
            self._reduced[uid] = None

    def take_reduced(self) -> list[str]:
        """Return the pods whose profiles were replaced since the last call."""
        self.reduce_profiles()
        reduced, self._reduced = list(self._reduced), {}
        return reduced

    def occupy(self, occupant: VictimInfo) -> bool:
        """Record the occupant of a bound pod's entry; return whether it changed."""
        entry = self._entries[occupant.uid]
        if entry.occupant == occupant:
            return False
        self._count(entry, -1)
        entry.occupant, entry.waiting = occupant, None
        self.occupied += 1
        self._count(entry, 1)
        return True

    def wait(self, uid: str, waiting: VictimInfo | None) -> None:
        """Record that the bind of an assumed pod waits for volumes or devices, or with None that it waits no more."""
        entry = self._entries[uid]
        if entry.waiting == waiting:
            return
        self._count(entry, -1)
        entry.waiting = waiting
        self.occupied += 1
        self._count(entry, 1)

    def waits(self, uid: str) -> bool:
        """Return whether the bind of an assumed pod waits for volumes or devices."""
        entry = self._entries.get(uid)
        return entry is not None and entry.waiting is not None

    def release(self, uid: str) -> LedgerEntry | None:
        """Release what a pod holds; return its entry."""
        entry = self._entries.pop(uid, None)
        if entry is None:
            return None
        self.changes += 1
        self._reduced.pop(uid, None)
        self._count(entry, -1)
        if entry.profile is not None and not entry.profile.ordinary:
            self.profiles.remove(uid, entry.profile)
        size = entry.amount(GPU)
        self.sizes[size] -= 1
        if not self.sizes[size]:
            del self.sizes[size]
        self.assumed -= entry.assumed
        if entry.numa is not None:
            self._numa_zones.release(entry.node, uid)
        pods = self._by_node[entry.node]
        pods.discard(uid)
        if not pods:
            del self._by_node[entry.node]
        if entry.row >= 0:
            self._nodes.charge(entry.row, entry.amounts, sign=-1, daemon=entry.daemon)
            self._recount(entry)
            self._charge_namespace(entry, -1)
        elif not entry.created_there:
            absent = self._on_absent[entry.node]
            absent.discard(uid)
            if not absent:
                del self._on_absent[entry.node]
        return entry

    def node_added(self, name: str, row: int) -> None:
        """Charge a new node with the pods that are already bound to it."""
        self._on_absent.pop(name, None)
        for uid in sorted(self._by_node.get(name, ())):
            self._charge(self._entries[uid], row)

    def node_removed(self, name: str) -> None:
        """Keep the pods of a deleted node uncharged, until they are deleted too or the node returns."""
        for uid in self._by_node.get(name, ()):
            entry = self._entries[uid]
            self._charge_namespace(entry, -1)
            entry.row = -1
            self._note_absent(uid, entry)

    def _add(self, uid: str, entry: LedgerEntry) -> None:
        self.changes += 1
        self._entries[uid] = entry
        if entry.profile is not None and not entry.profile.ordinary:
            entry.profile = self.profiles.add(uid, entry.profile)
            self.reduce_profiles()
        self.sizes[entry.amount(GPU)] += 1
        self._by_node.setdefault(entry.node, set()).add(uid)
        self.assumed += entry.assumed
        if entry.numa is not None:
            self._numa_zones.hold(entry.node, uid, entry.numa)
        row = self._nodes.row_of.get(entry.node)
        if row is not None:
            self._charge(entry, row)
        else:
            self._note_absent(uid, entry)

    def _note_absent(self, uid: str, entry: LedgerEntry) -> None:
        if not entry.created_there:
            self._on_absent.setdefault(entry.node, set()).add(uid)

    def _count(self, entry: LedgerEntry, change: int) -> None:
        occupant = entry.occupant or entry.waiting
        if occupant is not None and not occupant.fixed:
            self.priorities[occupant.priority] += change
            if not self.priorities[occupant.priority]:
                del self.priorities[occupant.priority]

    def _charge(self, entry: LedgerEntry, row: int) -> None:
        if entry.row >= 0:
            return
        entry.row = row
        self._nodes.widen()
        self._nodes.charge(row, entry.amounts, daemon=entry.daemon)
        self._recount(entry)
        self._charge_namespace(entry, 1)

    def count_devices(self, row: int) -> None:
        """Recompute which pod holds which GPU of a row, after its label, its GPUs or its pods changed."""
        nodes = self._nodes
        holdings = []
        for uid in self._by_node.get(nodes.names[row], ()):
            entry = self._entries[uid]
            gpus, share = entry.amount(GPU), entry.amount(GPU_SHARE)
            if gpus or share:
                holdings.append(Holding(uid, gpus, share, entry.devices))
        changed = nodes.devices.recount(row, int(nodes.allocatable[row, GPU]), holdings)
        nodes.requested[row, GPU] += changed
        nodes.capacity_changes.append(row)

    def _recount(self, entry: LedgerEntry) -> None:
        if self._nodes.devices.concerns(entry.row, entry.amount(GPU_SHARE)):
            self.count_devices(entry.row)

    def _charge_namespace(self, entry: LedgerEntry, change: int) -> None:
        if entry.row >= 0 and entry.profile is not None:
            self._pod_index.change(entry.row, entry.profile, change)
            self._accounts.change(entry.row, entry.profile.namespace, entry.amounts, change)
