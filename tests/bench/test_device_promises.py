"""What is promised of the choice of devices has a row with the verdict of the recorded figures."""

import re
from copy import deepcopy

import pytest

from tests.bench.device_promises import MIG_BOUNDS, TABLE_BOUNDS_MS, device_promises
from tests.bench.objects import Json
from tests.bench.promises import PROMISES
from tests.bench.results import read
from tests.bench.table import COPY, REFERENCE, page
from tests.docs.results import recorded_figures


def test_rows_of_the_page_are_what_the_page_of_devices_says() -> None:
    text, devices = page(read(COPY)), (REFERENCE / "measurements-devices.md").read_text(encoding="utf-8")
    promises = list(device_promises(recorded_figures()))
    others = 2 + len(TABLE_BOUNDS_MS)
    assert len(promises) == others + len(MIG_BOUNDS)
    for promise in promises:
        verdict = "yes" if promise.kept else "**no**"
        row = f"| {promise.tells} | {promise.promised} | [{promise.measured}]({promise.page}) | {verdict} |"
        assert row in text.splitlines()
        heading = promise.page.partition("#")[2].replace("-", " ")
        assert re.search(rf"^#+ {heading}$", devices, re.IGNORECASE | re.MULTILINE)
    (lowest,) = re.findall(r"The lowest is ([\d.]+) %", devices)
    assert float(promises[0].measured.split()[0]) == pytest.approx(float(lowest), abs=0.05)
    row_names = ("ours: least capacity lost",) * 2 + ("ours, up to two moves planned by an engine",) * 2
    for promise, row_name in zip(promises[others:], row_names, strict=True):
        (row,) = re.findall(rf"^\| {row_name} \| (\S.*) \| (\S.*) \|$", devices, re.MULTILINE)
        shown = row["90 %" in promise.tells]
        assert shown == promise.measured == "not recorded" or float(promise.measured.split()[0]) == float(shown)


@pytest.mark.parametrize(
    ("run", "keys", "kept", "missed", "number"),
    [
        ("device_bandwidth", ("lowest_on_meshes_percent",), 94.0, 93.9, 0),
        ("device_bandwidth", ("most_behind_points",), 0.5, 0.6, 1),
        ("gpu_tables", ("longest_of_8_ms",), 1.0, 1.01, 2),
        ("gpu_tables", ("longest_of_16_ms",), 200.0, 200.1, 3),
        ("mig_fragmentation", ("fitted", "ours_at_70"), 0.5, 0.51, 4),
        ("mig_fragmentation", ("fitted", "ours_at_90"), 4.0, 4.01, 5),
        ("mig_engine", ("fitted", "engine_two_moves_at_70"), 0.0, 0.01, 6),
        ("mig_engine", ("fitted", "engine_two_moves_at_90"), 1.0, 1.01, 7),
    ],
)
def test_verdicts_follow_the_figures(run: str, keys: tuple[str, ...], kept: float, missed: float, number: int) -> None:
    for value, verdict in ((kept, True), (missed, False)):
        figures = deepcopy(recorded_figures())
        at: Json = figures[run]
        for key in keys[:-1]:
            at = at[key]
        at[keys[-1]] = value
        assert list(device_promises(figures))[number].kept is verdict


@pytest.mark.parametrize(
    ("path", "figures", "value", "kept"),
    [
        ("claims.ratio", {"ratio": 1.5}, 1.5, True),
        ("claims.ratio", {"ratio": 1.49}, 1.49, False),
        ("slices.placing.decision_ms.p50", {"placing": {"decision_ms": {"p50": 0.19}}}, 0.19, True),
        ("slices.rss_mb.peak", {"rss_mb": {"peak": 573.0}}, 600.8, False),
        ("slices.listed.s", {"listed": {"s": 53.6}}, 53.6, False),
        ("slices.listed_anew.s", {"listed_anew": {"s": 29.0}}, 29.0, True),
    ],
)
def test_promises_on_claims_and_slices_follow_their_parts(path: str, figures: Json, value: float, kept: bool) -> None:
    (promise,) = [candidate for candidate in PROMISES if candidate.path == path]
    name = path.partition(".")[0]
    of_part = {name: {"figures": {"nodes": 5000, "devices": 1_040_000, **figures}}}
    assert promise.measured(of_part) == pytest.approx(value, rel=1e-3)
    assert promise.kept(value) is kept
    if name == "slices":
        assert promise.measured({name: {"figures": {"nodes": 1000, "devices": 208_000, **figures}}}) is None
    assert promise.measured({}) is None
