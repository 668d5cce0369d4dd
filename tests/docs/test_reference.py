"""The reference is whole, and as new as the code."""

import ast
import re
import tomllib
from enum import StrEnum
from functools import cache
from typing import Final

import pytest

from tests.docs import config_reference
from tests.docs.command_line import commands
from tests.docs.generate import PAGES, REFERENCE, ROOT
from tests.docs.metric_families import metric_names
from tests.docs.public_names import public_names
from topo_scheduler.api.annotations import KNOWN, Enforcement, PlacementStrategy
from topo_scheduler.api.migration_reasons import ConditionType, MigrationReason
from topo_scheduler.api.migrations import Phase
from topo_scheduler.api.objects import Pod, PodSpec
from topo_scheduler.api.reasons import NodeReason, Reason
from topo_scheduler.cli.main import COMMANDS
from topo_scheduler.state.decision import Verdict
from topo_scheduler.state.pods.classes import unsupported


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_current(name: str) -> None:
    current = (REFERENCE / name).read_text(encoding="utf-8")
    assert current == PAGES[name](), "run: python -m tests.docs.generate"


def _text(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def _column(text: str, number: int = 1) -> list[str]:
    return [cells[number].strip() for line in text.splitlines() if len(cells := line.split("|")) > number + 1]


def test_every_annotation_is_documented_and_no_other() -> None:
    text = "".join(_text(name) for name in ("annotations.md", "annotations-gpus.md", "annotations-written.md"))
    documented = [cell.strip("`") for cell in _column(text) if cell.startswith("`topology.scheduler/")]
    assert sorted(documented) == sorted(KNOWN)
    for value in (*PlacementStrategy, *Enforcement):
        assert f"`{value}`" in text


def test_every_reason_is_documented_and_no_other() -> None:
    events = _text("events.md").partition("## Forms of")[0]
    documented = {cell.strip("`") for cell in _column(events) if cell.startswith("`")}
    assert documented == set(Reason)
    for reason in NodeReason:
        assert f"| `{reason}` |" in _text("events-failed-scheduling.md")


@pytest.mark.parametrize("reasons", [Reason, MigrationReason])
def test_every_reason_is_used_in_the_package(reasons: type[StrEnum]) -> None:
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "topo_scheduler").rglob("*.py"))
    written = {name for source in sources for name in re.findall(rf"\b{reasons.__name__}\.(\w+)", source)}
    made = {MigrationReason(f"Migration{phase}") for phase in Phase if phase.over}
    assert {reason.name for reason in set(reasons) - made} <= written


MESSAGES: Final = {
    "docs/reference/events-failed-scheduling.md": (
        "keep room for pods of other schedulers that are being placed, for",
        "as the API server refused to bind such a pod although a dry run",
        "The scheduler evicts no pod to make room, as the owners of these pods are not known:",
        "would make room in",
        "node(s) with room reserved for replacements of moved pods.",
        "could not be completed:",
        "members were bound. They are evicted, and the gang is tried again in",
        "pending pods already, and the scheduler reads no more of it now",
        "In backoff: the API server rejected the Binding of a pod like this one:",
        "internal error while its specification was read, please report it:",
    ),
    "docs/explanation/reasons.md": ("o matching node could hold this pod even if it were empty",),
    "docs/how-to/troubleshoot.md": ("o matching node could hold", "no node has the GPU model"),
    "docs/explanation/pod-owners.md": (
        "The scheduler evicts no pod to make room, as the owners of these pods are not known:",
    ),
    "docs/how-to/label-nodes.md": ("have no labels for their position in the fabric", "name different leaves"),
    "docs/how-to/troubleshoot-scheduler.md": (
        "cannot contend for the lease",
        "lease not renewed",
        "not leading any more",
        "the changed configuration is refused",
        "is left out: it does not decode",
        "is in use by another process",
    ),
}
"""Fixed parts of messages that pages quote."""


@pytest.mark.parametrize(("page", "part"), [(page, part) for page, parts in MESSAGES.items() for part in parts])
def test_a_message_on_a_page_is_that_of_the_code(page: str, part: str) -> None:
    assert part in " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert any(part in text for text in _texts())


