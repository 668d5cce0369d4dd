"""The use of devices on a trial: as if some pods were gone and Kubernetes had deallocated what only they used."""

from collections.abc import Iterable

from topo_scheduler.api.devices import Allocation
from topo_scheduler.state.devices.inventory import ClaimKey, DeviceChanges, DeviceInventory, DevicesInUse
from topo_scheduler.state.devices.pools import DeviceId, PoolId


class DevicesOnTrial(DeviceInventory):
    """An inventory that shares everything with the original, except which claims are allocated.

    It is valid until the original changes. Nothing but `leave`, `come_back` and `nominate` may be called to change it.
    """

    def __init__(self, original: DeviceInventory) -> None:
        super().__init__()
        vars(self).update(vars(original))
        self._use_versions = dict(original._use_versions)
        self._pool_versions = dict(original._pool_versions)
        self._nominated = {device: dict(pods) for device, pods in original._nominated.items()}
        self._changes = DeviceChanges()
        self._gone: dict[str, None] = {}
        self._freed: dict[ClaimKey, None] = {}

    @property
    def freed(self) -> Iterable[ClaimKey]:
        """Claims that are allocated, but not on this trial."""
        return self._freed.keys()

    def leave_departed(self, stuck: Iterable[ClaimKey] = ()) -> None:
        """Free the claims of pods that are gone already, except those that Kubernetes failed to deallocate."""
        self.leave(self.consumers.departed)
        for key in stuck:
            self._settle(key, freed=False)

    def leave(self, uids: Iterable[str]) -> None:
        """Free the claims that no pod uses once these are gone too."""
        left = list(uids)
        self._gone |= dict.fromkeys(left)
        for uid in left:
            for key in self.consumers.claims_of(uid):
                self._settle(key, freed=self._is_freed(key))

    def come_back(self, uids: Iterable[str]) -> None:
        """Return pods that left."""
        for uid in uids:
            self._gone.pop(uid, None)
            for key in self.consumers.claims_of(uid):
                self._settle(key, freed=False)

    def _is_freed(self, key: ClaimKey) -> bool:
        claim = self.claims.get(key)
        if claim is None or claim.status.allocation is None:
            return False
        return self.consumers.is_freed_without(claim, self._gone) and all(
            uid in self._gone for uid in self.holders_of(key)
        )

    def _settle(self, key: ClaimKey, *, freed: bool) -> None:
        if freed == (key in self._freed):
            return
        if freed:
            self._freed[key] = None
        else:
            del self._freed[key]
        for pool in self.pools_of_claim(key):
            self._pool_changed(pool, used=True)

    def pools_of_claim(self, key: ClaimKey) -> set[PoolId]:
        """Return the pools of the devices of a claim."""
        return {device[:2] for device in self._uses.get(key, ())}

    def devices_of_claim(self, key: ClaimKey) -> Iterable[DeviceId]:
        """Return the devices of a claim, those with admin access excluded."""
        return self._uses.get(key, {}).keys()

    # ------------------------------------------------------------ use of devices

    def use_of(self, devices: Iterable[DeviceId]) -> DevicesInUse:
        """Return which of some devices are in use on this trial."""
        return self._use_without(devices, self._freed)

    def use_of_pools(self, pools: Iterable[PoolId]) -> DevicesInUse:
        """Return which devices of some pools are in use on this trial."""
        if not self._freed:
            return super().use_of_pools(pools)
        return self.use_of(self._used_devices(list(pools)))

    def allocation_of(self, key: ClaimKey) -> Allocation | None:
        """Return the allocation of a claim on this trial."""
        return None if key in self._freed else super().allocation_of(key)
