"""``topo-scheduler drain``: what it makes, and what it leaves alone."""

import asyncio
import itertools
from contextlib import redirect_stderr
from functools import partial
from io import StringIO
from typing import Any, Final

import pytest
import yaml
from aiohttp import web

from tests.cli.conftest import Served, run
from tests.crds import migration_definition
from tests.helpers import make_pod
from tests.kube.stub import stubbed
from tests.kube.virtual import virtual_time
from topo_scheduler.api.migration_reasons import MigrationReason
from topo_scheduler.api.migrations import Migration, MigrationCondition, MigrationStatus
from topo_scheduler.api.objects import OwnerReference
from topo_scheduler.cli.drain import plan_drain
from topo_scheduler.cli.drain_progress import PLACING, _LineProgress, state, wait_for_migrations
from topo_scheduler.recovery.controller.disabled import MESSAGE
from topo_scheduler.simulation.apiserver import Delay, Refuse, RequestInfo
from topo_scheduler.simulation.apiserver.deletion import DeleteOptions
from topo_scheduler.simulation.apiserver.store import Store
from topo_scheduler.simulation.demo import until
from topo_scheduler.state.pods.node_pods import MIRROR

_GONE: Final = {"type": "Placed", "status": "False", "reason": "NothingToMove", "message": "the pods are gone already"}
_NO_USE: Final = {"type": "Placed", "status": "False", "reason": "NoUse", "message": "the nodes are well"}
_DISABLED: Final = {
    "type": "Reserved",
    "status": "False",
    "reason": MigrationReason.RECOVERY_DISABLED,
    "message": MESSAGE,
}


def _define(served: Served) -> None:
    kind = "customresourcedefinitions.apiextensions.k8s.io"
    served.call(lambda: served.server.store.create(kind, migration_definition()))


def _owned(kind: str, name: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}


def _pod(
    served: Served,
    name: str,
    node: str,
    owner: str = "",
    scheduler: str = "topology-aware-scheduler",
    said: dict[str, str] | None = None,
) -> None:
    body = _body(name, node, owner, scheduler, said)
    served.call(lambda: served.server.store.create("pods", body, "default"))


def _body(
    name: str,
    node: str,
    owner: str = "",
    scheduler: str = "topology-aware-scheduler",
    said: dict[str, str] | None = None,
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "ownerReferences": [_owned("Job", owner)] if owner else [],
            "annotations": said or {},
        },
        "spec": {
            "schedulerName": scheduler,
            "nodeName": node,
            "containers": [{"name": "main", "image": "busybox"}],
        },
    }


def _moving(served: Served) -> set[str]:
    """The pods that all Migrations name."""
    listed = served.call(lambda: served.server.store.list("migrations.topology.scheduler"))
    return {pod["name"] for item in listed for pod in item.obj["spec"]["pods"]}


def test_a_dry_run_lists_what_would_be_moved_and_writes_nothing(served: Served) -> None:
    _pod(served, "a-0", "node-7", "a")
    _pod(served, "bare", "node-7")
    _pod(served, "other", "node-8", "b", scheduler="default-scheduler")
    _pod(served, "fixed", "node-8", "c", said={"topology.scheduler/movable": "false"})
    done = run("drain", "spine-2/leaf-3", "--dry-run", "--kubeconfig", served.kubeconfig)
    assert done.exit_code == 0, done.output
    assert "spine-2/leaf-3: 2 nodes to cordon, 1 pod of 1 workload to move" in done.output
    assert "Job a: a-0" in done.output
    assert "stays: pod default/bare on node-7: it has no controller" in done.output
    assert 'stays: pod default/fixed on node-8: it says topology.scheduler/movable: "false"' in done.output
    assert "stays: pod default/other on node-8: another scheduler placed it" in done.output
    node = served.call(lambda: served.server.store.find("nodes", "node-7"))
    assert node is not None and not node.obj["spec"].get("unschedulable")


def test_only_pods_of_daemonsets_and_static_pods_belong_to_their_node() -> None:
    owners = (("v1", "Node"), ("example.com/v1", "DaemonSet"), ("apps/v1", "DaemonSet"), ("v1", "Node"))
    pods = [
        make_pod(f"p{n}", node="a", owner=OwnerReference(api_version, kind, f"o{n}", f"uid-o{n}", controller=True))
        for n, (api_version, kind) in enumerate(owners)
    ]
    pods[3].metadata.annotations[MIRROR] = "hash"
    plan = plan_drain(pods, ["a"], "a", pods[0].spec.scheduler_name)
    assert [migration.pods[0][0] for migration in plan.migrations] == ["p0", "p1"]
    assert plan.stays == ()


