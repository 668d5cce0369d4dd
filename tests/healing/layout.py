"""Which nodes there are, and which gangs fill them but for what is left free."""

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass

from tests.e2e import objects
from tests.e2e.api import Json

IN_LEAF = 16
LEAVES = 4
"""Leaves of a spine."""
GPUS = 8
NAMESPACES = tuple(f"e2e-team-{number}" for number in range(4))
LENT = "e2e-lent"
"""Namespace and PriorityClass of pods that use the nodes which are left free, until recovery needs them."""
IGNORE_DISRUPTIONS = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}


@dataclass(frozen=True)
class Gang:
    """A Job of so many pods, each of which takes a node.

    One that is ``plain`` says nothing of failures. Any other is to survive disruptions: these don't count, each index
    has a limit of its own, and a pod is replaced once it has ended.
    """

    namespace: str
    name: str
    members: int
    plain: bool

    @property
    def key(self) -> str:
        """Namespace and name."""
        return f"{self.namespace}/{self.name}"

    def job(self) -> Json:
        """The object."""
        body = objects.gang(self.name, self.members, GPUS, namespace=self.namespace, cpu="4")
        if not self.plain:
            body["spec"] |= {
                "podFailurePolicy": IGNORE_DISRUPTIONS,
                "podReplacementPolicy": "Failed",
                "backoffLimitPerIndex": 4,
            }
        return body


@dataclass(frozen=True)
class Layout:
    """Full leaves of `IN_LEAF` nodes, `LEAVES` to a spine, of which the last but one spine is left free.

    ``recipes`` how many leaves, or groups of leaves of one spine, are filled by gangs of which sizes: 15 nodes of each
    leaf. ``rest`` nodes of a last leaf that is smaller, for one gang that leaves one of them free.
    """

    recipes: Mapping[tuple[int, ...], int]
    rest: int = 0

    @property
    def leaves(self) -> int:
        """Full leaves, the free ones included."""
        return sum(max(1, sum(sizes) // (IN_LEAF - 1)) * count for sizes, count in self.recipes.items()) + LEAVES

    @property
    def free_spine(self) -> int:
        """Number of the spine that is left free."""
        return (self.leaves - 1) // LEAVES - 1

    def nodes(self) -> list[Json]:
        """All nodes."""
        count = self.leaves * IN_LEAF + self.rest
        return [
            objects.node(_name(n), spine=_spine(n), leaf=_leaf(n), gpus=GPUS, model="H100", bandwidth="400Gb")
            for n in range(count)
        ]

    def free(self) -> list[str]:
        """Names of the nodes that are left free: one of each leaf, and a spine."""
        count = self.leaves * IN_LEAF + self.rest
        first = self.free_spine * LEAVES * IN_LEAF
        spine = range(first, first + LEAVES * IN_LEAF)
        return [_name(n) for n in range(count) if n % IN_LEAF == 0 or n in spine]

    def lent(self) -> list[Json]:
        """Jobs of one pod each, of a priority below all gangs, that fill the nodes which are left free."""
        names = (f"lent-{number}" for number in range(len(self.free())))
        return [objects.job(name, 1, GPUS, namespace=LENT, cpu="4", priorityClassName=LENT) for name in names]

    def blocks(self) -> list[tuple[list[str], list[Gang]]]:
        """Nodes with the gangs that fill them: those of one recipe each, the largest first."""
        names = itertools.count()
        leaf, blocks = 0, []
        for sizes in (sizes for sizes, count in self.recipes.items() for _ in range(count)):
            leaves = max(1, sum(sizes) // (IN_LEAF - 1))
            if leaf == self.free_spine * LEAVES:
                leaf += LEAVES
            nodes = [_name(n) for n in range(leaf * IN_LEAF, (leaf + leaves) * IN_LEAF) if n % IN_LEAF]
            blocks.append((nodes, [_gang(next(names), size) for size in sizes]))
            leaf += leaves
        if self.rest:
            first = self.leaves * IN_LEAF
            nodes = [_name(n) for n in range(first + 1, first + self.rest)]
            blocks.append((nodes, [_gang(next(names), self.rest - 1)]))
        return blocks

    def gangs(self) -> list[Gang]:
        """All gangs."""
        return [gang for _, gangs in self.blocks() for gang in gangs]


THOUSAND = Layout(
    {(60,): 2, (30,): 4, (15,): 8, (8, 7): 14, (5, 5, 5): 8, (4, 4, 4, 3): 6, (3, 2, 2, 2, 2, 2, 2): 6}, rest=8
)
"""1,000 nodes in 63 leaves."""
SMALL = Layout({(30,): 2, (15,): 2, (8, 7): 2, (5, 5, 5): 1, (4, 4, 4, 3): 2, (3, 2, 2, 2, 2, 2, 2): 1})
"""256 nodes in 16 leaves."""


def _gang(number: int, size: int) -> Gang:
    return Gang(NAMESPACES[number % len(NAMESPACES)], f"gang-{number}", size, plain=size == 2)


def _spine(number: int) -> str:
    return f"s{number // (IN_LEAF * LEAVES)}"


def _leaf(number: int) -> str:
    return f"l{number // IN_LEAF % LEAVES}"


def _name(number: int) -> str:
    return f"{_spine(number)}-{_leaf(number)}-{number % IN_LEAF}"


def leaf_of(node: str) -> str:
    """The leaf of a node, with its spine."""
    return node.rpartition("-")[0]


def spine_of(node: str) -> str:
    """The spine of a node."""
    return node.partition("-")[0]


def described(layout: Layout) -> Json:
    """The layout in figures."""
    gangs = layout.gangs()
    nodes = len(layout.nodes())
    sizes = sorted({gang.members for gang in gangs})
    return {
        "nodes": nodes,
        "gpus": nodes * GPUS,
        "nodes_left_free": len(layout.free()),
        "gangs": len(gangs),
        "sizes": json.dumps({size: sum(gang.members == size for gang in gangs) for size in sizes}),
    }
