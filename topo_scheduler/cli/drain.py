"""``topo-scheduler drain``: drains nodes or whole domains by Migrations, which the scheduler executes."""

import hashlib
import json
import re
from collections.abc import Sequence
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
    from topo_scheduler.api.objects import Pod
    from topo_scheduler.cli.live_config import LiveConfiguration
    from topo_scheduler.kube.connection.client import Client
    from topo_scheduler.scheduling.world import World

TIMEOUT_SECONDS: Final = 10.0


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


@click.command(cls=ShortCommand, context_settings={"help_option_names": ["-h", "--help"]})
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
def command(**options: Any) -> None:
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
        nodes = _nodes(world, target)
        migrations, stays = migrations_for(listed.pods, nodes, target, scheduler.scheduler_name)
        if output == "text":
            _report(target, nodes, migrations, stays)
        else:
            click.echo(as_document(_plan(target, nodes, migrations, stays, dry_run=dry_run), output))
        if migrations:
            _check_recovery(live, refuse=not dry_run)
            await check_leader(client, scheduler.leader_election)
        if dry_run:
            return
        created = await _write(client, nodes, migrations, target, cause, scheduler.scheduler_name)
        say(f"{counted(len(nodes), 'node')} cordoned, {counted(len(created), 'Migration')} created", err=True)
        if wait:
            await wait_for_migrations(client, created, timeout)


def _check_recovery(live: "LiveConfiguration", *, refuse: bool) -> None:
    """Check that a leader would execute Migrations; if the configuration is only assumed, warn."""
    recovery = live.configuration.topology.spec.recovery
    if recovery.enabled and not recovery.dry_run:
        return
    field, value = ("dryRun", "true") if recovery.enabled else ("enabled", "false")
    if live.assumed:
        text = (
            "whether recovery is on in the scheduler is not known, and by default it is off: then these Migrations stay"
            " without a phase, with the reason RecoveryDisabled in their status"
        )
    else:
        remedy = "set it to " + ("false" if recovery.enabled else "true")
        text = (
            f"recovery.{field} is {value} in {live.origin}: the scheduler would move no pod; {remedy} in"
            " TopologySchedulerConfig, or empty the nodes with kubectl drain"
        )
        if refuse:
            raise CommandFailure(f"{text}. Nothing was changed")
    say(f"warning: {text}", err=True)


def _nodes(world: "World", target: str) -> list[str]:
    """Return the nodes of the target, in order of the fabric."""
    if target in world.nodes.row_of:
        return [target]
    layout = world.layout
    domains = layout.find(target)
    kind, _, name = target.partition("/")
    if not domains and kind in ("node", "nodes", "no") and name in world.nodes.row_of:
        return [name]
    if not domains:
        raise CommandFailure(f"no domain and no node is called {target}; see `topo-scheduler topology`", USAGE)
    if len(domains) > 1:
        paths = ", ".join("/".join(layout.domain_path(depth, index)) for depth, index in domains[:4])
        raise CommandFailure(f"{target} may mean {paths}; write the path of one of them", USAGE)
    depth, index = domains[0]
    first, last = layout.domains[depth][index : index + 2].tolist()
    rows = layout.order[layout.offsets[first] : layout.offsets[last]]
    return [world.nodes.names[row] for row in rows.tolist()]


def migrations_for(
    pods: Sequence["Pod"], nodes: Sequence[str], target: str, scheduler: str
) -> tuple[list[WantedMigration], list[RemainingPod]]:
    """Return the Migrations that drain nodes, and the pods that stay."""
    from topo_scheduler.api.annotations import GANG_ID, MOVABLE

    drained = set(nodes)
    groups: dict[tuple[str, str], list[Pod]] = {}
    stays: list[RemainingPod] = []
    for pod in sorted(pods, key=lambda pod: pod.key):
        if pod.spec.node_name not in drained or pod.finished:
            continue
        controller = pod.metadata.controller
        if controller is not None and controller.kind in ("DaemonSet", "Node"):
            continue  # it belongs to the node
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
    return migrations, stays


def _report(
    target: str, nodes: Sequence[str], migrations: Sequence[WantedMigration], stays: Sequence[RemainingPod]
) -> None:
    pods = counted(sum(len(migration.pods) for migration in migrations), "pod")
    say(f"{target}: {counted(len(nodes), 'node')} to cordon, {pods} of {counted(len(migrations), 'workload')} to move")
    for migration in migrations:
        names = few_of([name for name, _ in migration.pods])
        say(f"  {migration.namespace}/{migration.name}  {migration.workload}: {names}")
    for stay in stays:
        say(f"  stays: pod {stay.pod} on {stay.node}: {stay.why}")


def _plan(
    target: str,
    nodes: Sequence[str],
    migrations: Sequence[WantedMigration],
    stays: Sequence[RemainingPod],
    *,
    dry_run: bool,
) -> dict[str, object]:
    """Return the plan for JSON and YAML output."""
    return {
        "target": target,
        "dryRun": dry_run,
        "nodes": list(nodes),
        "migrations": [
            {
                "namespace": migration.namespace,
                "name": migration.name,
                "workload": migration.workload,
                "pods": [{"name": name, "uid": uid} for name, uid in migration.pods],
            }
            for migration in migrations
        ],
        "stays": [{"pod": stay.pod, "node": stay.node, "reason": stay.why} for stay in stays],
    }


async def _write(
    client: "Client",
    nodes: Sequence[str],
    migrations: Sequence[WantedMigration],
    target: str,
    cause: str,
    scheduler: str,
) -> list[tuple[str, str]]:
    """Cordon the nodes and create the Migrations for a scheduler; return namespace and name of each.

    Raises:
        CommandFailure: the definition of Migrations is not installed, or one could not be created.
    """
    from topo_scheduler.api.migrations import DEFINITION, Migration, MigrationPod, MigrationSpec, MigrationWrite
    from topo_scheduler.kube.connection.client import MERGE_PATCH
    from topo_scheduler.kube.connection.errors import NotFound
    from topo_scheduler.kube.connection.fence import UNFENCED
    from topo_scheduler.kube.connection.resources import NODES
    from topo_scheduler.kube.writing.migrations import MigrationWriter

    client = client.fenced(UNFENCED)
    writer = MigrationWriter(client)
    try:
        ended_phases = {
            migration.key: migration.status.phase
            async for migration in writer.each()
            if isinstance(migration, Migration) and migration.phase is not None and migration.phase.over
        }
    except NotFound:
        raise CommandFailure(
            f"the definition {DEFINITION} is not installed: apply manifests/install.yaml first"
        ) from None
    cordon = json.dumps({"spec": {"unschedulable": True}}).encode()
    for node in nodes:
        await client.request(
            "PATCH", NODES.path("", node), body=cordon, content_type=MERGE_PATCH, timeout=TIMEOUT_SECONDS
        )
    refused, created = [], []
    for wanted in migrations:
        spec = MigrationSpec(
            cause=cause or f"{target} is drained",
            scheduler_name=scheduler,
            avoid=[target],
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
        else:
            created.append((wanted.namespace, name))
    if refused:
        raise CommandFailure("these Migrations could not be created:\n  " + "\n  ".join(refused))
    return created