def test_nodes_are_cordoned_and_migrations_made_once(served: Served) -> None:
    _define(served)
    _pod(served, "a-0", "node-7", "a")
    _pod(served, "a-1", "node-8", "a")
    for said in ("1 Migration created", "0 Migrations created, 1 in progress already"):
        done = run("drain", "leaf-3", "--cause", "new switch", "--kubeconfig", served.kubeconfig)
        assert done.exit_code == 0, done.output
        assert said in done.output
    (migration,) = served.call(lambda: served.server.store.list("migrations.topology.scheduler"))
    spec = migration.obj["spec"]
    assert spec["cause"] == "new switch" and spec["avoid"] == ["leaf-3"]
    assert spec["schedulerName"] == "topology-aware-scheduler"
    assert [pod["name"] for pod in spec["pods"]] == ["a-0", "a-1"]
    for name in ("node-7", "node-8"):
        node = served.call(lambda name=name: served.server.store.find("nodes", name))  # type: ignore[misc]
        assert node is not None and node.obj["spec"]["unschedulable"]


def test_a_dry_run_by_a_user_without_permission_to_list_migrations(served: Served) -> None:
    _define(served)
    _pod(served, "a-0", "node-7", "a")
    served.server.faults.add(Refuse(403), verb="list", resource="migrations")
    done = run("drain", "node-7", "--dry-run", "--kubeconfig", served.kubeconfig)
    assert done.exit_code == 0 and "Job a: a-0" in done.output
    assert "warning: Migrations can't be listed: " in done.output
    done = run("drain", "node-7", "--kubeconfig", served.kubeconfig)
    assert done.exit_code == 1


def test_a_node_with_its_kind_is_the_node(served: Served) -> None:
    _define(served)
    _pod(served, "a-0", "node-7", "a")
    for target, created in (("node/node-7", "1 Migration created"), ("node-7", "1 in progress already")):
        done = run("drain", target, "--kubeconfig", served.kubeconfig)
        assert done.exit_code == 0 and created in done.output, done.output
    (migration,) = served.call(lambda: served.server.store.list("migrations.topology.scheduler"))
    assert migration.obj["spec"]["avoid"] == ["node-7"]


def test_a_second_drain_after_a_migration_failed_creates_another(served: Served) -> None:
    _define(served)
    _pod(served, "a-0", "node-7", "a")
    kind = "migrations.topology.scheduler"

    def phases() -> dict[str, str]:
        records = served.call(lambda: served.server.store.list(kind))
        return {record.obj["metadata"]["name"]: record.obj.get("status", {}).get("phase", "") for record in records}

    def fail(name: str) -> None:
        status = {"phase": "Failed"}
        served.call(
            lambda: served.server.store.modify(
                kind, name, "default", lambda obj: {**obj, "status": status}, subresource="status"
            )
        )

    assert run("drain", "node-7", "--kubeconfig", served.kubeconfig).exit_code == 0
    (first,) = phases()
    for before, again in ((first, f"{first}-2"), (f"{first}-2", f"{first}-3")):
        fail(before)
        done = run("drain", "node-7", "--kubeconfig", served.kubeconfig)
        assert done.exit_code == 0, done.output
        assert f"{first} is over (Failed): again as {again}" in done.output
        assert phases()[again] == ""
    run("drain", "node-7", "--kubeconfig", served.kubeconfig)
    assert len(phases()) == 3, "one that is under way is not made again"


def test_what_can_not_be_read_is_reported(served: Served) -> None:
    def change(obj: dict[str, Any]) -> dict[str, Any]:
        metadata = obj["metadata"]
        labels = {**metadata.get("labels", {}), "topology.scheduler/network-bandwidth": "fast"}
        return {**obj, "metadata": {**metadata, "labels": labels}}

    served.call(lambda: served.server.store.modify("nodes", "node-7", "", change))
    done = run("drain", "node-7", "--dry-run", "--kubeconfig", served.kubeconfig)
    assert "warning: node node-7: label topology.scheduler/network-bandwidth" in done.output


