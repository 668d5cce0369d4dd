"""``topo-scheduler drain``: drains nodes or whole domains by Migrations, which the scheduler executes."""

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from topo_scheduler.api.text import counted, few_of
from topo_scheduler.cli.common import (
    USAGE,
    CommandFailure,
    ShortCommand,
    as_document,
    cluster_options,
    config_map_option,
    config_option,
    say,
)
from topo_scheduler.cli.coroutines import run_async
from topo_scheduler.cli.run import Duration

if TYPE_CHECKING:
    from topo_scheduler.api.migrations import Phase
    from topo_scheduler.api.objects import Pod
    from topo_scheduler.cli.live_config import LiveConfiguration
    from topo_scheduler.kube.connection.client import Client
    from topo_scheduler.scheduling.world import World

TIMEOUT_SECONDS: Final = 10.0
CORDONS_AT_ONCE: Final = 16
"""Maximum nodes that are cordoned at the same time."""


@dataclass(frozen=True, slots=True)
class WantedMigration:
    """A Migration to create. ``workload`` is kind and name of the controller, or the gang."""

    namespace: str
    name: str
    workload: str
    pods: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class RemainingPod:
    """A pod that is not moved, and the reason."""

    pod: str
    node: str
    why: str


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """What a drain does: the nodes to cordon, the Migrations to create, and the pods that stay."""

    target: str
    nodes: tuple[str, ...]
    migrations: tuple[WantedMigration, ...]
    stays: tuple[RemainingPod, ...]

    @property
    def uids(self) -> frozenset[str]:
        """The UIDs of the pods to move."""
        return frozenset(uid for migration in self.migrations for _, uid in migration.pods)


@click.command(cls=ShortCommand, context_settings={"help_option_names": ["-h", "--help"], "allow_extra_args": True})
@click.argument("target", metavar="DOMAIN|NODE")
@click.option("--dry-run", is_flag=True, help="Report what would be moved; write nothing.")
@click.option("--cause", default="", metavar="TEXT", help="Reason that the Migrations report.")
@click.option("--wait", is_flag=True, help="Wait until every Migration has ended, and show progress.")
@click.option(
    "--timeout",
    type=Duration(),
    metavar="DURATION",
    help="Limit for --wait, such as 30m; none by default. Migrations continue after it.",
)
@cluster_options
@config_option
@config_map_option
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "yaml"]),
    default="text",
    help="Format of the plan; json and yaml send progress to standard error.",
)
@click.pass_context
def command(invocation: click.Context, /, **options: Any) -> None:
    """Empty a domain such as spine-1/leaf-3, or a node.

    The command cordons the nodes. It creates one Migration for each gang, and for each controller of single pods, that
    this scheduler placed there. The scheduler reserves nodes elsewhere before it evicts a pod. --wait and
    `kubectl get migrations -A` show progress. To cancel a Migration, delete it; nodes stay cordoned until you uncordon
    them.

    If recovery is disabled or in dry run, the scheduler moves no pod. The command then refuses if a pod would have to
    move, and cordons nothing. Exit code 1 if it refuses, or if a Migration failed or was cancelled.
    """
    if options["timeout"] is not None and not options["wait"]:
        raise CommandFailure("--timeout limits --wait: give both, or neither", USAGE)
    if invocation.args:
        raise CommandFailure(
            f"one domain or node at a time, but {1 + len(invocation.args)} are given. To drain several, first cordon"
            " all their nodes, so that no pod moves from one to another. Then run this command for each",
            USAGE,
        )
    run_async(_drain(**options))


