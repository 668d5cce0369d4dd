"""The parts that mutants are drawn from, and the tests that may notice them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = "topo_scheduler"


@dataclass(frozen=True)
class Target:
    """A part of the package. ``modules`` are files or folders below ``topo_scheduler``, or patterns of files."""

    name: str
    modules: tuple[str, ...]

    def files(self) -> list[Path]:
        """Return the modules' files, relative to the checkout, in order."""
        paths: set[Path] = set()
        for module in self.modules:
            path = ROOT / PACKAGE / module
            paths.update(path.rglob("*.py") if path.is_dir() else path.parent.glob(path.name))
        return sorted(path.relative_to(ROOT) for path in paths if path.name != "__init__.py")


TARGETS: Final[Sequence[Target]] = (
    Target("state", ("state",)),
    Target("scheduling/binding", ("scheduling/binding",)),
    Target("scheduling/preemption", ("scheduling/preemption",)),
    Target("scheduling/queueing", ("scheduling/queueing",)),
    Target("scheduling/intake", ("scheduling/intake",)),
    Target("scheduling/rules", ("scheduling/rules",)),
    Target("scheduling/placing", ("scheduling/placing",)),
    Target("recovery", ("recovery",)),
    Target("kube/lease", ("kube/leading/lease.py", "kube/connection/fence.py")),
    Target("observability", ("observability",)),
    Target("scheduling/explaining", ("scheduling/explaining", "scheduling/surveying")),
    Target(
        "scheduling, the rest",
        ("scheduling/*.py", "scheduling/devices", "scheduling/extensions", "scheduling/moving", "scheduling/reserving"),
    ),
)
TESTS: Final = tuple(
    f"tests/{name}"
    for name in (
        *("api", "state", "scheduling", "recovery", "observability", "recording", "plugins", "evicting", "devices"),
        *("cli/test_filter.py", "breaking/test_leaders.py", "breaking/test_fenced_writes.py"),
        *("kube/test_fence.py", "kube/test_lease.py", "kube/test_lease_properties.py"),
    )
)
"""Tests of these parts. None needs a process of its own or waits for seconds."""
