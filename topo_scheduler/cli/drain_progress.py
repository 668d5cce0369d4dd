"""Progress of the Migrations of a drain: a table on a terminal, a line for each change elsewhere."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from topo_scheduler.api.migration_reasons import MigrationReason
from topo_scheduler.api.migrations import Migration, Phase
from topo_scheduler.api.process import LeaderElection
from topo_scheduler.cli.common import CommandFailure, say
from topo_scheduler.kube.connection.client import Client, decode
from topo_scheduler.kube.connection.errors import ApiError, NotFound, Unreachable
from topo_scheduler.kube.connection.resources import segment
from topo_scheduler.kube.writing.migrations import MIGRATIONS
from topo_scheduler.recovery.model.migration_state import reports_recovery_off

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

POLL_SECONDS: Final = 1.0
TIMEOUT_SECONDS: Final = 10.0
SILENCE_SECONDS: Final = 30.0
"""Seconds after which a Migration without a status is reported: no scheduler has handled it."""
STALE_LEASE_SECONDS: Final = 300.0
"""Seconds since the last renewal after which a Lease counts as without a leader, even if clocks differ."""

PLACING: Final = (
    "waits until controllers create the replacements and these are bound; the Job controller delays them by 10 s,"
    " doubled for each further lost pod"
)
"""What a Migration waits for after its evictions. Its status does not change meanwhile."""

_migration: Final = msgspec.json.Decoder(Migration)
_object: Final = msgspec.json.Decoder(dict[str, Any])


async def check_leader(client: Client, election: LeaderElection) -> None:
    """Warn if no scheduler leads: Migrations stay pending until one does."""
    if not election.leader_elect:
        return
    namespace, name = election.resource_namespace, election.resource_name
    path = f"/apis/coordination.k8s.io/v1/namespaces/{segment(namespace)}/leases/{segment(name)}"
    try:
        lease = decode(_object, await client.request("GET", path, timeout=TIMEOUT_SECONDS))
    except NotFound:
        problem = "does not exist"
    except ApiError:
        return  # without this permission, users see Migrations that get no status
    else:
        problem = _without_leader(lease.get("spec") or {})
    if problem:
        say(
            f"warning: Lease {namespace}/{name} {problem}: no scheduler is running, and Migrations wait until one"
            " leads",
            err=True,
        )


def _without_leader(lease_spec: dict[str, Any]) -> str:
    if not lease_spec.get("holderIdentity"):
        return "has no holder"
    try:
        renewed = datetime.fromisoformat(lease_spec.get("renewTime") or "")
    except ValueError:
        return ""
    seconds = (datetime.now(UTC) - renewed).total_seconds()
    return f"was renewed {seconds:.0f} s ago" if seconds > STALE_LEASE_SECONDS else ""


async def wait_for_migrations(
    client: Client, names: Sequence[tuple[str, str]], timeout: float | None, waited: float = 0.0
) -> None:
    """Show the progress of Migrations until all have ended.

    Args:
        client: connection to the cluster.
        names: namespace and name of each Migration.
        timeout: longest wait in seconds; None for no limit.
        waited: seconds of it that earlier Migrations took.

    Raises:
        CommandFailure: a Migration failed or was cancelled, no scheduler handles one, or the time is up.
        KubeError: the API server refused a request; while it does not answer, the wait goes on.
    """
    from topo_scheduler.cli import render

    started = time.monotonic()
    migrations: dict[str, Migration | None] = {}
    screen = render.console()
    with _progress_table(screen) if screen.is_terminal else nullcontext(_LineProgress()) as display:
        while True:
            try:
                migrations = {f"{namespace}/{name}": await _read(client, namespace, name) for namespace, name in names}
            except Unreachable as error:
                display.note(f"the API server does not answer: {error}")
            else:
                display.show(migrations)
                if all(migration is None or _over(migration) for migration in migrations.values()):
                    break
                if refused := next(
                    (key for key, migration in migrations.items() if migration is not None and disabled(migration)),
                    None,
                ):
                    raise CommandFailure(f"Migration {refused}: {state(migrations[refused])[1]}")
            elapsed = time.monotonic() - started
            if elapsed > SILENCE_SECONDS and any(
                migration is not None and untouched(migration) for migration in migrations.values()
            ):
                display.note(f"no scheduler has read a Migration within {SILENCE_SECONDS:g} s; does one run?")
            if timeout is not None and waited + elapsed > timeout:
                raise CommandFailure(_time_is_up(migrations, timeout))
            await asyncio.sleep(POLL_SECONDS)
    failures = [
        f"{key}: {' '.join(state(migration)).strip()}"
        for key, migration in migrations.items()
        if not succeeded(migration)
    ]
    if failures:
        raise CommandFailure("pods stay, or may: these Migrations did not end in Done:\n  " + "\n  ".join(failures))


def _time_is_up(migrations: Mapping[str, Migration | None], timeout: float) -> str:
    """Return how many Migrations have not ended in time, and what becomes of them."""
    unfinished = [migration for migration in migrations.values() if migration is not None and not _over(migration)]
    text = f"{len(unfinished)} of {len(migrations)} Migrations have not ended within {timeout:g} s"
    if stopped := sum(map(reports_recovery_off, unfinished)):
        return f"{text}; {stopped} of them will not continue until recovery is on: set recovery.enabled to true"
    return f"{text}; they continue"


async def _read(client: Client, namespace: str, name: str) -> Migration | None:
    try:
        path = MIGRATIONS.path(namespace, name)
        return decode(_migration, await client.read(path, name, timeout=TIMEOUT_SECONDS))
    except NotFound:
        return None


def _over(migration: Migration) -> bool:
    return migration.phase is not None and migration.phase.over


def untouched(migration: Migration) -> bool:
    """Whether no scheduler has written a status yet."""
    return not (migration.status.phase or migration.status.conditions)


def disabled(migration: Migration) -> bool:
    """Whether the scheduler reports that recovery is off."""
    not_started = migration.phase in (None, Phase.PLANNED)
    return not_started and any(
        condition.reason == MigrationReason.RECOVERY_DISABLED for condition in migration.status.conditions
    )


def succeeded(migration: Migration | None) -> bool:
    """Whether its pods have left the nodes: they moved, or were already gone."""
    if migration is None:
        return False
    nothing_to_move = any(
        condition.reason == MigrationReason.NOTHING_TO_MOVE for condition in migration.status.conditions
    )
    return migration.phase is Phase.DONE or (migration.phase is Phase.CANCELLED and nothing_to_move)


def state(migration: Migration | None) -> tuple[str, str]:
    """Return phase and the most specific message of a Migration; a deleted one has no phase."""
    if migration is None:
        return "deleted", "it was deleted, which cancels it"
    status = migration.status
    if _over(migration):
        return status.phase, status.message
    reason = next(
        (
            condition.message
            for condition in reversed(status.conditions)
            if condition.status == "False" and condition.message
        ),
        "",
    )
    if migration.phase is Phase.PLACING and not migration.shrinks:
        reason = reason or PLACING
    return status.phase or "no phase yet", reason


class _LineProgress:
    """One line for each change."""

    def __init__(self) -> None:
        self._last_states: dict[str, tuple[str, str]] = {}
        self._noted: set[str] = set()

    def show(self, migrations: Mapping[str, Migration | None]) -> None:
        """Print a line for each Migration whose state changed."""
        ended = sum(migration is None or _over(migration) for migration in migrations.values())
        for key, migration in migrations.items():
            current = state(migration)
            if self._last_states.get(key) != current:
                self._last_states[key] = current
                phase, message = current
                say(f"{ended} of {len(migrations)} ended; {key}: {phase}{f': {message}' if message else ''}", err=True)

    def note(self, text: str) -> None:
        """Print a remark, once."""
        if text not in self._noted:
            self._noted.add(text)
            say(f"warning: {text}", err=True)


@contextmanager
def _progress_table(screen: "Console") -> "Iterator[_ProgressTable]":
    """Show a table; its last state stays on the screen."""
    from rich.live import Live

    with Live(console=screen, auto_refresh=False) as live:
        yield _ProgressTable(live)


class _ProgressTable:
    """A table that is updated in place."""

    def __init__(self, live: "Live") -> None:
        self._live = live
        self._note = ""

    def show(self, migrations: Mapping[str, Migration | None]) -> None:
        """Draw all Migrations."""
        self._live.update(self._table(migrations), refresh=True)
        self._note = ""

    def note(self, text: str) -> None:
        """Show a remark below the table."""
        self._note = text

    def _table(self, migrations: Mapping[str, Migration | None]) -> "Table":
        from rich.table import Table
        from rich.text import Text

        ended = sum(migration is None or _over(migration) for migration in migrations.values())
        table = Table(caption=Text(" ".join(filter(None, (f"{ended} of {len(migrations)} ended.", self._note)))))
        for title in ("Migration", "phase", "message"):
            table.add_column(title)
        for key, migration in migrations.items():
            table.add_row(*(Text(part) for part in (key, *state(migration))))
        return table
