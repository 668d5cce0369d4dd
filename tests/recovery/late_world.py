"""A world whose API server is slow: requests, answers, and what the watch reports arrive when the test says so."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tests.recovery.guarded_world import GuardedWorld
from tests.recovery.world import copy_of
from topo_scheduler.api.migrations import Migration, MigrationWrite
from topo_scheduler.recovery.model.instructions import (
    CreateMigration,
    DeleteMigration,
    MigrationRequest,
    RecoveryInstruction,
    WriteStatus,
)


def never(_: MigrationRequest) -> bool:
    """Let no request be slow."""
    return False


def always(_: MigrationRequest) -> bool:
    """Let all requests be slow."""
    return True


@dataclass
class LateWorld(GuardedWorld):
    """Slow requests reach the server in any order, and so do its answers; the watch reports changes in their order."""

    is_late: Callable[[MigrationRequest], bool] = never
    requests: list[MigrationRequest] = field(default_factory=list)
    answers: list[Callable[[], None]] = field(default_factory=list)
    reports: deque[Callable[[], None]] = field(default_factory=deque)

    def start(self) -> None:
        """Requests of the former daemon may still reach the server; no answer is read."""
        self.answers.clear()
        self.reports.clear()
        super().start()

    def carry_out(self, instruction: RecoveryInstruction) -> None:
        """Do what recovery wants done, or keep the request for later."""
        if isinstance(instruction, CreateMigration | WriteStatus | DeleteMigration) and self.is_late(instruction):
            self.requests.append(instruction)
        else:
            super().carry_out(instruction)

    def cancel(self, key: str) -> None:
        """A user deletes a Migration; the watch reports that in its turn."""
        self._report_deletion(self.migrations.pop(key))

    def _report_deletion(self, migration: Migration) -> None:
        key, uid = migration.key, migration.metadata.uid
        self.reports.append(lambda: self.recovery.migrations.gone(key, uid))

    def serve(self, request: MigrationRequest) -> None:
        """Let a request reach the server."""
        before, written = self.migrations.get(request.key), None
        match request:
            case CreateMigration(namespace, name, spec):
                written = self._create(namespace, name, spec)
                outcome = MigrationWrite.WRITTEN if written is not None else MigrationWrite.STALE
            case WriteStatus():
                written = self._patch(request)
                missed = MigrationWrite.STALE if before is not None else MigrationWrite.GONE
                outcome = MigrationWrite.WRITTEN if written is not None else missed
            case DeleteMigration(_, _, uid, version):
                deleted = self._delete(request.key, uid, version)
                outcome = MigrationWrite.WRITTEN if deleted else MigrationWrite.STALE
                if deleted and before is not None:
                    self._report_deletion(before)
        if written is not None:
            seen = copy_of(written)
            self.reports.append(lambda: self.recovery.migration_seen(seen, self.now))
        self.answers.append(lambda: self.recovery.wrote(request, outcome, "", written, self.now))

    def serve_all(self) -> None:
        """Let all requests reach the server."""
        requests, self.requests = self.requests, []
        for request in requests:
            self.serve(request)

    def report_all(self) -> None:
        """Let the watch report all changes."""
        while self.reports:
            self.reports.popleft()()

    def answer_all(self) -> None:
        """Let all answers arrive."""
        while self.answers:
            self.answers.pop(0)()

    def let_pass(self, random: Random) -> None:
        """Let some requests, reports and answers arrive."""
        for _ in range(random.choice((0, 1, 3, 10))):
            kind = random.randrange(3)
            if kind == 0 and self.requests:
                self.serve(self.requests.pop(random.randrange(len(self.requests))))
            elif kind == 1 and self.answers:
                self.answers.pop(random.randrange(len(self.answers)))()
            elif kind == 2 and self.reports:
                self.reports.popleft()()

    def catch_up(self) -> None:
        """Let everything arrive, answers last, and nothing be late any more."""
        self.is_late = never
        self.serve_all()
        self.report_all()
        self.answer_all()
