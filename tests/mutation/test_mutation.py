"""Mutants take the place of functions, tests that reach a line are noted, and a share has its interval."""

import builtins
import os
import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.mutation.loaded import SEEN, Loaded, changed, marked, original
from tests.mutation.score import Mutant, interval, table
from tests.mutation.targets import PACKAGE, ROOT, TARGETS, TESTS
from tests.mutation.trial import forked
from topo_scheduler.kube.leading.lease import boot_time

LEASE = ROOT / "topo_scheduler/kube/leading/lease.py"


def test_modules_of_all_parts_and_tests_exist() -> None:
    for target in TARGETS:
        assert target.files(), target.name
    assert [test for test in TESTS if not (ROOT / test).exists()] == []


def test_each_file_of_the_packages_that_decide_is_in_one_part() -> None:
    packages = ("scheduling", "state", "recovery", "observability")
    paths = [path for package in packages for path in (ROOT / PACKAGE / package).rglob("*.py")]
    with_functions = [path.relative_to(ROOT) for path in paths if "def " in path.read_text()]
    parts = Counter(file for target in TARGETS for file in target.files())
    assert [path for path in with_functions if parts[path] != 1] == []
    assert parts[LEASE.relative_to(ROOT)] == 1


def test_code_takes_the_place_of_a_loaded_function_and_of_that_alone() -> None:
    line = boot_time.__code__.co_firstlineno
    source = LEASE.read_text().splitlines()
    source[line] = source[line].replace('"""', '"""Changed. ', 1)
    code = compile("\n".join(source), LEASE, "exec")
    assert [new_code.co_name for new_code, _ in changed(code, LEASE)] == ["boot_time"]
    was = boot_time.__code__
    try:
        Loaded().replace(LEASE, code)
        assert boot_time.__code__ != was
    finally:
        boot_time.__code__ = was


def test_running_a_line_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    was = boot_time.__code__
    first, *_, last = (line for _, _, line in was.co_lines() if line is not None)
    elsewhere = original(LEASE).co_firstlineno
    seen: list[int] = []
    monkeypatch.setattr(builtins, SEEN, seen.append, raising=False)
    try:
        Loaded().replace(LEASE, marked(LEASE, [(7, last), (8, elsewhere)]))
        boot_time()
    finally:
        boot_time.__code__ = was
    assert first < last
    assert seen == [7]


def end(with_: int) -> Callable[[], int]:
    return lambda: with_


def spin() -> int:
    while True:
        pass


def test_forks_report_how_they_end_and_none_runs_for_ever() -> None:
    begun = time.process_time()
    statuses = dict(forked([end(0), end(1), spin], [10, 10, 0.5], jobs=2))
    assert [os.waitstatus_to_exitcode(statuses[number]) for number in (0, 1)] == [0, 1]
    assert os.WIFSIGNALED(statuses[2])
    assert time.process_time() - begun < 1


@pytest.mark.parametrize(
    ("noticed", "tried", "low", "high"), [(0, 0, 0.0, 1.0), (8, 10, 0.490, 0.943), (0, 20, 0.0, 0.161)]
)
def test_the_interval_is_that_of_wilson(noticed: int, tried: int, low: float, high: float) -> None:
    assert interval(noticed, tried) == pytest.approx((low, high), abs=0.001)


def test_a_timeout_counts_as_noticed() -> None:
    outcomes = ("killed", "timeout", "survived", "killed")
    rows = table([Mutant("state", "f", 1, "core/AddNot", outcome, "", 1, "") for outcome in outcomes])
    assert rows[2].startswith("| state | 4 | 3 | 1 | 75% | ")
    assert rows[3].startswith("| all | 4 | 3 | 1 | 75% | ")