async def _drain(
    target: str,
    dry_run: bool,
    cause: str,
    wait: bool,
    timeout: float | None,
    kubeconfig: str | None,
    context: str | None,
    config_path: Path | None,
    config_map: str | None,
    output: str,
) -> None:
    from topo_scheduler.cli.live_config import live_configuration
    from topo_scheduler.cli.snapshot import build_world, connected, list_cluster

    async with connected(kubeconfig, context) as client:
        live = await live_configuration(client, config_path, config_map)
        scheduler = live.configuration.scheduler
        listed = await list_cluster(client)
        from topo_scheduler.cli import render
        from topo_scheduler.cli.drain_progress import check_leader, wait_for_migrations

        world = build_world(listed, live.configuration)
        for problem in render.problems(listed.problems):
            say(f"warning: {problem}", err=True)
        target, nodes = _resolved(world, target)
        plan = plan_drain(listed.pods, nodes, target, scheduler.scheduler_name)
        problem = _recovery_problem(live) if plan.migrations else ""
        refused = bool(problem) and not live.assumed and not dry_run
        if not dry_run and not refused:
            ended_phases = await _ended_phases(client)
            nodes = await _cordon(client, nodes)
            # Until the nodes are cordoned the scheduler binds pods there, and an answer may take seconds.
            plan = plan_drain((await list_cluster(client)).pods, nodes, target, scheduler.scheduler_name)
            problem = _recovery_problem(live) if plan.migrations else ""
        if output == "text":
            _report(plan)
        else:
            click.echo(as_document(as_json(plan, dry_run=dry_run), output))
        if refused:
            raise CommandFailure(f"{problem}. Nothing was changed")
        if problem:
            say(f"warning: {problem}", err=True)
        if plan.migrations:
            await check_leader(client, scheduler.leader_election)
        if dry_run:
            if plan.migrations:
                await _warn_of_failure(client)
            return
        cause = cause or f"{target} is drained"
        names, existing = await _create(client, plan, ended_phases, cause, scheduler.scheduler_name)
        already = f", {existing} in progress already" if existing else ""
        cordoned, created = counted(len(nodes), "node"), counted(len(names) - existing, "Migration")
        say(f"{cordoned} cordoned, {created} created{already}", err=True)
        started, planned_uids = time.monotonic(), plan.uids
        while wait:
            await wait_for_migrations(client, names, timeout, time.monotonic() - started)
            # Bindings that were on their way when the nodes were cordoned have arrived meanwhile.
            pods = [pod for pod in (await list_cluster(client)).pods if pod.metadata.deletion_timestamp is None]
            further = plan_drain(pods, nodes, target, scheduler.scheduler_name)
            if not further.migrations:
                return
            if remaining_uids := further.uids & planned_uids:
                keys = [pod.key for pod in pods if pod.metadata.uid in remaining_uids]
                raise CommandFailure(
                    f"pods stay, as their Migrations were edited: {few_of(keys)}; drain the nodes again"
                )
            say("pods were bound to these nodes meanwhile", err=True)
            _report(further, err=True)
            names, _ = await _create(client, further, await _ended_phases(client), cause, scheduler.scheduler_name)
            planned_uids |= further.uids


def _recovery_problem(live: "LiveConfiguration") -> str:
    """Return why no leader executes Migrations, as far as the configuration tells; empty if one does."""
    recovery = live.configuration.topology.spec.recovery
    if recovery.enabled and not recovery.dry_run:
        return ""
    field, value = ("dryRun", "true") if recovery.enabled else ("enabled", "false")
    if live.assumed:
        return (
            "whether recovery is on in the scheduler is not known, and by default it is off: then these Migrations stay"
            " without a phase, with the reason RecoveryDisabled in their status"
        )
    remedy = "set it to " + ("false" if recovery.enabled else "true")
    return (
        f"recovery.{field} is {value} in {live.origin}: the scheduler would move no pod; {remedy} in"
        " TopologySchedulerConfig, or empty the nodes with kubectl drain"
    )


def _resolved(world: "World", target: str) -> tuple[str, list[str]]:
    """Return the target without a kind as in ``node/NAME``, and its nodes in order of the fabric."""
    layout = world.layout
    domains = layout.find(target)
    if target in world.nodes.row_of:
        others = [domain for domain in domains if _nodes_of(world, *domain) != [target]]
        if others:
            path = "/".join(layout.domain_path(*others[0]))
            ways = f"node/{target}" if path == target else f"node/{target} or {path}"
            raise CommandFailure(f"a node and a domain are called {target}; write {ways}", USAGE)
        return target, [target]
    kind, _, name = target.partition("/")
    if not domains and kind in ("node", "nodes", "no") and name in world.nodes.row_of:
        return name, [name]
    if not domains:
        raise CommandFailure(f"no domain and no node is called {target}; see `topo-scheduler topology`", USAGE)
    if len(domains) > 1:
        paths = ", ".join("/".join(layout.domain_path(depth, index)) for depth, index in domains[:4])
        raise CommandFailure(f"{target} may mean {paths}; write the path of one of them", USAGE)
    return target, _nodes_of(world, *domains[0])


