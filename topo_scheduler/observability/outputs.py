"""Files for decisions: the directory of a record, and the audit log. They stay open across terms."""

from dataclasses import dataclass
from pathlib import Path

from topo_scheduler.api.config import ConfigError
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.observability.audit_file import AuditFile, NotAppendable
from topo_scheduler.observability.metrics import WrittenCounts
from topo_scheduler.observability.segment_writer import NotWritable, SegmentLimits, SegmentWriter


@dataclass(slots=True)
class Outputs:
    """The open outputs; None for those that are not configured."""

    record: SegmentWriter | None = None
    audit: AuditFile | None = None

    def reopen(self) -> None:
        """Open the audit log again."""
        if self.audit is not None:
            self.audit.reopen()

    def state(self) -> WrittenCounts:
        """Return the counts of written and dropped lines and bytes."""
        record, audit = self.record, self.audit
        return WrittenCounts(
            record_bytes=record.written if record is not None else 0,
            record_calls=record.lines if record is not None else 0,
            record_stopped=record is not None and bool(record.failed),
            audit_lines=audit.lines if audit is not None else 0,
            audit_dropped=audit.dropped if audit is not None else 0,
        )

    def close(self) -> None:
        """Write the remaining data and close. Blocks for a bounded time."""
        for output in (self.record, self.audit):
            if output is not None:
                output.close()


def open_outputs(config: SchedulerConfig) -> Outputs:
    """Open the configured outputs.

    Raises:
        ConfigError: a directory or file can't be used. The message has its name and the remedy.
    """
    outputs, record = Outputs(), config.record
    try:
        if record.directory:
            bounds = SegmentLimits(record.max_bytes, record.bytes_of_segment, record.segment_age)
            outputs.record = SegmentWriter(Path(record.directory), bounds)
        if config.audit_log.path:
            outputs.audit = AuditFile(config.audit_log.path)
    except NotWritable as error:
        raise ConfigError(f"--record: {error}") from error
    except NotAppendable as error:
        outputs.close()
        raise ConfigError(f"--audit-log: {error}") from error
    return outputs
