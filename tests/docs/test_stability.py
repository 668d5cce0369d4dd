"""The page of stable names lists every public name, so that none changes unnoticed."""

import re
from typing import Final

import pytest

from tests.docs.stability import PAGE, public_names

NAMES = public_names()
_PROMISED_METRICS: Final = {
    "topology_domain_utilization_ratio",
    "topology_gpu_allocation_ratio",
    "topology_placement_decisions_total",
    "topology_recovery_duration_seconds",
}
"""Metrics with the shorter prefix ``topology_``; new ones start with ``topology_scheduler_``."""


def _sections() -> dict[str, set[str]]:
    parts = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lists = (text.partition("| names |")[2] for text in parts[2::2])
    return {title: set(re.findall(r"`([^`]+)`", names)) for title, names in zip(parts[1::2], lists, strict=True)}


def test_the_page_has_a_section_for_each_kind_of_name() -> None:
    assert _sections().keys() == NAMES.keys()


@pytest.mark.parametrize("section", NAMES)
def test_every_public_name_is_listed_and_no_other(section: str) -> None:
    listed = _sections()[section]
    added, removed = sorted(NAMES[section] - listed), sorted(listed - NAMES[section])
    assert not added, f"add to {PAGE.name}, section {section}: {added}"
    assert not removed, (
        f"{PAGE.name}, section {section}: users rely on {removed}; keep the names, or deprecate them first"
    )


def test_metrics_have_one_of_two_prefixes() -> None:
    shorter = {name for name in NAMES["Metrics"] if not name.startswith("topology_scheduler_")}
    assert shorter == _PROMISED_METRICS
