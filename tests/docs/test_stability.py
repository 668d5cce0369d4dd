"""The page of stable names lists every public name, so that none changes unnoticed."""

import re
from typing import Final

import pytest

from tests.docs.generate import REFERENCE
from tests.docs.printed import COMMANDS_WITH_JSON, written_fields
from tests.docs.public_names import public_names
from tests.docs.stability import SECTIONS, listed_names

_PROMISED_METRICS: Final = {
    "topology_domain_utilization_ratio",
    "topology_gpu_allocation_ratio",
    "topology_placement_decisions_total",
    "topology_recovery_duration_seconds",
}
"""Metrics with the shorter prefix ``topology_``; new ones start with ``topology_scheduler_``."""


def test_the_pages_have_a_section_for_each_kind_of_name() -> None:
    assert listed_names().keys() == public_names().keys() == SECTIONS.keys()


@pytest.mark.parametrize("section", SECTIONS)
def test_every_public_name_is_listed_and_no_other(section: str) -> None:
    names, listed = public_names()[section], listed_names()[section]
    added, removed = sorted(names - listed), sorted(listed - names)
    assert not removed, f"{section}: users rely on {removed}; keep the names, or deprecate them first"
    assert not added, f"{section}: to list {added}, run: python -m tests.docs.generate"


@pytest.mark.parametrize("command", COMMANDS_WITH_JSON)
def test_every_field_that_a_command_may_print_is_in_the_document_of_which_the_names_are_listed(command: str) -> None:
    paths = [name for name in public_names()[f"{command} -o json"] if "=" not in name]
    assert {path.rpartition(".")[2] for path in paths} == written_fields(command)


def test_metrics_have_one_of_two_prefixes() -> None:
    shorter = {
        name for name in public_names()["Metrics"] if not name.startswith("topology_scheduler_") and "{" not in name
    }
    assert shorter == _PROMISED_METRICS
    introduction = (REFERENCE / "metrics.md").read_text(encoding="utf-8").partition("\n## ")[0]
    assert set(re.findall(r"`(topology_\w+)`", introduction)) - {"topology_scheduler"} == _PROMISED_METRICS
