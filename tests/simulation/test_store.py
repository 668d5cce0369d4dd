"""The store by itself: history, determinism, and a model that it must agree with."""

import asyncio
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from topo_scheduler.simulation.apiserver import (
    DeleteOptions,
    ObjectVersion,
    Selection,
    StatusError,
    Store,
    Watch,
    select,
)
from topo_scheduler.simulation.apiserver.objects import changed

from .conftest import START, Json, pod


def _config(name: str, **labels: str) -> Json:
    return {"metadata": {"name": name, "labels": labels}}


def _label(store: Store, name: str, value: str) -> ObjectVersion:
    return store.modify("configmaps", name, "default", lambda obj: changed(obj, "metadata", labels={"v": value}))


def test_same_seed_same_bytes() -> None:
    def history() -> list[bytes]:
        store = Store(clock=lambda: START, seed=7)
        for _ in range(5):
            store.create("pods", {**pod("x"), "metadata": {"generateName": "pod-"}})
        return [record.encoded() for record in store.list("pods")]

    assert history() == history()


def test_what_was_read_does_not_change(store: Store) -> None:
    created = store.create("configmaps", _config("a", v="1"))
    before = created.encoded()
    _label(store, "a", "2")
    store.delete("configmaps", "a", "default", DeleteOptions())
    assert created.obj["metadata"]["labels"] == {"v": "1"}
    assert ObjectVersion(created.key, created.obj, created.revision).encoded() == before


def test_a_page_is_of_its_revision_whatever_happened_since(store: Store) -> None:
    for name in "abc":
        store.create("configmaps", _config(name))
    then = store.revision
    store.delete("configmaps", "a", "default")
    _label(store, "b", "new")
    store.create("configmaps", _config("bb"))
    store.delete("configmaps", "bb", "default")
    page = store.page("configmaps", limit=2, revision=then)
    assert [record.key.name for record in page.records] == ["a", "b"]
    assert (page.revision, page.remaining) == (then, 1)
    assert page.records[1]["metadata"].get("labels") is None
    store.compact()
    with pytest.raises(StatusError) as error:
        store.page("configmaps", revision=then)
    assert error.value.code == 410


async def test_a_watcher_that_is_too_slow_gets_an_error() -> None:
    store = Store(window=4)
    watch = store.watch("configmaps")
    store.create("configmaps", _config("a"))
    assert len(watch.pending()) == 1
    for number in range(7):
        _label(store, "a", str(number))
    with pytest.raises(StatusError) as error:
        watch.pending()
    assert error.value.code == 410
    with pytest.raises(StatusError):
        store.watch("configmaps", since=2)
    late = store.watch("configmaps", since=store.revision - 2)
    assert len(late.pending()) == 2


async def test_waiting_ends_with_the_first_event_or_in_time(store: Store) -> None:
    watch = store.watch("configmaps")
    assert await watch.next(0.01) == []
    task = asyncio.create_task(watch.next())
    await asyncio.sleep(0)
    store.create("pods", pod("a"))
    await asyncio.sleep(0)
    assert not task.done()
    store.create("configmaps", _config("a"))
    [(kind, record)] = await task
    assert (kind, record.key.name) == ("ADDED", "a")


def test_observers_get_every_event_at_once(store: Store) -> None:
    seen: list[tuple[str, str]] = []
    store.observe(observer := lambda table, event: seen.append((table, event.key.name)))
    store.create("pods", pod("a"))
    store.create("nodes", {"metadata": {"name": "n"}})
    assert seen == [("pods", "a"), ("nodes", "n")]
    store.ignore(observer)
    store.create("pods", pod("b"))
    assert len(seen) == 2


