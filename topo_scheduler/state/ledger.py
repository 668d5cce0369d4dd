"""The ledger: what every pod holds of its node, assumed or confirmed.

A pod's entry goes: (none) -assume-> assumed -confirm-> confirmed -release-> (none), or assumed -release-> (none)
when its bind
failed; a pod bound by others appears confirmed. Nothing is promised about the order in which the API server tells:
every operation may be repeated, and a later truth replaces an earlier one. The sum of the entries of a row is what
the node table has as requested, always; where GPUs are shared, each that is held in shares counts as held whole.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from topo_scheduler.state.accounts import Accounts
from topo_scheduler.state.devices import Holding
from topo_scheduler.state.nodes import NodeTable
from topo_scheduler.state.occupants import Occupant
from topo_scheduler.state.residents import Profile, Residents
from topo_scheduler.state.resources import GPU, GPU_SHARE, Amounts, amount_in


@dataclass(slots=True)
class LedgerEntry:
    """What one pod holds. ``row`` is -1 while its node is not known, ``occupant`` None while it is not seen bound.

    ``devices`` indexes of the GPUs it holds, as recorded on its Binding; empty where nothing is recorded.
    """

    node: str
    row: int
    amounts: Amounts
    assumed: bool
    daemon: bool
    profile: Profile | None = None
    occupant: Occupant | None = None
    devices: tuple[int, ...] = ()

    def amount(self, column: int) -> int:
        """Return how much it holds of one resource."""
        return amount_in(self.amounts, column)


class Ledger:
    """All entries by pod uid; the only writer of the node table's ``requested``, the residents and the accounts."""

    def __init__(self, nodes: NodeTable, residents: Residents | None = None, accounts: Accounts | None = None) -> None:
        self._nodes = nodes
        self._accounts = accounts if accounts is not None else Accounts(nodes)
        self._residents = residents if residents is not None else Residents()
        self._entries: dict[str, LedgerEntry] = {}
        self._by_node: dict[str, set[str]] = {}
        self.assumed = 0
        """Entries assumed and not yet confirmed."""
        self.priorities: Counter[int] = Counter()
        """How many pods of each priority could give way."""
        self.sizes: Counter[int] = Counter()
        """How many pods hold so many GPUs."""
        self.occupied = 0
        """Counts what became known of who holds room."""
        self.changes = 0
        """Counts entries that came and went."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, uid: str) -> LedgerEntry | None:
        """Return a pod's entry."""
        return self._entries.get(uid)

    def items(self) -> Iterator[tuple[str, LedgerEntry]]:
        """Iterate over uid and entry."""
        return iter(self._entries.items())

    def on_node(self, name: str) -> frozenset[str]:
        """Return the uids of the pods that hold something of a node."""
        return frozenset(self._by_node.get(name, ()))

    def assume(
        self,
        uid: str,
        node: str,
        amounts: Amounts,
        profile: Profile | None = None,
        devices: tuple[int, ...] = (),
    ) -> None:
        """Hold room for a pod that is about to be bound."""
        if uid in self._entries:
            raise ValueError(f"pod {uid} already has an entry")
        self._add(uid, LedgerEntry(node, -1, amounts, True, False, profile, devices=devices))

    def confirm(
        self,
        uid: str,
        node: str,
        amounts: Amounts,
        *,
        daemon: bool = False,
        profile: Profile | None = None,
        devices: tuple[int, ...] = (),
    ) -> bool:
        """Take over what the API server says of a bound pod; return whether anything differs from what was believed."""
        known = self._entries.get(uid)
        if (
            known is not None
            and known.node == node
            and (known.assumed or (known.amounts, known.devices) == (amounts, devices))
        ):
            # What was assumed may hold GPUs that the pod's spec does not show.
            self.assumed -= known.assumed
            known.assumed = False
            if profile is not known.profile:
                self._look(known, -1)
                known.profile = profile
                self._look(known, 1)
            return False
        if known is not None:
            self.release(uid)
        self._add(uid, LedgerEntry(node, -1, amounts, False, daemon, profile, devices=devices))
        return True

    def occupy(self, occupant: Occupant) -> bool:
        """Note who a bound pod is; return whether that differs from what was known."""
        entry = self._entries[occupant.uid]
        if entry.occupant == occupant:
            return False
        self._count(entry.occupant, -1)
        entry.occupant = occupant
        self.occupied += 1
        self._count(occupant, 1)
        return True

    def release(self, uid: str) -> LedgerEntry | None:
        """Give back what a pod held."""
        entry = self._entries.pop(uid, None)
        if entry is None:
            return None
        self.changes += 1
        self._count(entry.occupant, -1)
        size = entry.amount(GPU)
        self.sizes[size] -= 1
        if not self.sizes[size]:
            del self.sizes[size]
        self.assumed -= entry.assumed
        pods = self._by_node[entry.node]
        pods.discard(uid)
        if not pods:
            del self._by_node[entry.node]
        if entry.row >= 0:
            self._nodes.charge(entry.row, entry.amounts, sign=-1, daemon=entry.daemon)
            self._recount(entry)
            self._look(entry, -1)
        return entry

    def node_added(self, name: str, row: int) -> None:
        """Charge a node that appeared with the pods that are bound to it already."""
        for uid in sorted(self._by_node.get(name, ())):
            self._charge(self._entries[uid], row)

    def node_removed(self, name: str) -> None:
        """Keep the pods of a node that vanished, charged to nothing, until they vanish too or it returns."""
        for uid in self._by_node.get(name, ()):
            self._look(self._entries[uid], -1)
            self._entries[uid].row = -1

    def _add(self, uid: str, entry: LedgerEntry) -> None:
        self.changes += 1
        self._entries[uid] = entry
        self.sizes[entry.amount(GPU)] += 1
        self._by_node.setdefault(entry.node, set()).add(uid)
        self.assumed += entry.assumed
        row = self._nodes.row_of.get(entry.node)
        if row is not None:
            self._charge(entry, row)

    def _count(self, occupant: Occupant | None, change: int) -> None:
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
        self._look(entry, 1)

    def count_devices(self, row: int) -> None:
        """Bring up to date who holds which GPU of a row: its label, its GPUs or its pods changed."""
        nodes = self._nodes
        held = []
        for uid in self._by_node.get(nodes.names[row], ()):
            one = self._entries[uid]
            gpus, share = one.amount(GPU), one.amount(GPU_SHARE)
            if gpus or share:
                held.append(Holding(uid, gpus, share, one.devices))
        changed = nodes.devices.recount(row, int(nodes.allocatable[row, GPU]), held)
        nodes.requested[row, GPU] += changed
        nodes.capacity_changes.append(row)

    def _recount(self, entry: LedgerEntry) -> None:
        if self._nodes.devices.concerns(entry.row, entry.amount(GPU_SHARE)):
            self.count_devices(entry.row)

    def _look(self, entry: LedgerEntry, change: int) -> None:
        if entry.row >= 0 and entry.profile is not None:
            self._residents.change(entry.row, entry.profile, change)
            self._accounts.change(entry.row, entry.profile.namespace, entry.amounts, change)
