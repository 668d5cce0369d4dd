"""Read Alibaba's Lingjun fabric (2023): the hosts of a three-layer Clos network, ``ip,DSW,PSW,ASW``.

Names of leaves (ASW) repeat under different aggregation switches (PSW), so the whole path identifies a domain. The
table has no resources of hosts: each host has 8 GPUs unless options say otherwise.

    Cao et al., Crux: GPU-Efficient Communication Scheduling for Deep Learning Training, SIGCOMM 2024;
    https://github.com/alibaba/alibaba-lingjun-dataset-2023
"""

import re
from pathlib import Path
from typing import Final

from topo_scheduler.api.objects import Node
from topo_scheduler.simulation.cases.model import ClusterCase
from topo_scheduler.simulation.cases.object_factory import Host, make_node
from topo_scheduler.simulation.cases.tables import Row, quoted, read_rows

COLUMNS: Final = ("ip", "DSW", "PSW", "ASW")
_NAME_CHARACTERS: Final = 12
"""Length of a node name cut from the hash of an address, in characters: unique, and short enough for a label."""
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def read_lingjun(path: Path, host: Host) -> ClusterCase:
    """Return the hosts of the table, sorted by their path in the network.

    Raises:
        CaseError: the table can't be used.
    """
    seen: dict[str, int] = {}
    nodes: list[tuple[tuple[str, ...], str, Node]] = []
    for row in read_rows(path, COLUMNS):
        name = _name(row)
        row.once(seen, name, f"ip {quoted(row.text('ip'))}", "delete one of them")
        place = tuple(_switch(row, column) for column in COLUMNS[1:])
        nodes.append((place, name, make_node(name, place, host)))
    return ClusterCase(path.stem, tuple(node for _, _, node in sorted(nodes, key=lambda entry: entry[:2])))


def _name(row: Row) -> str:
    text = row.text("ip").lower()
    name = text[:_NAME_CHARACTERS] if re.fullmatch(r"[0-9a-f]{64}", text) else text
    if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", name):
        raise row.error(f"ip {quoted(text)} can't be the name of a node", "write letters, digits, dots and dashes")
    return name


def _switch(row: Row, column: str) -> str:
    value = row.text(column)
    if not _LABEL_VALUE.fullmatch(value):
        raise row.error(f"{column} {quoted(value)} can't be a label", "write letters, digits, dots and dashes")
    return value