def test_versions_of_a_custom_resource_share_their_objects(store: Store) -> None:
    names = {"plural": "widgets", "kind": "Widget"}
    versions = [{"name": "v1", "served": True, "storage": True}, {"name": "v1beta1", "served": True, "storage": False}]
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": versions}
    store.create(
        "customresourcedefinitions.apiextensions.k8s.io", {"metadata": {"name": "widgets.example.com"}, "spec": spec}
    )
    beta = store.kinds.at("example.com", "v1beta1", "widgets")
    assert beta is not None
    body = {"apiVersion": "example.com/v1beta1", "kind": "Widget", "metadata": {"name": "a"}}
    created = store.create(beta, body)
    assert created["apiVersion"] == "example.com/v1"
    assert b'"apiVersion":"example.com/v1beta1"' in created.encoded(beta.view)
    store.modify(beta, "a", "default", lambda obj: {**obj, "spec": {"seen": obj["apiVersion"]}})
    assert store.get("widgets.example.com", "a", "default")["spec"] == {"seen": "example.com/v1beta1"}
    store.delete("customresourcedefinitions.apiextensions.k8s.io", "widgets.example.com")
    assert "widgets.example.com" not in store.kinds


NAMES = st.sampled_from("abc")
VALUES = st.sampled_from("xyz")


class StoreMachine(RuleBasedStateMachine):
    """Whatever is written, lists, watches and history tell one story."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store(clock=lambda: START, seed=0, window=1000)
        self.start = self.store.revision
        self.model: dict[str, dict[str, str]] = {}
        self.past: dict[int, dict[str, dict[str, str]]] = {self.start: {}}
        self.watches: list[tuple[Watch, Selection, dict[str, str]]] = []
        for selector in ("", "v=x", "v!=x", "v in (x,y)"):
            selection = select(self.store.kind("configmaps"), labels=selector)
            self.watches.append((self.store.watch("configmaps", selection=selection), selection, {}))

    def _remember(self) -> None:
        self.past[self.store.revision] = dict(self.model)

    @rule(name=NAMES, value=VALUES)
    def create(self, name: str, value: str) -> None:
        if name in self.model:
            with pytest.raises(StatusError):
                self.store.create("configmaps", _config(name, v=value))
            return
        self.store.create("configmaps", _config(name, v=value))
        self.model[name] = {"v": value}
        self._remember()

    @rule(name=NAMES, value=VALUES)
    def change(self, name: str, value: str) -> None:
        if name in self.model:
            before = self.store.revision
            _label(self.store, name, value)
            assert self.store.revision == before + (self.model[name] != {"v": value})
            self.model[name] = {"v": value}
            self._remember()

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        if self.model.pop(name, None):
            self.store.delete("configmaps", name, "default")
            self._remember()

    @rule(name=NAMES, value=VALUES)
    def try_only(self, name: str, value: str) -> None:
        before = self.store.revision
        if name in self.model:
            self.store.delete("configmaps", name, "default", DeleteOptions(dry_run=True))
        else:
            self.store.create("configmaps", _config(name, v=value), dry_run=True)
        assert self.store.revision == before

    @rule(data=st.data())
    def look_back(self, data: Any) -> None:
        revision = data.draw(st.sampled_from(sorted(self.past)))
        page = self.store.page("configmaps", revision=revision)
        assert {r.key.name: r["metadata"]["labels"] for r in page.records} == self.past[revision]

    @rule(limit=st.integers(1, 3))
    def page_through(self, limit: int) -> None:
        names, after = [], None
        while True:
            page = self.store.page("configmaps", limit=limit, after=after)
            names += [record.key.name for record in page.records]
            after = page.last
            if after is None:
                break
        assert names == sorted(self.model)

    @rule()
    def watchers_catch_up(self) -> None:
        for watch, _, seen in self.watches:
            for kind, record in watch.pending():
                name = record.key.name
                assert (kind == "ADDED") == (name not in seen)
                if kind == "DELETED":
                    del seen[name]
                else:
                    seen[name] = record["metadata"]["labels"]["v"]

    @invariant()
    def lists_agree_with_the_model(self) -> None:
        listed = {r.key.name: r["metadata"]["labels"] for r in self.store.list("configmaps")}
        assert listed == self.model

    def teardown(self) -> None:
        self.watchers_catch_up()
        for _, selection, seen in self.watches:
            selected = {r.key.name: r["metadata"]["labels"]["v"] for r in self.store.list("configmaps", selection)}
            assert seen == selected


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