def test_a_name_of_a_node_and_of_a_domain_is_refused_with_both_ways_to_write_it(served: Served) -> None:
    def change(obj: dict[str, Any]) -> dict[str, Any]:
        labels = {**obj["metadata"]["labels"], "topology.scheduler/leaf": "node-7"}
        return {**obj, "metadata": {**obj["metadata"], "labels": labels}}

    served.call(lambda: served.server.store.modify("nodes", "node-6", "", change))
    done = run("drain", "node-7", "--dry-run", "--kubeconfig", served.kubeconfig)
    assert done.exit_code == 2
    assert "a node and a domain are called node-7; write node/node-7 or " in done.output
    domain = done.output.strip().rpartition(" ")[2]
    for target, emptied in (("node/node-7", "node-7"), (domain, "node-6")):
        done = run("drain", target, "--dry-run", "-o", "json", "--kubeconfig", served.kubeconfig)
        assert f'"nodes": [\n    "{emptied}"\n  ]' in done.output, done.output


def test_a_domain_that_is_none_and_a_definition_that_is_missing(served: Served) -> None:
    done = run("drain", "leaf-9", "--kubeconfig", served.kubeconfig)
    assert done.exit_code == 2 and "no domain and no node is called leaf-9" in done.output
    _pod(served, "a-0", "node-7", "a")
    done = run("drain", "node-7", "--dry-run", "--kubeconfig", served.kubeconfig)
    assert done.exit_code == 0 and "definition migrations.topology.scheduler is not installed" in done.output
    done = run("drain", "node-7", "--kubeconfig", served.kubeconfig)
    assert done.exit_code == 1 and "migrations.topology.scheduler is not installed" in done.output
    node = served.call(lambda: served.server.store.find("nodes", "node-7"))
    assert node is not None and not node.obj["spec"].get("unschedulable"), "nothing is begun that can't be ended"


SCHEDULER = """
apiVersion: topology.scheduler/v1alpha1
kind: TopologySchedulerConfig
spec:
  recovery:
    {field}
"""


@pytest.mark.parametrize(
    ("field", "problem"),
    [("enabled: false", "recovery.enabled is false"), ("{enabled: true, dryRun: true}", "recovery.dryRun is true")],
)
def test_nothing_is_touched_where_recovery_would_move_no_pod(served: Served, field: str, problem: str) -> None:
    _define(served)
    _pod(served, "a-0", "node-7", "a")
    served.configure(SCHEDULER.replace("\n    {field}", f" {field}" if "{" in field else f"\n    {field}"))
    done = run("drain", "node-7", "--kubeconfig", served.kubeconfig)
    assert done.exit_code == 1
    assert f"{problem} in ConfigMap kube-system/topology-scheduler-config" in done.output
    assert "Nothing was changed" in done.output
    assert not _cordoned(served, "node-7")
    assert served.call(lambda: served.server.store.list("migrations.topology.scheduler")) == []
    dry = run("drain", "node-7", "--dry-run", "--kubeconfig", served.kubeconfig)
    assert dry.exit_code == 0 and f"warning: {problem}" in dry.output


def test_nodes_without_pods_to_move_are_cordoned_without_recovery(served: Served) -> None:
    _define(served)
    served.configure(SCHEDULER.format(field="enabled: false"))
    done = run("drain", "node/node-7", "--kubeconfig", served.kubeconfig)
    assert done.exit_code == 0, done.output
    assert _cordoned(served, "node-7")


def test_no_scheduler_that_leads_is_a_warning(served: Served) -> None:
    _define(served)
    _pod(served, "a-0", "node-7", "a")
    done = run("drain", "node-7", "--kubeconfig", served.kubeconfig)
    assert done.exit_code == 0
    assert "Lease kube-system/topology-scheduler does not exist: no scheduler is running" in done.output


def test_the_plan_as_yaml(served: Served) -> None:
    _pod(served, "a-0", "node-7", "a")
    done = run("drain", "node-7", "--dry-run", "-o", "yaml", "--kubeconfig", served.kubeconfig)
    plan = yaml.safe_load(done.stdout)
    assert plan["nodes"] == ["node-7"] and plan["dryRun"] is True
    assert plan["migrations"][0]["workload"] == "Job a"


