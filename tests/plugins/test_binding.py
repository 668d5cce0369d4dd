"""What plugins say of a Binding before it is written, and that they hear of it afterwards."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable

import pytest

from tests.helpers import make_pod
from topo_scheduler.plugins import Answer, Binding, Plugin, PluginError, PodClass
from topo_scheduler.plugins.isolation import Isolated
from topo_scheduler.runtime.bind_plugins import MAX_QUEUED_NOTIFICATIONS, BindPlugins, Refusal
from topo_scheduler.scheduling.extensions.registry import Extensions
from topo_scheduler.scheduling.instructions import Bind, PodRef

CLS = PodClass(())


class Counting:
    def __init__(self) -> None:
        self.failures: Counter[tuple[str, str, str]] = Counter()

    def plugin_called(self, plugin: str, point: str, seconds: float) -> None:
        pass

    def plugin_failed(self, plugin: str, point: str, reason: str) -> None:
        self.failures[plugin, point, reason] += 1


def around(*plugins: Plugin, timeout: float = 0.3) -> tuple[BindPlugins, Counting]:
    extensions, counting = Extensions(), Counting()
    for plugin in plugins:
        extensions.register(plugin)
    return BindPlugins(extensions, Isolated(timeout, counting), counting), counting


def bind(node: str = "n1") -> Bind:
    return Bind(PodRef("default", "p", "uid-p"), node, {"topology.scheduler/rank": "0"}, 0.0, 0.0)


POD = make_pod("p", annotations={"example.com/lease": "long"}, labels={"team": "a"})


def answering(answer: Callable[[Binding], Answer], name: str = "test", **more: object) -> Plugin:
    return Plugin(name, bind=answer, **more)  # type: ignore[arg-type]


async def test_without_plugins_nothing_is_added() -> None:
    plugins, _ = around()
    prepared = await plugins.request(bind(), POD, CLS)
    assert (prepared.bind.annotations, prepared.bind.labels) == ({"topology.scheduler/rank": "0"}, {})
    assert not prepared.plugins


async def test_annotations_and_labels_are_added_to_what_is_written() -> None:
    seen = []

    def answer(binding: Binding) -> Answer:
        seen.append(binding)
        return Answer(
            {"example.com/port": f"{binding.node}:{binding.annotations['example.com/lease']}"}, {"leased": "yes"}
        )

    plugins, _ = around(answering(answer), answering(lambda _: Answer({"example.com/second": "2"}), "second"))
    prepared = await plugins.request(bind(), POD, CLS)
    assert prepared.bind.annotations == {
        "topology.scheduler/rank": "0",
        "example.com/port": "n1:long",
        "example.com/second": "2",
    }
    assert prepared.bind.labels == {"leased": "yes"}
    assert (seen[0].labels, seen[0].written) == ({"team": "a"}, {"topology.scheduler/rank": "0"})


async def test_a_refusal_names_plugin_and_reason() -> None:
    plugins, counting = around(answering(lambda _: Answer(refusal="no licence is left"), "licences"))
    with pytest.raises(Refusal, match="plugin licences refuses: no licence is left"):
        await plugins.request(bind(), POD, CLS)
    assert counting.failures == {}, "saying no is no failure"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda _: None, "it returned NoneType, an Answer is expected"),
        (lambda _: Answer({"topology.scheduler/rank": "7"}), "it sets topology.scheduler/rank"),
        (lambda _: Answer({"example.com/x": 7}), "'example.com/x': 7 is not text"),  # type: ignore[dict-item]
        (lambda _: 1 // 0, "ZeroDivisionError"),
    ],
    ids=["nothing", "ours", "no text", "raises"],
)
async def test_what_can_not_be_written_is_a_failure(answer: Callable[[Binding], Answer], message: str) -> None:
    plugins, counting = around(answering(answer))
    with pytest.raises(PluginError, match=message):
        await plugins.request(bind(), POD, CLS)
    assert counting.failures.total() == 1


async def test_a_bind_that_is_written_again_is_written_as_before() -> None:
    asked = 0

    def answer(binding: Binding) -> Answer:
        nonlocal asked
        asked += 1
        return Answer({"example.com/asked": str(asked)})

    plugins, _ = around(answering(answer))
    first = await plugins.request(bind(), POD, CLS)
    again = await plugins.request(bind(), POD, CLS)
    assert first.bind == again.bind
    elsewhere = await plugins.request(bind("n2"), POD, CLS)
    assert elsewhere.bind.annotations["example.com/asked"] == "2"
    plugins.forget("uid-p")
    assert (await plugins.request(bind("n2"), POD, CLS)).bind.annotations["example.com/asked"] == "3"


async def test_one_that_is_opt_in_is_asked_about_its_pods_only() -> None:
    plugin = answering(lambda _: Answer({"example.com/x": "y"}), annotations=["example.com/lease"], opt_in=True)
    plugins, _ = around(plugin)
    assert not (await plugins.request(bind(), POD, CLS)).plugins
    mine = PodClass((), plugin_inputs=(("annotation:example.com/lease", "long"),))
    assert (await plugins.request(bind(), POD, mine)).bind.annotations["example.com/x"] == "y"


async def test_they_are_notified_when_it_is_written_and_a_failure_affects_no_other_plugin() -> None:
    notified: list[str] = []
    done = threading.Event()

    def hear(binding: Binding) -> None:
        notified.append(f"{binding.name} on {binding.node}")
        done.set()

    def fail(_: Binding) -> None:
        raise ValueError("no")

    plugins, counting = around(Plugin("deaf", post_bind=fail), Plugin("hearing", post_bind=hear))
    task = asyncio.create_task(plugins.run())
    plugins.bound(await plugins.request(bind(), POD, CLS))
    assert await asyncio.to_thread(done.wait, 5)
    assert notified == ["p on n1"]
    assert counting.failures == {("deaf", "post-bind", "raised"): 1}
    task.cancel()


async def test_notifications_beyond_the_cap_are_dropped_and_counted() -> None:
    plugins, counting = around(Plugin("slow", post_bind=lambda _: None))
    prepared = await plugins.request(bind(), POD, CLS)
    for _ in range(MAX_QUEUED_NOTIFICATIONS + 3):
        plugins.bound(prepared)
    assert counting.failures == {("slow", "post-bind", "dropped"): 3}
