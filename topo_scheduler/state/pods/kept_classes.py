"""Classes of bound members as they are kept: affinity and preferences take up to a quarter of a megabyte a pod.

Only plans that move a bound pod read its class. If it is unknown, as after a restart, they read the pod again. So the
large classes of a namespace have a budget, and beyond it the oldest are forgotten.
"""

import pickle
from typing import Final

from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.workloads import Member
from topo_scheduler.state.tenant_memory import MAX_TENANT_BYTES, TenantMemory

ORDINARY_CLASS_BYTES: Final = 16_384
"""Bytes up to which a class is always kept."""
MAX_CLASS_BYTES_OF_NAMESPACE: Final = 8 * 2**20
"""Bytes of all larger classes of one namespace; equal ones count once."""
_MEMORY_RATIO: Final = 12
"""Memory of a class for each byte of its serialised form: measured with affinity terms, and rounded up."""


class KeptClasses:
    """The large classes of bound members, by namespace."""

    def __init__(self, memory: TenantMemory | None = None) -> None:
        self._memory = (memory or TenantMemory(MAX_TENANT_BYTES)).kind(MAX_CLASS_BYTES_OF_NAMESPACE)
        self._classes: dict[str, dict[PodClass, dict[str, Member]]] = {}
        """The bound members that have each class, by namespace, class and uid; the class bound last comes last."""
        self._class_of: dict[str, tuple[str, PodClass]] = {}
        """Namespace and class by uid."""

    def bound(self, member: Member) -> None:
        """Record a member that was bound; forget its request if its class is large and there is no room for it."""
        self._put(member, forced=False)

    def read(self, member: Member) -> None:
        """Record a bound member that a plan is about to use: its class is kept even without room."""
        self._put(member, forced=True)

    def gone(self, uid: str) -> None:
        """Forget a pod that is gone, or whose request is forgotten."""
        if (known := self._class_of.pop(uid, None)) is None:
            return
        namespace, cls = known
        members = self._classes[namespace][cls]
        del members[uid]
        if not members:
            self._drop(namespace, cls)

    def _put(self, member: Member, *, forced: bool) -> None:
        self.gone(member.uid)
        size = class_bytes(member.cls)
        if size <= ORDINARY_CLASS_BYTES:
            return
        namespace, cls = member.namespace, member.cls
        classes = self._classes.get(namespace, {})
        members = classes.pop(cls, None)
        if members is None:
            while not (has_room := self._memory.put(namespace, cls, size)) and classes:
                self._forget(namespace, next(iter(classes)))
            self.forget_lost()
            if not forced and not has_room:
                member.forget_request()
                return
            members = {}
        else:
            member.cls = cls = next(iter(members.values())).cls  # one object for all
        self._classes.setdefault(namespace, classes)[cls] = members
        members[member.uid] = member
        self._class_of[member.uid] = namespace, cls

    def forget_lost(self) -> None:
        """Forget the requests of members of classes that lost their room in memory."""
        for namespace, cls in self._memory.take_lost():
            assert isinstance(cls, PodClass)
            self._forget(namespace, cls)

    def _forget(self, namespace: str, cls: PodClass) -> None:
        """Forget the requests of all members of a class."""
        if cls not in self._classes.get(namespace, {}):
            return
        for uid, member in self._classes[namespace][cls].items():
            del self._class_of[uid]
            member.forget_request()
        self._drop(namespace, cls)

    def _drop(self, namespace: str, cls: PodClass) -> None:
        classes = self._classes[namespace]
        self._memory.drop(namespace, cls)
        del classes[cls]
        if not classes:
            del self._classes[namespace]


def class_bytes(cls: PodClass) -> int:
    """Return the approximate memory of a class in bytes; 0 for one that can't be large."""
    plain = cls.affinity is None and cls.constraints is None and cls.preferences is None and not cls.claims
    if plain and len(cls.selector) + len(cls.tolerations) + len(cls.plugin_inputs) <= 16:
        return 0
    return _MEMORY_RATIO * len(pickle.dumps(cls, pickle.HIGHEST_PROTOCOL))