@pytest.mark.parametrize(
    ("statuses", "code", "said"),
    [
        (
            [{"phase": "Evicting"}, {"phase": "Done", "message": "moved"}],
            0,
            ["0 of 1 ended; default/drain-node-7", "no phase yet", "Evicting", "1 of 1 ended", "Done"],
        ),
        ([{"phase": "Failed", "message": "no room"}], 1, ["did not end in Done", "Failed no room"]),
        ([{"phase": "Cancelled", "conditions": [_NO_USE]}], 1, ["Cancelled"]),
        ([{"phase": "Cancelled", "conditions": [_GONE]}], 0, ["1 of 1 ended"]),
        ([{"conditions": [_DISABLED]}], 1, ["recovery is off in the scheduler's configuration"]),
        ([], 1, ["1 of 1 Migrations have not ended within 3 s; they continue"]),
        (
            [{"phase": "Evicting", "message": MESSAGE, "conditions": [{**_DISABLED, "type": "Evicted"}]}],
            1,
            ["not ended within 6 s; 1 of them will not continue until recovery is on: set recovery.enabled to true"],
        ),
    ],
)
def test_waiting_shows_each_change_and_the_end(
    served: Served, statuses: list[dict[str, Any]], code: int, said: list[str]
) -> None:
    _define(served)
    _pod(served, "a-0", "node-7", "a")
    kind = "migrations.topology.scheduler"

    store = served.server.store

    async def lead() -> None:
        assert await until(store, lambda: bool(store.list(kind)), 20)
        (record,) = store.list(kind)
        for status in statuses:
            await asyncio.sleep(1.5)  # longer than the command waits between two looks
            if status.get("phase") != "Evicting":
                _delete(store, "a-0")
            name = record.obj["metadata"]["name"]
            store.modify(kind, name, "default", partial(_with_status, status), subresource="status")

    leading = asyncio.run_coroutine_threadsafe(lead(), served.loop)
    limit: tuple[str, ...] = ("--timeout", "3s") if not statuses else ()
    if statuses and statuses[-1].get("phase") == "Evicting":
        limit = ("--timeout", "6s")
    done = run("drain", "node-7", "--wait", *limit, "--kubeconfig", served.kubeconfig)
    leading.result(20)
    assert done.exit_code == code, done.output
    for text in said:
        assert text in done.output


def test_waiting_says_once_that_controllers_create_replacements_later() -> None:
    progress = _LineProgress()
    placing = Migration(status=MigrationStatus(phase="Placing"))
    with redirect_stderr(StringIO()) as shown:
        for _ in range(3):
            progress.show({"default/m": placing})
    assert shown.getvalue() == f"0 of 1 ended; default/m: Placing: {PLACING}\n"
    shrinking = Migration(status=MigrationStatus(phase="Placing", policy="shrink"))
    assert state(shrinking) == ("Placing", ""), "no pods replace those"
    failed = MigrationCondition("Placed", "False", "Off", "recovery is off")
    stopped = Migration(status=MigrationStatus(phase="Placing", conditions=[failed]))
    assert state(stopped) == ("Placing", "recovery is off")


def test_pods_bound_until_the_node_is_cordoned_are_moved_too(served: Served) -> None:
    _define(served)
    _pod(served, "a-0", "node-7", "a")

    def late(info: RequestInfo) -> bool:
        served.server.store.create("pods", _body("b-0", info.name, "b"), "default")
        return True

    served.server.faults.add(Delay(0.0), verb="patch", resource="nodes", where=late, times=1)
    done = run("drain", "node-7", "--kubeconfig", served.kubeconfig)
    assert done.exit_code == 0, done.output
    assert "2 pods of 2 workloads to move" in done.output and "2 Migrations created" in done.output
    assert _moving(served) == {"a-0", "b-0"}


def test_a_node_deleted_until_it_is_cordoned_is_skipped(served: Served) -> None:
    _define(served)
    _pod(served, "a-0", "node-7", "a")
    _pod(served, "b-0", "node-8", "b")

    def deleted(info: RequestInfo) -> bool:
        if info.name == "node-7":
            served.server.store.delete("nodes", "node-7")
        return False

    served.server.faults.add(Delay(0.0), verb="patch", resource="nodes", where=deleted)
    done = run("drain", "leaf-3", "--kubeconfig", served.kubeconfig)
    assert done.exit_code == 0, done.output
    assert "node node-7 was deleted meanwhile: the drain continues without it" in done.output
    assert "1 node cordoned, 1 Migration created" in done.output
    assert _cordoned(served, "node-8") and _moving(served) == {"b-0"}


