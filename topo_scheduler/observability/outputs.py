"""Where decisions are written down: the directory of a record, the file of the audit log. They outlive a term."""

from dataclasses import dataclass
from pathlib import Path

from topo_scheduler.api.config import ConfigError
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.observability.audit_file import AuditFile, NotAppendable
from topo_scheduler.observability.metrics import WrittenCounts
from topo_scheduler.observability.segment_writer import NotWritable, SegmentLimits, SegmentWriter


@dataclass(slots=True)
class Outputs:
    """What is open; None for what was not asked for."""

    record: SegmentWriter | None = None
    audit: AuditFile | None = None

    def reopen(self) -> None:
        """Open the audit log anew."""
        if self.audit is not None:
            self.audit.reopen()

    def state(self) -> WrittenCounts:
        """Return how it goes."""
        record, audit = self.record, self.audit
        return WrittenCounts(
            record_bytes=record.written if record is not None else 0,
            record_calls=record.lines if record is not None else 0,
            record_stopped=record is not None and bool(record.failed),
            audit_lines=audit.lines if audit is not None else 0,
            audit_dropped=audit.dropped if audit is not None else 0,
        )

    def close(self) -> None:
        """Write what is left; blocks for a bounded time."""
        for output in (self.record, self.audit):
            if output is not None:
                output.close()


def open_outputs(config: SchedulerConfig) -> Outputs:
    """Open what the configuration asks for.

    Raises:
        ConfigError: a directory or file that can't be used; the message names it and the remedy.
    """
    outputs, asked = Outputs(), config.record
    try:
        if asked.directory:
            bounds = SegmentLimits(asked.max_bytes, asked.bytes_of_segment, asked.segment_age)
            outputs.record = SegmentWriter(Path(asked.directory), bounds)
        if config.audit_log.path:
            outputs.audit = AuditFile(config.audit_log.path)
    except NotWritable as error:
        raise ConfigError(f"--record: {error}") from error
    except NotAppendable as error:
        outputs.close()
        raise ConfigError(f"--audit-log: {error}") from error
    return outputs
