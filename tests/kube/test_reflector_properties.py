"""Whatever happens in whatever order, the sink's view ends up equal to the server's, and nothing is reported twice."""

import asyncio
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topo_scheduler.api.objects import Pod
from topo_scheduler.kube.connection.resources import PODS
from topo_scheduler.simulation.apiserver import BreakWatch, Disconnect, Refuse, Truncate
from topo_scheduler.simulation.apiserver.faults import Fault

from .virtual import run_virtually
from .world import View, World, eventually, running, world

NAMES = ["a", "b", "c", "d", "e"]


@dataclass(frozen=True)
class Step:
    """One thing that happens."""

    what: str
    name: str = ""
    number: int = 0


names = st.sampled_from(NAMES)
changes = st.builds(Step, st.sampled_from(["create", "update", "delete", "replace"]), names)
breaks = st.builds(
    Step,
    st.just("break"),
    st.sampled_from(["drop", "end", "expire", "truncate", "repeat", "silence"]),
    st.integers(0, 3),
)
refusals = st.builds(Step, st.just("refuse"), st.sampled_from(["list", "watch"]), st.sampled_from([429, 500, 503, 410]))
cuts = st.builds(Step, st.just("cut"), st.sampled_from(["list", "watch"]), st.integers(0, 2))
others = st.builds(Step, st.sampled_from(["compact", "away", "pause", "relist"]))
steps = st.lists(st.one_of(changes, changes, changes, breaks, refusals, cuts, others), max_size=30)


class Strict(View[Pod]):
    """A view that also refuses the same report twice."""

    def applied(self, objects: object) -> None:
        assert isinstance(objects, list)
        for item in objects:
            known = self.objects.get((item.metadata.namespace, item.metadata.name))
            assert known is None or known.metadata.uid == item.metadata.uid, "replaced without a deletion"
            assert known is None or known.metadata.resource_version != item.metadata.resource_version, "told twice"
        super().applied(objects)


async def happen(w: World, step: Step, view: Strict) -> None:
    exists = step.name in w.versions()
    match step.what:
        case "create" if not exists:
            w.create_pod(step.name)
        case "update" if exists:
            w.annotate(step.name, "turn", str(w.server.store.revision))
        case "delete" if exists:
            w.remove_pod(step.name)
        case "replace" if exists:
            w.remove_pod(step.name)
            w.create_pod(step.name)
        case "break":
            fault = BreakWatch(step.name, step.number)  # type: ignore[arg-type]
            if all(stream.fault is None for stream in w.server.streams):  # one that swallows events must not recover
                w.server.break_watches(fault)
            w.server.faults.add(fault, times=1)
        case "refuse":
            w.server.faults.add(Refuse(step.number), verb=step.name, times=2)
        case "cut":
            cuts_: list[Fault] = [Disconnect(), Disconnect(applied=True), Truncate()]
            w.server.faults.add(cuts_[step.number], verb=step.name, times=2)
        case "compact":
            w.server.store.compact()
        case "away":
            await w.server.go_away()
            await asyncio.sleep(1)
            await w.server.come_back()
        case "pause":
            await asyncio.sleep(0.5)


async def scenario(history: list[Step]) -> None:
    async with world() as w:
        w.create_pod("a")
        view = Strict()
        reflector = w.reflector(PODS, view, page_size=2)
        relists = []
        async with running(reflector.run()):
            for step in history:
                if step.what == "relist":
                    relists.append(asyncio.create_task(reflector.relist()))
                await happen(w, step, view)
            w.server.faults.clear()
            await eventually(lambda: view.versions == w.versions(), within=600)
            await asyncio.wait_for(asyncio.gather(*relists), 600)
            assert len(reflector) == len(view.objects)
            # And it is not by chance: what comes next arrives as well.
            w.create_pod("last")
            await eventually(lambda: view.versions == w.versions(), within=600)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps)
def test_the_view_converges_to_the_server(history: list[Step]) -> None:
    run_virtually(scenario(history))