@pytest.mark.parametrize("code", [403, 404])
def test_a_node_that_can_not_be_cordoned_ends_the_drain_with_what_was_done(served: Served, code: int) -> None:
    """An admission webhook may answer 404."""
    _define(served)
    _pod(served, "a-0", "node-7", "a")
    served.server.faults.add(Refuse(code), verb="patch", resource="nodes", where=lambda info: info.name == "node-8")
    done = run("drain", "leaf-3", "--kubeconfig", served.kubeconfig)
    assert done.exit_code == 1
    assert "1 of 2 nodes cordoned, no Migration created" in done.output and f"{code} " in done.output
    assert _cordoned(served, "node-7") and not _moving(served)


def test_waiting_moves_pods_whose_binding_was_on_its_way(served: Served) -> None:
    _define(served)
    _pod(served, "a-0", "node-7", "a")
    store = served.server.store
    kind = "migrations.topology.scheduler"

    async def lead() -> None:
        for count in (1, 2):
            assert await until(store, lambda count=count: len(store.list(kind)) == count, 20)  # type: ignore[misc]
            if count == 1:
                store.create("pods", _body("b-0", "node-7", "b"), "default")
            for item in store.list(kind):
                _delete(store, item.obj["spec"]["pods"][0]["name"])
                name, done = item.obj["metadata"]["name"], {"phase": "Done"}
                store.modify(kind, name, "default", partial(_with_status, done), subresource="status")

    leading = asyncio.run_coroutine_threadsafe(lead(), served.loop)
    done = run("drain", "node-7", "--wait", "--kubeconfig", served.kubeconfig)
    leading.result(20)
    assert done.exit_code == 0, done.output
    assert "pods were bound to these nodes meanwhile" in done.output
    assert _moving(served) == {"a-0", "b-0"}


def test_a_limit_without_waiting_is_refused(served: Served) -> None:
    done = run("drain", "node-7", "--timeout", "3s", "--kubeconfig", served.kubeconfig)
    assert done.exit_code == 2 and "--timeout limits --wait" in done.output
    assert not _cordoned(served, "node-7")


def test_pods_that_an_edited_migration_leaves_behind_are_an_error(served: Served) -> None:
    _define(served)
    _pod(served, "a-0", "node-7", "a")
    store, kind = served.server.store, "migrations.topology.scheduler"

    async def lead() -> None:
        assert await until(store, lambda: bool(store.list(kind)), 20)
        (item,) = store.list(kind)
        done = partial(_with_status, {"phase": "Done"})
        store.modify(kind, item.obj["metadata"]["name"], "default", done, subresource="status")

    leading = asyncio.run_coroutine_threadsafe(lead(), served.loop)
    done = run("drain", "node-7", "--wait", "--kubeconfig", served.kubeconfig)
    leading.result(20)
    assert done.exit_code == 1 and "pods stay, as their Migrations were edited: default/a-0" in done.output


def _delete(store: Store, name: str) -> None:
    if store.find("pods", name, "default") is not None:
        store.delete("pods", name, "default", DeleteOptions(grace=0))


def _with_status(status: dict[str, Any], obj: dict[str, Any]) -> dict[str, Any]:
    return {**obj, "status": status}


def _cordoned(served: Served, name: str) -> bool:
    node = served.call(lambda: served.server.store.find("nodes", name))
    return node is not None and bool(node.obj["spec"].get("unschedulable"))


@virtual_time
async def test_a_load_balancer_that_answers_404_does_not_end_the_wait() -> None:
    requests = itertools.count(1)
    over = {"kind": "Migration", "metadata": {"name": "m", "namespace": "default"}, "status": {"phase": "Done"}}

    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=404, text="default backend - 404") if next(requests) < 3 else web.json_response(over)

    async with stubbed(answer) as client:
        await wait_for_migrations(client, [("default", "m")], 60)
    assert next(requests) == 4


def test_several_nodes_are_refused_with_what_to_do() -> None:
    """Unlike ``kubectl drain a b``."""
    done = run("drain", "node-1", "node-2", "--dry-run", "node-3")
    assert done.exit_code == 2
    assert (
        "one domain or node at a time, but 3 are given. To drain several, first cordon all their nodes" in done.output
    )
    assert run("drain", "node-1", "--unknown").exit_code == 2
