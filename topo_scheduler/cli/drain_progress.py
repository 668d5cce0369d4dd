"""How far the Migrations of a drain are: a table on a terminal, a line for each change elsewhere."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from topo_scheduler.api.base import Base
from topo_scheduler.api.migrations import Migration, Phase
from topo_scheduler.api.process import LeaderElection
from topo_scheduler.cli.common import CommandFailure, say
from topo_scheduler.kube.client import Client, decode
from topo_scheduler.kube.errors import ApiError, NotFound, Unreachable
from topo_scheduler.kube.migrations import MIGRATIONS
from topo_scheduler.kube.resources import segment
from topo_scheduler.recovery.disabled import REASON

if TYPE_CHECKING:
    from rich.table import Table

POLL_SECONDS: Final = 1.0
TIMEOUT_SECONDS: Final = 10.0
SILENCE_SECONDS: Final = 30.0
"""A Migration without a status for so long is reported: no scheduler has looked at it."""
STALE_LEASE_SECONDS: Final = 300.0
"""A Lease renewed longer ago than this has no leader, however much clocks differ."""

_migration: Final = msgspec.json.Decoder(Migration)


class _LeaseSpec(Base):
    holder_identity: str | None = None
    renew_time: str | None = None


class _Lease(Base):
    spec: _LeaseSpec = msgspec.field(default_factory=_LeaseSpec)


_lease: Final = msgspec.json.Decoder(_Lease)


async def check_leader(client: Client, election: LeaderElection) -> None:
    """Warn where no scheduler leads: Migrations wait until one does."""
    if not election.leader_elect:
        return
    namespace, name = election.resource_namespace, election.resource_name
    path = f"/apis/coordination.k8s.io/v1/namespaces/{segment(namespace)}/leases/{segment(name)}"
    try:
        lease = decode(_lease, await client.request("GET", path, timeout=TIMEOUT_SECONDS))
    except NotFound:
        why = "does not exist"
    except ApiError:
        return  # who may not read it learns the same from Migrations that get no status
    else:
        why = _without_leader(lease.spec)
    if why:
        say(
            f"warning: Lease {namespace}/{name} {why}: no scheduler is running, and Migrations wait until one leads",
            err=True,
        )


def _without_leader(spec: _LeaseSpec) -> str:
    if not spec.holder_identity:
        return "has no holder"
    try:
        renewed = datetime.fromisoformat(spec.renew_time or "")
    except ValueError:
        return ""
    seconds = (datetime.now(UTC) - renewed).total_seconds()
    return f"was renewed {seconds:.0f} s ago" if seconds > STALE_LEASE_SECONDS else ""


async def wait_for_migrations(client: Client, names: Sequence[tuple[str, str]], timeout: float | None) -> None:
    """Show how far Migrations are until all have ended.

    Args:
        client: connection to the cluster.
        names: namespace and name of each.
        timeout: longest wait in seconds; None for no limit.

    Raises:
        Failure: one failed or was cancelled, no scheduler acts on one, or time is up.
        KubeError: a refusal of the API server; while it does not answer, the wait goes on.
    """
    from topo_scheduler.cli import render

    began = time.monotonic()
    found: dict[str, Migration | None] = {}
    screen = render.console()
    shown = _ProgressTable(screen) if screen.is_terminal else _LineProgress()
    with shown:
        while True:
            try:
                found = {f"{namespace}/{name}": await _read(client, namespace, name) for namespace, name in names}
            except Unreachable as error:
                shown.note(f"the API server does not answer: {error}")
            else:
                shown.show(found)
                if all(one is None or _over(one) for one in found.values()):
                    break
                if refused := next((key for key, one in found.items() if one is not None and disabled(one)), None):
                    raise CommandFailure(f"Migration {refused}: {state(found[refused])[1]}")
            waited = time.monotonic() - began
            if waited > SILENCE_SECONDS and any(one is not None and untouched(one) for one in found.values()):
                shown.note(f"no scheduler has looked at a Migration within {SILENCE_SECONDS:g} s; does one run?")
            if timeout is not None and waited > timeout:
                left = sum(one is not None and not _over(one) for one in found.values())
                raise CommandFailure(
                    f"{left} of {len(names)} Migrations have not ended within {timeout:g} s; they go on"
                )
            await asyncio.sleep(POLL_SECONDS)
    failed = [f"{key}: {' '.join(state(one)).strip()}" for key, one in found.items() if not succeeded(one)]
    if failed:
        raise CommandFailure("pods stay, or may: these Migrations did not end in Done:\n  " + "\n  ".join(failed))


async def _read(client: Client, namespace: str, name: str) -> Migration | None:
    try:
        path = MIGRATIONS.path(namespace, name)
        return decode(_migration, await client.request("GET", path, timeout=TIMEOUT_SECONDS))
    except NotFound:
        return None


def _over(migration: Migration) -> bool:
    return migration.phase is not None and migration.phase.over


def untouched(migration: Migration) -> bool:
    """Whether no scheduler has written a status yet."""
    return not (migration.status.phase or migration.status.conditions)


def disabled(migration: Migration) -> bool:
    """Whether the scheduler reports that recovery is off."""
    waits = migration.phase in (None, Phase.PLANNED)
    return waits and any(one.reason == REASON for one in migration.status.conditions)


def succeeded(migration: Migration | None) -> bool:
    """Whether its pods have left: they moved, or were gone already."""
    if migration is None:
        return False
    gone = any(one.reason == "NothingToMove" for one in migration.status.conditions)
    return migration.phase is Phase.DONE or (migration.phase is Phase.CANCELLED and gone)


def state(migration: Migration | None) -> tuple[str, str]:
    """Return phase and the most telling message of a Migration; one that was deleted has no phase."""
    if migration is None:
        return "deleted", "it was deleted, which cancels it"
    status = migration.status
    if _over(migration):
        return status.phase, status.message
    lacking = next((one.message for one in reversed(status.conditions) if one.status == "False" and one.message), "")
    return status.phase or "no phase yet", lacking


class _LineProgress:
    """One line for each change."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[str, str]] = {}
        self._noted: set[str] = set()

    def __enter__(self) -> "_LineProgress":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left to close."""

    def show(self, found: Mapping[str, Migration | None]) -> None:
        """Print what changed."""
        ended = sum(one is None or _over(one) for one in found.values())
        for key, migration in found.items():
            now = state(migration)
            if self._before.get(key) != now:
                self._before[key] = now
                phase, message = now
                say(f"{ended} of {len(found)} ended; {key}: {phase}{f': {message}' if message else ''}", err=True)

    def note(self, text: str) -> None:
        """Print a remark, once."""
        if text not in self._noted:
            self._noted.add(text)
            say(f"warning: {text}", err=True)


class _ProgressTable:
    """A table that stays in its place."""

    def __init__(self, screen: "object") -> None:
        from rich.live import Live

        self._live = Live(console=screen, auto_refresh=False)  # type: ignore[arg-type]
        self._note = ""

    def __enter__(self) -> "_ProgressTable":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the last state on the screen."""
        self._live.stop()

    def show(self, found: Mapping[str, Migration | None]) -> None:
        """Draw all of them."""
        self._live.update(self._table(found), refresh=True)
        self._note = ""

    def note(self, text: str) -> None:
        """Show a remark below the table."""
        self._note = text

    def _table(self, found: Mapping[str, Migration | None]) -> "Table":
        from rich.table import Table
        from rich.text import Text

        ended = sum(one is None or _over(one) for one in found.values())
        table = Table(caption=Text(" ".join(filter(None, (f"{ended} of {len(found)} ended.", self._note)))))
        for title in ("Migration", "phase", "message"):
            table.add_column(title)
        for key, migration in found.items():
            table.add_row(*(Text(part) for part in (key, *state(migration))))
        return table
