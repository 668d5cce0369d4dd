"""``topo-scheduler topology``: the fabric of a cluster as a tree with free GPUs, once or continuously."""

import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from topo_scheduler.cli.common import (
    CommandFailure,
    ShortCommand,
    as_document,
    cluster_options,
    config_map_option,
    config_option,
    say,
)
from topo_scheduler.cli.coroutines import run_async

if TYPE_CHECKING:
    from rich.console import Group

    from topo_scheduler.api.objects import Pod
    from topo_scheduler.scheduling.world import World


@click.command(cls=ShortCommand, context_settings={"help_option_names": ["-h", "--help"]})
@cluster_options
@config_option
@config_map_option
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "wide", "json", "yaml"]),
    default="text",
    help="wide adds the pods and devices of each node, and all links.",
)
@click.option("-w", "--watch", is_flag=True, help="Watch the cluster and redraw until Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1, max=3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Pause between redraws of --watch.",
)
def command(watch: bool, interval: float, **options: Any) -> None:
    """Show the fabric as a tree: domains and nodes with their GPUs, utilisation and fragmentation.

    Below the tree: for each level and GPU model the largest gang that would fit now, and the number of stranded GPUs.
    The command lists nodes and pods once, and writes nothing. With --watch it follows changes; with -o json it prints
    one document a line. Levels, labels, links and GPU resources come from the ConfigMap of the scheduler in the
    cluster, unless --config names a file.
    """
    try:
        run_async(_watch(interval, **options) if watch else _show(**options))
    except KeyboardInterrupt:
        if not watch:
            raise


async def _show(
    kubeconfig: str | None, context: str | None, config_path: Path | None, config_map: str | None, output: str
) -> None:
    from topo_scheduler.cli.device_listing import list_devices
    from topo_scheduler.cli.live_config import live_configuration
    from topo_scheduler.cli.snapshot import build_world, connected, list_cluster

    async with connected(kubeconfig, context) as client:
        configuration = (await live_configuration(client, config_path, config_map)).configuration
        listed = await list_cluster(client)
        devices = await list_devices(client)
    from topo_scheduler.cli import render, views
    from topo_scheduler.cli.device_views import add_devices, device_problems

    world = build_world(listed, configuration)
    add_devices(world, devices)
    for problem in (
        *render.problems(listed.problems),
        *render.problems(devices.problems),
        *render.problems(device_problems(world)),
    ):
        say(f"warning: {problem}", err=True)
    if not len(world.nodes):
        raise CommandFailure("the cluster has no nodes")
    root = views.tree(world, listed.pods)
    if root is not None and output in ("json", "yaml") and render.unlabelled_gpus(root):
        say(f"warning: {render.unlabelled_note(root)}", err=True)
    if output in ("json", "yaml"):
        click.echo(as_document(as_json(world, listed.pods), output))
    else:
        render.console().print(_picture(world, listed.pods, wide=output == "wide"))


async def _watch(
    interval: float,
    kubeconfig: str | None,
    context: str | None,
    config_path: Path | None,
    config_map: str | None,
    output: str,
) -> None:
    import asyncio
    from datetime import datetime

    from rich.live import Live as Screen
    from rich.text import Text

    from topo_scheduler.cli import render
    from topo_scheduler.cli.live import following
    from topo_scheduler.cli.live_config import live_configuration
    from topo_scheduler.cli.snapshot import connected

    screen = render.console()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connected(kubeconfig, context))
        configuration = (await live_configuration(client, config_path, config_map)).configuration
        live = await stack.enter_async_context(following(client, configuration))

        def picture() -> "Group | Text":
            now = datetime.now().strftime("%H:%M:%S")
            if not len(live.world.nodes):
                return Text(f"{now}  the cluster has no nodes")
            return _picture(live.world, live.pods, wide=output == "wide", title=now)

        if output not in ("json", "yaml") and screen.is_terminal:
            with Screen(picture(), console=screen, screen=True, auto_refresh=False) as display:
                while True:
                    await asyncio.sleep(interval)
                    display.update(picture(), refresh=True)
        while True:
            if output in ("json", "yaml"):
                document = as_json(live.world, live.pods) if len(live.world.nodes) else {"nodes": []}
                document = {"at": datetime.now().astimezone().isoformat(timespec="seconds"), **document}
                click.echo(json.dumps(document) if output == "json" else f"---\n{as_document(document, output)}")
            else:
                screen.print(picture())
                screen.print()
            await asyncio.sleep(interval)


def as_json(world: "World", pods: "list[Pod]") -> dict[str, Any]:
    """Return the fabric of a cluster, for JSON output."""
    from topo_scheduler.cli import accelerators, gangs, render, views
    from topo_scheduler.scheduling.surveying.fragmentation import fragmentation

    root = views.tree(world, pods)
    assert root is not None
    accelerator_json = accelerators.as_json(accelerators.domains(world))
    return {**render.as_json(root), **accelerator_json, **gangs.as_json(fragmentation(world))}


def _picture(world: "World", pods: "list[Pod]", *, wide: bool, title: str = "") -> "Group":
    """Return the output; with a title the sums come first, as the screen may be too small for the tree."""
    from rich.console import Group, RenderableType
    from rich.text import Text

    from topo_scheduler.cli import accelerators, gangs, render, views
    from topo_scheduler.scheduling.surveying.fragmentation import fragmentation

    root = views.tree(world, pods)
    assert root is not None
    surveyed = fragmentation(world)
    tree: list[RenderableType] = [render.fabric(root, wide=wide, tenants=wide, devices=wide)]
    if note := render.unlabelled_note(root):
        tree.append(Text(note, style="yellow"))
    if accelerator_domains := accelerators.domains(world):
        tree += [Text(), accelerators.table(accelerator_domains)]
    sums: list[RenderableType] = [gangs.largest_gangs(surveyed), gangs.stranded_line(surveyed)]
    if title:
        return Group(Text(title, style="dim"), *sums, Text(), *tree)
    return Group(*tree, Text(), *sums)
