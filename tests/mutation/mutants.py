"""Draws mutants at random. cosmic-ray makes them."""

import difflib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import MutationVisitor
from cosmic_ray.plugins import get_operator, operator_names

from tests.mutation.loaded import Change, changed
from tests.mutation.targets import ROOT, Target

LEFT_OUT: Final = ("core/NumberReplacer", "core/RemoveDecorator", "core/ReplaceBinaryOperator_BitOr", "_Is")
"""Operators whose mutants say little: numbers of limits, decorators of data classes, ``X | None`` in annotations. So do
those of comparisons by identity, which others replace by what means the same for singletons."""


@dataclass(frozen=True, order=True)
class _Place:
    """Where an operator of cosmic-ray has something to change: the ``occurrence``-th time in a file."""

    path: Path
    operator: str
    occurrence: int
    line: int


def _places(path: Path) -> Iterator[_Place]:
    """Yield what can be changed in a file. Most operators ask for one kind of node each, and there are 200 of them."""
    nodes = list(ast_nodes(get_ast(path.read_text())))
    of_kind = {kind: [node for node in nodes if node.type == kind] for kind in ("operator", "comparison")}
    for name in operator_names():
        if any(left in name for left in LEFT_OUT) or get_operator(name).arguments():
            continue
        kind = "operator" if "BinaryOperator" in name else "comparison" if "ComparisonOperator" in name else ""
        operator = get_operator(name)()
        starts = (start for node in of_kind.get(kind, nodes) for start, _ in operator.mutation_positions(node))
        for occurrence, (line, _) in enumerate(starts):
            yield _Place(path, name, occurrence, line)


def drawn(target: Target, sample: int, seed: int) -> Iterator[Change]:
    """Yield a random sample of the mutants of a target's functions, in the order in which they are drawn."""
    every = sorted(place for file in target.files() for place in _places(ROOT / file))
    random.Random(f"{seed} {target.name}").shuffle(every)
    for site in every:
        if not sample:
            return
        source = site.path.read_text()
        mutated = MutationVisitor.mutate_code(source, get_operator(site.operator)(), site.occurrence) or source
        try:
            code = compile(mutated, site.path, "exec")
        except SyntaxError:  # ``**`` that unpacks is taken for a power
            continue
        if any(changed(code, site.path)):
            sample -= 1
            file = site.path.relative_to(ROOT)
            yield Change(target.name, file, site.line, site.operator, _difference(source, mutated), code)


def _difference(old: str, new: str) -> str:
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm=""))[2:]
    return "\n".join(line for line in lines if not line.startswith("@@"))
