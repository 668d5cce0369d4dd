"""What is measured, part by part. Each runs in a process of its own: ``python -m tests.bench.parts NAME FILE``."""

import asyncio
import importlib
import inspect
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tests.controlplane import build

from .machine import mean, reference
from .objects import Json

Need = Literal["control plane", "KAI", "data"]
"""What a part needs beside Python: the real control plane, another scheduler's build, the data sets."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part: ``work`` is a module of this package and a function or a coroutine function of it.

    The module is imported when it is measured, so no part pays for another. After ``limit`` seconds it has failed.
    """

    name: str
    tells: str
    work: str
    needs: frozenset[Need] = frozenset()
    limit: int = 1500

    def measure(self) -> Json:
        """Measure it here."""
        module, _, name = self.work.partition(":")
        function = getattr(importlib.import_module(f"{__package__}.{module}"), name)
        figures: Json = asyncio.run(function()) if inspect.iscoroutinefunction(function) else function()
        return figures

    def prepare(self) -> None:
        """Build what it needs, which is no part of what is measured.

        Raises:
            ControlPlaneUnavailable: it can't be built.
        """
        for need, module in MODULES.items():
            if need in self.needs:
                build(modules=[module])


MODULES: Final[dict[Need, str]] = {"control plane": "go", "KAI": "go-kai"}
"""Go modules, of `tests.controlplane`."""
REAL: Final[frozenset[Need]] = frozenset({"control plane"})
PARTS: Final = {
    part.name: part
    for part in (
        Part("rounds", "short rounds in core beside the reference loops", "rounds:rounds"),
        Part("memory", "memory of the daemon by nodes and pods, and its start", "memory:memory"),
        Part("decisions", "decisions on gangs in core, from 1,000 to 100,000 nodes", "placing:decisions"),
        Part("alone", "decisions on pods alone in core", "small:alone"),
        Part("fgd", "whole experiments by the protocol of FGD", "small:fgd", frozenset({"data"})),
        Part("roomless", "preemption and explanations in core", "roomless:roomless"),
        Part("waiting", "a backlog, reservations and moves in core", "waiting:waiting"),
        Part("starting", "kernels, lists of nodes, changed labels, fragmentation", "starting:starting"),
        Part("gap", "gangs of different pods beside an integer solver", "gap_tied:gaps"),
        Part("recovery", "planning for failures, and the thread of kopf", "recovery:recovery"),
        Part("heal", "nodes, a leaf and a spine that die on a real control plane of 1,000 nodes", "heal:heal", REAL),
        Part("heal_full", "eight nodes that die where no GPU is free: spares are lent", "heal:heal_full", REAL),
        Part("takeover", "first binds of processes, and binds after a leader was killed", "takeover:takeover", REAL),
        Part("embedded", "plain pods on the embedded API server", "race:all_on_embedded"),
        Part("plain", "plain pods on a real API server, beside kube-scheduler", "race:all_plain", REAL),
        Part("gangs", "gangs on it, beside kube-scheduler", "race:all_gangs", REAL),
        Part("kai", "the same gangs with KAI-Scheduler", "race:all_gangs_of_kai", REAL | {"KAI"}),
        Part("linked", "gangs on it that ask for bandwidth, where no two may share a node", "race:all_linked", REAL),
        Part("load", "CPU, memory and traffic on it, at rest and at work", "load:load", REAL),
        Part(
            "claims", "pods with a claim for one GPU each on it, beside kube-scheduler", "claims:race_of_claims", REAL
        ),
        Part(
            "slices",
            "5,000 nodes with 8 H100s as 208 devices each, listed, listed again, and pods placed",
            "slices:slices",
        ),
        Part("record", "what recording costs, in core and on it", "recording:recording", REAL),
    )
}
"""In the order in which they run."""
CHECKED: Final = ("rounds", "memory")
"""What `bench-check` measures again: it needs nothing but Python and takes minutes."""


def main(name: str, file: str) -> None:
    """Measure one part here, the reference loops before and after it, and write it down."""
    before = reference()
    figures = PARTS[name].measure()
    result = {"reference": mean([before, reference()]).told(), "figures": figures}
    Path(file).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