def _nodes_of(world: "World", depth: int, index: int) -> list[str]:
    """Return the nodes of a domain in order of the fabric."""
    layout = world.layout
    first, last = layout.domains[depth][index : index + 2].tolist()
    rows = layout.order[layout.offsets[first] : layout.offsets[last]]
    return [world.nodes.names[row] for row in rows.tolist()]


def plan_drain(pods: Sequence["Pod"], nodes: Sequence[str], target: str, scheduler: str) -> DrainPlan:
    """Return the Migrations by which a scheduler drains nodes, and the pods that stay."""
    from topo_scheduler.api.annotations import GANG_ID, MOVABLE
    from topo_scheduler.state.pods.node_pods import belongs_to_node

    drained = set(nodes)
    groups: dict[tuple[str, str], list[Pod]] = {}
    stays: list[RemainingPod] = []
    for pod in sorted(pods, key=lambda pod: pod.key):
        if pod.spec.node_name not in drained or pod.finished:
            continue
        if belongs_to_node(pod.metadata):
            continue
        controller = pod.metadata.controller
        if pod.spec.scheduler_name != scheduler:
            stays.append(
                RemainingPod(pod.key, pod.spec.node_name, f"another scheduler placed it: {pod.spec.scheduler_name}")
            )
        elif controller is None:
            stays.append(RemainingPod(pod.key, pod.spec.node_name, "it has no controller to recreate it"))
        elif pod.metadata.annotations.get(MOVABLE, "").strip().lower() == "false":
            stays.append(RemainingPod(pod.key, pod.spec.node_name, f'it says {MOVABLE}: "false"'))
        else:
            gang = pod.metadata.annotations.get(GANG_ID, "")
            key = f"gang {gang}" if gang else f"{controller.kind} {controller.name}"
            groups.setdefault((pod.metadata.namespace, key), []).append(pod)
    migrations = []
    for (namespace, key), members in groups.items():
        controller = members[0].metadata.controller
        assert controller is not None
        uids = "\n".join(sorted(pod.metadata.uid for pod in members))
        digest = hashlib.sha256(f"{target}\n{uids}".encode()).hexdigest()[:10]
        slug = re.sub(r"[^a-z0-9-]+", "-", f"drain-{target}".lower()).strip("-")[:50].strip("-")
        named_pods = tuple((pod.metadata.name, pod.metadata.uid) for pod in members)
        workload = f"{controller.kind} {controller.name}" if key.startswith("gang ") else key
        migrations.append(WantedMigration(namespace, f"{slug}-{digest}", workload, named_pods))
    return DrainPlan(target, tuple(nodes), tuple(migrations), tuple(stays))


def _report(plan: DrainPlan, *, err: bool = False) -> None:
    nodes, pods = counted(len(plan.nodes), "node"), counted(len(plan.uids), "pod")
    workloads = counted(len(plan.migrations), "workload")
    say(f"{plan.target}: {nodes} to cordon, {pods} of {workloads} to move", err=err)
    for migration in plan.migrations:
        names = few_of([name for name, _ in migration.pods])
        say(f"  {migration.namespace}/{migration.name}  {migration.workload}: {names}", err=err)
    for stay in plan.stays:
        say(f"  stays: pod {stay.pod} on {stay.node}: {stay.why}", err=err)


def as_json(plan: DrainPlan, *, dry_run: bool) -> dict[str, object]:
    """Return the plan for JSON and YAML output."""
    return {
        "target": plan.target,
        "dryRun": dry_run,
        "nodes": list(plan.nodes),
        "migrations": [
            {
                "namespace": migration.namespace,
                "name": migration.name,
                "workload": migration.workload,
                "pods": [{"name": name, "uid": uid} for name, uid in migration.pods],
            }
            for migration in plan.migrations
        ],
        "stays": [{"pod": stay.pod, "node": stay.node, "reason": stay.why} for stay in plan.stays],
    }


async def _ended_phases(client: "Client") -> dict[str, "Phase"]:
    """Return the phase of each Migration that has ended, by namespace and name.

    Raises:
        CommandFailure: the definition of Migrations is not installed.
    """
    from topo_scheduler.api.migrations import DEFINITION, Migration
    from topo_scheduler.kube.connection.errors import NotFound
    from topo_scheduler.kube.writing.migrations import MigrationWriter

    try:
        return {
            migration.key: migration.phase
            async for migration in MigrationWriter(client).each()
            if isinstance(migration, Migration) and migration.phase is not None and migration.phase.over
        }
    except NotFound:
        raise CommandFailure(
            f"the definition {DEFINITION} is not installed: apply manifests/install.yaml first"
        ) from None


