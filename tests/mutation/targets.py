"""Which tests are nearest to which modules. A mutant that only other tests would notice counts as survived."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
SCHEDULING: Final = "tests/scheduling"


@dataclass(frozen=True)
class Target:
    """A part of the package. ``modules`` are files or folders below ``topo_scheduler``, ``tests`` what is run."""

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]

    def files(self) -> list[Path]:
        """Return the modules' files, relative to the checkout, in order."""
        found: set[Path] = set()
        for module in self.modules:
            path = ROOT / "topo_scheduler" / module
            found.update(path.rglob("*.py") if path.is_dir() else [path])
        return sorted(path.relative_to(ROOT) for path in found if path.name != "__init__.py")


def _of(names: str) -> tuple[str, ...]:
    return tuple(f"{SCHEDULING}/test_{name}.py" for name in names.split())


TARGETS: Final[Sequence[Target]] = (
    Target("state", ("state",), ("tests/state", *_of("claims filters sharing bandwidth link_load small_pods"))),
    Target(
        "scheduling/binding",
        ("scheduling/binding",),
        _of("half_gangs rollback binding held_back contested refusals restart barrier leaving volumes"),
    ),
    Target(
        "scheduling/preemption",
        ("scheduling/preemption", "scheduling/barrier.py"),
        _of("preemption preempting budgets barrier telling regions"),
    ),
    Target(
        "scheduling/queueing",
        ("scheduling/queueing",),
        _of("queue fairness turns waking rechecks waiting_for_pods sharing gangs rollback"),
    ),
    Target(
        "scheduling/intake",
        ("scheduling/intake",),
        _of(
            "understanding leaving unread claims caps pending gangs groups pod_groups half_gangs restart siblings"
            " subgroups"
        ),
    ),
    Target(
        "scheduling/rules",
        ("scheduling/rules",),
        _of("filters neighbours wishes volumes volume_properties tied hostname_spread tied_reference"),
    ),
    Target(
        "scheduling/placing",
        ("scheduling/placing",),
        _of(
            "planner_reference packing mixed tied tied_reference segments small_pods size_rule levels stranding views"
            " share_prices"
        ),
    ),
    Target("recovery", ("recovery",), ("tests/recovery",)),
    Target(
        "kube/lease",
        ("kube/lease.py", "kube/fence.py"),
        ("tests/kube/test_lease.py", "tests/kube/test_lease_properties.py", "tests/kube/test_fence.py"),
    ),
    Target("observability", ("observability",), ("tests/observability",)),
)