@cache
def _texts() -> frozenset[str]:
    """Return the string literals of the package; those that stand side by side are one."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "topo_scheduler").rglob("*.py"))
    nodes = (node for tree in trees for node in ast.walk(tree))
    return frozenset(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


REASONS_OF_PROGRESS: Final = {
    MigrationReason.PLANNED,
    MigrationReason.NODES_RESERVED,
    MigrationReason.GONE,
    MigrationReason.BOUND,
}
"""The Migration goes on as it should: no row about stuck Migrations has to explain these."""
REASONS_OF_EVENTS_ONLY: Final = {
    MigrationReason.MIGRATION_DONE,
    MigrationReason.MIGRATION_FAILED,
    MigrationReason.MIGRATION_CANCELLED,
    MigrationReason.STATUS_NOT_WRITTEN,
}
NO_REASONS: Final = {
    *("Migration", "Migrating", "Normal", "Warning", "Accept", "RelocationRequest"),
    *("CrashLoopBackOff", "Failed", "Running", "Ready", "True", "False", "Unknown"),  # of pods and nodes
}
"""Words in the code of recovery that look like reasons."""


def _words(*patterns: str) -> set[str]:
    """Return the string literals of modules that look like reasons."""
    paths = [path for pattern in patterns for path in (ROOT / "topo_scheduler").glob(pattern)]
    assert paths
    nodes = (node for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    literals = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return {text for text in literals if re.fullmatch(r"(?:[A-Z][a-z]+)+", text)}


def test_no_reason_or_type_of_a_condition_of_a_migration_is_a_literal() -> None:
    assert _words("recovery/**/*.py", "kube/writing/migrations.py") == NO_REASONS
    assert not {*MigrationReason, *ConditionType} & (NO_REASONS | _words("cli/drain*.py"))


def test_every_reason_of_a_stuck_migration_is_explained_and_no_other() -> None:
    page = (ROOT / "docs" / "how-to" / "recover.md").read_text(encoding="utf-8")
    table = page.partition("## When a Migration is stuck")[2].partition("\n## ")[0]
    explained = {name for cell in _column(table, 2) for name in re.findall(r"`(\w+)`", cell)}
    assert explained == set(MigrationReason) - REASONS_OF_PROGRESS - REASONS_OF_EVENTS_ONLY
    types = {name for cell in _column(table) for name in re.findall(r"`(\w+)=", cell)}
    assert types == set(ConditionType)


def test_every_reason_of_an_event_on_a_migration_is_documented() -> None:
    events = _text("migrations.md").partition("## Events")[2]
    documented = {name for cell in _column(events) for name in re.findall(r"`(\w+)`", cell)}
    assert REASONS_OF_EVENTS_ONLY <= documented <= {*MigrationReason, *Reason}


def test_verdicts_of_decisions_are_those_of_the_metric() -> None:
    text = (REFERENCE / "metrics.md").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith("- `verdict`"))
    assert set(re.findall(r"`(\w+)`", line)) == {"verdict", Verdict.PLACED, Verdict.UNSCHEDULABLE}


def test_every_label_of_a_metric_is_explained() -> None:
    text = (REFERENCE / "metrics.md").read_text(encoding="utf-8")
    explained = {
        name
        for line in text.splitlines()
        if line.startswith("- ")
        for name in re.findall(r"`(\w+)`", line.split(":")[0])
    } | set(re.findall(r"; `(\w+)`: ", text))
    used = {
        name for row in text.splitlines() if row.startswith("| `") for name in re.findall(r"\w+", row.split("|")[3])
    }
    assert used <= explained


def test_every_metric_named_in_the_docs_or_an_alert_exists() -> None:
    known = metric_names()
    suffixes = ("_bucket", "_sum", "_count")
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "manifests").rglob("*rule.yaml")]
    for page in pages:
        for name in re.findall(r"\b(?:topology|scheduler)_[a-z_]+\b", page.read_text(encoding="utf-8")):
            whole = next((name.removesuffix(suffix) for suffix in suffixes if name.endswith(suffix)), name)
            assert whole in known or (ROOT / "topo_scheduler" / name).exists() or name == "topology_scheduler", (
                f"{page.name}: {name}"
            )


def test_every_command_can_be_had() -> None:
    assert set(commands()) == set(COMMANDS)


def _refused() -> dict[str, Pod]:
    specs = {
        "workload": PodSpec(workload_ref={}),
    }
    return {name: Pod(spec=spec) for name, spec in specs.items()}


@pytest.mark.parametrize(("name", "pod"), _refused().items())
def test_every_refused_constraint_is_in_the_list_of_limits(name: str, pod: Pod) -> None:
    text = (ROOT / "docs" / "explanation" / "limits.md").read_text(encoding="utf-8")
    reason = unsupported(pod)
    assert reason, name
    assert f"| {reason} |" in text


def test_the_list_of_limits_has_nothing_that_is_supported() -> None:
    text = (ROOT / "docs" / "explanation" / "limits.md").read_text(encoding="utf-8").partition("## Told")[0]
    reasons = set(_column(text, 2)) - {"---"}
    assert {reason for reason in reasons if "`" not in reason} == {unsupported(pod) for pod in _refused().values()}


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["sweep"], *extras["mutation"]]
    declared = {re.match(r"[\w-]+", requirement)[0] for requirement in wanted}  # type: ignore[index]
    text = (ROOT / "docs" / "decisions" / "0002-dependencies.md").read_text(encoding="utf-8")
    explained = {name for cell in _column(text) for name in re.findall(r"`([\w-]+)`", cell)}
    assert explained == declared


@pytest.mark.parametrize("section", ["SchedulerConfig", "TopologySchedulerConfig"])
def test_every_field_of_the_configuration_is_on_a_page(section: str) -> None:
    pages = [name for name in config_reference.PAGES if name != "config.md"]
    listed = {cell.strip("`") for name in pages for cell in _column(_text(name))}
    fields = {name for name in public_names()[section] if "=" not in name}
    assert fields - {"apiVersion", "kind", "metadata", "spec"} <= listed


def test_the_overview_links_every_field_of_the_spec() -> None:
    linked = re.findall(r"^\| \[`(spec\.\w+)`\]", _text("config.md"), re.MULTILINE)
    spec = {field for field in public_names()["TopologySchedulerConfig"] if re.fullmatch(r"spec\.\w+", field)}
    assert sorted(linked) == sorted(spec)