async def _warn_of_failure(client: "Client") -> None:
    """Warn if Migrations can't be listed: without the dry run the command would end there."""
    from topo_scheduler.kube.connection.errors import KubeError

    try:
        await _ended_phases(client)
    except (CommandFailure, KubeError) as error:
        say(f"warning: Migrations can't be listed: {error}", err=True)


async def _cordon(client: "Client", nodes: Sequence[str]) -> list[str]:
    """Cordon nodes; return them without those that were deleted meanwhile.

    Raises:
        KubeError: a node could not be cordoned. No further ones are then tried.
    """
    from topo_scheduler.kube.connection.client import MERGE_PATCH
    from topo_scheduler.kube.connection.errors import KubeError, NotFound
    from topo_scheduler.kube.connection.fence import UNFENCED
    from topo_scheduler.kube.connection.resources import NODES

    client = client.fenced(UNFENCED)
    body = json.dumps({"spec": {"unschedulable": True}}).encode()
    free = asyncio.Semaphore(CORDONS_AT_ONCE)
    cordoned, failures = set[str](), list[KubeError]()

    async def cordon(node: str) -> None:
        async with free:
            if failures:
                return
            path = NODES.path("", node)
            try:
                await client.request("PATCH", path, body=body, content_type=MERGE_PATCH, timeout=TIMEOUT_SECONDS)
            except KubeError as error:
                if isinstance(error, NotFound) and await _is_deleted(client, node):
                    say(f"node {node} was deleted meanwhile: the drain continues without it", err=True)
                else:
                    failures.append(error)
            else:
                cordoned.add(node)

    await asyncio.gather(*map(cordon, nodes))
    if failures:
        say(f"{len(cordoned)} of {counted(len(nodes), 'node')} cordoned, no Migration created", err=True)
        raise failures[0]
    return [node for node in nodes if node in cordoned]


async def _is_deleted(client: "Client", node: str) -> bool:
    """Return whether a node does not exist: its 404 on a write may come from an admission webhook."""
    from topo_scheduler.kube.connection.errors import KubeError, is_missing
    from topo_scheduler.kube.connection.resources import NODES

    try:
        await client.request("GET", NODES.path("", node), timeout=TIMEOUT_SECONDS)
    except KubeError as error:
        return is_missing(error, node)
    return False


async def _create(
    client: "Client", plan: DrainPlan, ended_phases: Mapping[str, "Phase"], cause: str, scheduler: str
) -> tuple[list[tuple[str, str]], int]:
    """Create the Migrations for a scheduler; return namespace and name of each, and how many existed already.

    Raises:
        CommandFailure: one could not be created.
    """
    from topo_scheduler.api.migrations import MigrationPod, MigrationSpec, MigrationWrite
    from topo_scheduler.kube.connection.fence import UNFENCED
    from topo_scheduler.kube.writing.migrations import MigrationWriter

    writer = MigrationWriter(client.fenced(UNFENCED))
    refused, names, existing = [], [], 0
    for wanted in plan.migrations:
        spec = MigrationSpec(
            cause=cause,
            scheduler_name=scheduler,
            avoid=[plan.target],
            pods=[MigrationPod(name, uid) for name, uid in wanted.pods],
        )
        name, attempt = wanted.name, 1
        while f"{wanted.namespace}/{name}" in ended_phases:
            attempt += 1
            name = f"{wanted.name}-{attempt}"
        if attempt > 1:
            phase = ended_phases[f"{wanted.namespace}/{wanted.name}"]
            say(f"  {wanted.namespace}/{wanted.name} is over ({phase}): again as {name}", err=True)
        result = await writer.create(wanted.namespace, name, spec)
        # An existing Migration of this name is for the same pods: another drain is in progress.
        if result.outcome not in (MigrationWrite.WRITTEN, MigrationWrite.STALE):
            refused.append(f"{wanted.namespace}/{wanted.name}: {result.message}")
            continue
        names.append((wanted.namespace, name))
        existing += result.outcome is MigrationWrite.STALE
    if refused:
        raise CommandFailure("these Migrations could not be created:\n  " + "\n  ".join(refused))
    return names, existing
