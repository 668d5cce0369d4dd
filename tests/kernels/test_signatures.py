"""Kernels are compiled once, for one signature each: what does not match is refused, not compiled again."""

import inspect
import os
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernels.arrays import ints
from topo_scheduler import kernels as kernels_package
from topo_scheduler.kernels.fit import fit_leaves, sort_ascending, sum_ranges
from topo_scheduler.kernels.warm import ALL, main, warm

compiled = pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")


def found_kernels() -> Iterator[tuple[str, Any]]:
    for module in ALL:
        for name, value in vars(import_module(f"topo_scheduler.kernels.{module}")).items():
            if hasattr(value, "signatures"):
                yield f"{module}.{name}", value


def test_every_module_of_kernels_is_warmed() -> None:
    warm(ALL)
    files = {path.stem for folder in kernels_package.__path__ for path in Path(folder).glob("*.py")}
    assert files - {"__init__", "cache", "jit", "warm"} == set(ALL)


@compiled
def test_every_kernel_has_one_signature_and_keeps_it() -> None:
    kernels = dict(found_kernels())
    assert len(kernels) >= 10
    assert {name: len(kernel.signatures) for name, kernel in kernels.items()} == dict.fromkeys(kernels, 1)


@compiled
@pytest.mark.parametrize(
    "values",
    [
        np.zeros(4, np.int32),
        np.zeros(4, np.float64),
        np.zeros(4, np.uint64),
        np.zeros(8, np.int64)[::2],
        np.zeros((2, 2), np.int64),
        [3, 2, 1],
    ],
    ids=["int32", "float64", "uint64", "strided", "matrix", "list"],
)
def test_another_kind_of_array_is_refused(values: Any) -> None:
    with pytest.raises(TypeError):
        sort_ascending(values)
    assert len(sort_ascending.signatures) == 1  # type: ignore[attr-defined]


@compiled
def test_a_strided_column_is_refused_everywhere() -> None:
    table = np.zeros((4, 4), np.int64)
    column, good, out = table[:, 1], ints([0, 1, 2, 3]), ints([0])
    with pytest.raises(TypeError):
        sum_ranges(column, good, ints([0, 4]), out)
    with pytest.raises(TypeError):
        fit_leaves(good, column, ints([0, 4]), ints([0]), 0, 0, out)


@compiled
def test_kernels_leave_the_interpreter_free() -> None:
    for name, kernel in found_kernels():
        assert kernel.targetoptions.get("nogil") is True, name
        assert not kernel.targetoptions.get("parallel"), name
        assert not kernel.targetoptions.get("fastmath"), name


def test_every_kernel_says_what_it_does_and_fits_on_a_screen() -> None:
    for module in ALL:
        kernel_module = import_module(f"topo_scheduler.kernels.{module}")
        functions: list[Callable[..., Any]] = [
            getattr(value, "py_func", value)
            for name, value in vars(kernel_module).items()
            if not name.startswith("_")
            and getattr(value, "__module__", "") == kernel_module.__name__
            and callable(value)
        ]
        assert functions
        for function in functions:
            assert inspect.getdoc(function), function.__name__


def test_the_command_prints_where_kernels_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0
    assert "kernels ready in" in capsys.readouterr().out
    for wrong in ([], ["--all"], ["a", "b"]):
        assert main(wrong) == 2
    assert "usage: " in capsys.readouterr().err
