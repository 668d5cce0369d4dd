"""Which pods use which claims, and which claims become free once some of these pods are gone.

Only pods of its namespace can use a claim. A user who may write the status of a claim can reserve it for any pod. So
pods of other namespaces do not count: no claim makes them hold devices.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final, Protocol

from topo_scheduler.api.devices import DELETE_PROTECTION, Consumer, ResourceClaim
from topo_scheduler.api.objects import Pod

_ClaimKey = tuple[str, str]
_NOTHING: Final[Mapping[_ClaimKey, None]] = {}


class BoundPods(Protocol):
    """Pods that are bound, or about to be bound, and have not ended."""

    def get(self, uid: str) -> object | None:
        """Return what is known of a pod, None if it is no such pod."""

    def namespace_of(self, uid: str) -> str | None:
        """Return the namespace of such a pod, None if it is not known."""


class PodsWithoutNode(Protocol):
    """Pods of this scheduler that have no node yet."""

    def get(self, uid: str) -> Pod | None:
        """Return such a pod, None if it is no such pod."""


class ClaimConsumers:
    """The pods for which claims are reserved, by claim and by pod."""

    def __init__(self, bound_pods: BoundPods | None = None, pending_pods: PodsWithoutNode | None = None) -> None:
        """``bound_pods`` knows the namespaces of pods; without it any pod may use any claim.

        Without ``pending_pods`` no pod counts as one of this scheduler that is undecided.
        """
        self.bound_pods = bound_pods
        self.pending_pods = pending_pods
        self._pods: dict[_ClaimKey, tuple[str, ...]] = {}
        self._claims: dict[str, dict[_ClaimKey, None]] = {}
        self._departed: dict[str, None] = {}
        self.removed = 0
        """How many pods that are gone Kubernetes has removed from all their claims."""
        self._left: dict[_ClaimKey, None] = {}

    def changed(self, key: _ClaimKey, claim: ResourceClaim | None) -> None:
        """Record a claim that changed; None if it is gone."""
        pods = tuple(entry.uid for entry in claim.status.reserved_for if entry.uid) if claim is not None else ()
        known = self._pods.get(key, ())
        if pods == known:
            return
        for uid in pods:
            self._claims.setdefault(uid, {})[key] = None
        for uid in set(known).difference(pods):
            claims = self._claims.get(uid, {})
            claims.pop(key, None)
            if not claims:
                self._claims.pop(uid, None)
                if uid in self._departed:
                    del self._departed[uid]
                    self.removed += 1
        if pods:
            self._pods[key] = pods
        else:
            self._pods.pop(key, None)
            if claim is not None:
                self._left[key] = None

    def take_left(self) -> Mapping[_ClaimKey, None]:
        """Return the claims whose last pod was taken off them since the last call."""
        left, self._left = self._left, {}
        return left

    def depart(self, uid: str) -> None:
        """Record that a pod is gone. Kubernetes soon removes it from its claims."""
        if uid in self._claims:
            self._departed[uid] = None

    def all_listed(self, exists: Callable[[str], bool]) -> None:
        """Record that all pods are listed: those that only claims still name are gone.

        An earlier process may have seen them end, while Kubernetes has not deallocated their claims yet.

        Args:
            exists: returns whether a pod by uid exists and has not ended.
        """
        self._departed |= {uid: None for uid in self._claims if not exists(uid)}

    def appear(self, uid: str) -> None:
        """Record that a pod exists: it may have been listed before it, and its claim after it."""
        self._departed.pop(uid, None)

    def claims_of(self, uid: str) -> Iterable[_ClaimKey]:
        """Return the claims that are reserved for a pod, those of its namespace."""
        return [key for key in self._claims.get(uid, _NOTHING) if self.may_use(uid, key[0])]

    def may_use(self, uid: str, namespace: str) -> bool:
        """Return whether a pod may use claims of a namespace; so may any pod whose namespace is not known."""
        return self.bound_pods is None or self.bound_pods.namespace_of(uid) in (namespace, None)

    def is_undecided(self, entry: Consumer, namespace: str) -> bool:
        """Return whether a claim of a namespace is reserved for a pod of this scheduler that neither runs nor will.

        Another scheduler may be about to bind a pod of its own. So only pods that are pending here count.
        """
        if self.pending_pods is None or self.bound_pods is None or entry.resource != "pods":
            return False
        pod = self.pending_pods.get(entry.uid)
        return pod is not None and pod.metadata.namespace == namespace and self.bound_pods.get(entry.uid) is None

    def pods_of(self, key: _ClaimKey) -> int:
        """Return for how many pods a claim is reserved."""
        return len(self._pods.get(key, ()))

    @property
    def departed(self) -> Iterable[str]:
        """Pods that are gone, while claims are still reserved for them."""
        return self._departed.keys()

    def is_freed_without(self, claim: ResourceClaim, departed: Container[str]) -> bool:
        """Return whether kube-controller-manager deallocates a claim once some pods are gone.

        It does so when the last pod that uses the claim is gone, if the claim has the finalizer for that. Without it,
        the claim must be deleted together with the pod that it was made for.

        Args:
            claim: the claim, allocated.
            departed: uids of pods.
        """
        if not self.is_only_for(claim, departed):
            return False
        owner = claim.metadata.controller
        return DELETE_PROTECTION in claim.metadata.finalizers or (
            owner is not None and owner.kind == "Pod" and owner.uid in departed
        )

    def is_only_for(self, claim: ResourceClaim, pods: Container[str]) -> bool:
        """Return whether a claim is reserved for some of these pods, and for nothing else."""
        namespace = claim.metadata.namespace
        consumers = [entry for entry in claim.status.reserved_for if self.may_use(entry.uid, namespace)]
        return bool(consumers) and all(entry.resource == "pods" and entry.uid in pods for entry in consumers)
