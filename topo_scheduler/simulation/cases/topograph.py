"""Read test models of NVIDIA topograph: a tree of switches, and blocks of nodes below its leaves.

::

    switches:
      core: {switches: [spine-1], labels: {topology.kubernetes.io/region: us-east}}
      spine-1: {switches: [leaf-1]}
    blocks:
      - {switch: leaf-1, nodes: ["node[1101-1118]"], annotations: {accelerator.topology.test/domain: nvl-1}}

Nodes get the labels that topograph would write: ``fabric.topograph.run/tier-0`` for the leaf and so on outward,
``accelerator.topograph.run/domain`` and ``/sub-domain`` for the annotations of blocks, and the labels of all switches
above the node. Names are converted to lower case, as names of nodes must be.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, Final

import yaml

from topo_scheduler.simulation.cases.documents import Document, composed
from topo_scheduler.simulation.cases.model import CaseError, ClusterCase
from topo_scheduler.simulation.cases.object_factory import Host, make_node
from topo_scheduler.simulation.cases.tables import quoted, wrong

TIER: Final = "fabric.topograph.run/tier-"
ACCELERATOR: Final = "accelerator.topograph.run/"
MAX_TIERS: Final = 4
MAX_NODES: Final = 100_000
_BRACKETS: Final = re.compile(r"\[([^\[\]]*)\]")
_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


def is_topograph(obj: Mapping[str, Any]) -> bool:
    """Whether a document is a topograph model."""
    return "blocks" in obj and "kind" not in obj


def read_topograph(document: Document, host: Host) -> ClusterCase:
    """Return the nodes of a model, in the order of the file.

    Raises:
        CaseError: the model can't be used.
    """
    path, model = document.path, document.obj
    for key in model:
        if key not in ("switches", "blocks"):
            raise _wrong(path, f"{key}: unknown key {quoted(str(key))}", "a model has switches and blocks")
    switches = _switches(path, model.get("switches") or {})
    nodes = {}
    for number, block in enumerate(_list(path, "blocks", model.get("blocks"))):
        field = f"blocks[{number}]"
        if not isinstance(block, Mapping):
            raise _wrong(path, f"{field} is no mapping", "write switch and nodes")
        place, labels = _above(path, field, _text(path, f"{field}.switch", block.get("switch")), switches)
        labels |= {f"{TIER}{tier}": name for tier, name in enumerate(reversed(place))}
        for key, value in _texts(path, f"{field}.annotations", block.get("annotations")).items():
            labels[ACCELERATOR + key.rpartition("/")[2]] = value
        for name in _nodes(path, field, block.get("nodes")):
            if name in nodes:
                raise _wrong(path, f"{field}: node {name} is in a block before it", "name each node once")
            nodes[name] = make_node(name, (), host, labels)
            if len(nodes) > MAX_NODES:
                raise _wrong(path, f"{field}: more than {MAX_NODES} nodes", "check the ranges in brackets")
    return ClusterCase(path.stem, tuple(nodes.values()))


# ---------------------------------------------------------------- switches

Switches = tuple[dict[str, str], dict[str, dict[str, str]]]
"""The parent of each switch, and the labels of each."""


def _switches(path: Path, switch_map: object) -> Switches:
    parents: dict[str, str] = {}
    labels: dict[str, dict[str, str]] = {}
    if not isinstance(switch_map, Mapping):
        raise _wrong(path, "switches is no mapping", "write the name of each switch and those below it")
    for name, switch in switch_map.items():
        field = f"switches.{name}"
        if not isinstance(switch, Mapping):
            raise _wrong(path, f"{field} is no mapping", "write switches, the list of those below it")
        labels[str(name)] = _texts(path, f"{field}.labels", switch.get("labels"))
        for child in _list(path, f"{field}.switches", switch.get("switches")):
            if str(child) in parents:
                problem = f"{field}.switches: {child} is below {parents[str(child)]} and below {name}"
                raise _wrong(path, problem, "the switches must be a tree; keep one")
            parents[str(child)] = str(name)
    return parents, labels


def _above(path: Path, field: str, switch: str, switches: Switches) -> tuple[list[str], dict[str, str]]:
    """Return the switches from the outermost to this one, and their merged labels; nearer switches take precedence."""
    parents, labels = switches
    if switch not in parents and switch not in labels:
        raise _wrong(path, f"{field}.switch: {switch} is not among the switches", "add it, or correct the name")
    place = [switch]
    while place[0] in parents:
        place.insert(0, parents[place[0]])
        if len(place) > MAX_TIERS:
            problem = f"{field}.switch: {switch} has more than {MAX_TIERS - 1} switches above it, or is above itself"
            raise _wrong(path, problem, f"describe at most {MAX_TIERS} tiers, as a tree")
    merged_labels: dict[str, str] = {}
    for name in place:
        merged_labels |= labels.get(name, {})
    return place, merged_labels


# ---------------------------------------------------------------- nodes


def _nodes(path: Path, field: str, node_list: object) -> Iterator[str]:
    ranges = _list(path, f"{field}.nodes", node_list)
    if not ranges:
        raise _wrong(path, f"{field} has no nodes", 'write a list of names and ranges, such as "node[1101-1118]"')
    for text in ranges:
        try:
            names = expand(str(text))
        except ValueError as error:
            raise _wrong(path, f"{field}.nodes: {error}", "write names and ranges such as node[01-08,11]") from error
        yield from names


def expand(text: str) -> list[str]:
    """Return the names that a range in brackets expands to: ``srv11[01-03]`` is srv1101, srv1102 and srv1103.

    Raises:
        ValueError: the range is malformed, descending or too large, or a name is no valid node name.
    """
    parts = _BRACKETS.split(text)
    choices = [[part] if number % 2 == 0 else _choices(text, part) for number, part in enumerate(parts)]
    count = 1
    for alternatives in choices:
        count *= len(alternatives)
    if count > MAX_NODES:
        raise ValueError(f"{quoted(text)} means more than {MAX_NODES} nodes")
    names = ["".join(combination).lower() for combination in product(*choices)]
    for name in names:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", name):
            raise ValueError(f"{quoted(name)} can't be the name of a node")
    return names


def _choices(text: str, ranges: str) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{quoted(text)} is not a range")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise ValueError(f"{quoted(text)} goes backward")
        if int(last) - int(first) >= MAX_NODES:
            raise ValueError(f"{quoted(text)} means more than {MAX_NODES} nodes")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


# ---------------------------------------------------------------- fields


def _list(path: Path, field: str, value: object) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _wrong(path, f"{field} is no list", "write it as one")
    return value


def _text(path: Path, field: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(path, f"{field} is missing", "name the switch that the nodes hang at")
    return value


def _texts(path: Path, field: str, value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for text in (*value, *value.values())):
        raise _wrong(path, f"{field} is no mapping of strings", "put values into quotes")
    return dict(value)


# ---------------------------------------------------------------- lines of errors


def _wrong(path: Path, problem: str, remedy: str) -> CaseError:
    """Return the error for a field of the model. The problem begins with the field: ``blocks[0].nodes: ...``."""
    return wrong(path, _line_of(composed(path), problem), problem, remedy)


def _line_of(node: yaml.Node | None, field_path: str, line: int = 1) -> int:
    """Return the line of the innermost field that a text begins with. The parsed model has no line numbers."""
    if isinstance(node, yaml.MappingNode):
        field_path = field_path.removeprefix(".")
        for key, value in sorted(node.value, key=lambda entry: -len(str(entry[0].value))):
            remaining = field_path.removeprefix(str(key.value))
            if remaining != field_path and remaining[:1] in ("", ".", "[", ":", " "):
                return _line_of(value, remaining, key.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode) and (match := re.match(r"\[(\d+)\]", field_path)):
        item = node.value[int(match[1])]
        return _line_of(item, field_path[match.end() :], item.start_mark.line + 1)
    return line
