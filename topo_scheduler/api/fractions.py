"""Shares of a GPU in annotations: decimal fractions, in thousandths."""

import re
from collections.abc import Mapping
from typing import Final

from topo_scheduler.api.text import quoted

WHOLE_GPU: Final = 1000
"""A whole GPU, in thousandths of a GPU."""
_INDEXES: Final = re.compile(r"[0-9]{1,4}(,[0-9]{1,4})*")


def parse_fraction(text: str) -> int:
    """Return a share of a GPU in thousandths.

    Raises:
        ValueError: the text is no share; the message says what to write.
    """
    match = re.fullmatch(r"0?\.([0-9]{1,3})0*", text.strip())
    share = int(match.group(1).ljust(3, "0")) if match else 0
    if not share:
        raise ValueError(
            f"{quoted(text)} is not a share of a GPU; write a fraction above 0 and below 1 with at most three decimals,"
            ' such as "0.5" or "0.125"'
        )
    return share


def write_fraction(share: int) -> str:
    """Return thousandths of a GPU as a decimal fraction: 500 is ``0.5``."""
    return f"{share / WHOLE_GPU:g}"


def written_share(annotations: Mapping[str, str], name: str) -> int:
    """Return a share that this scheduler wrote, in thousandths; 0 without a valid one."""
    try:
        return parse_fraction(annotations[name])
    except (KeyError, ValueError):
        return 0


def write_indexes(indexes: tuple[int, ...]) -> str:
    """Return indexes of GPUs, separated by commas."""
    return ",".join(map(str, indexes))


def written_indexes(annotations: Mapping[str, str], name: str) -> tuple[int, ...]:
    """Return indexes of GPUs that this scheduler wrote; none without valid ones."""
    text = annotations.get(name, "")
    if not text or _INDEXES.fullmatch(text) is None:
        return ()
    return tuple(map(int, text.split(",")))
