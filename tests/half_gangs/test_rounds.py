"""A round of each kind; the long form is ``python -m tests.half_gangs --rounds 50``."""

import pytest

from .__main__ import run
from .rounds import Kind

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


@pytest.mark.parametrize("kind", Kind)
async def test_no_gang_stays_partially_bound(kind: Kind) -> None:
    assert [result.problems for result in await run(1, [kind]) if not result.ok] == []
