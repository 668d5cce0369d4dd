"""``topo-scheduler simulate``: what this scheduler, and others, would have done with jobs, in virtual time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from topo_scheduler.cli.common import USAGE, Failure, cluster_options, config_option

if TYPE_CHECKING:
    from topo_scheduler.simulation.cases.model import ClusterCase
    from topo_scheduler.simulation.results.model import Run
    from topo_scheduler.simulation.tasks import Task


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--cluster", required=True, metavar="C", help="The cluster; see below.")
@click.option("--workload", required=True, metavar="W", help="What arrives; see below.")
@click.option("--policy", default="topo", show_default=True, metavar="P[,P...]", help="Who schedules; see below.")
@click.option("--seeds", default="42", show_default=True, metavar="SEEDS", help="One run each: 42, 42..51 or 1,5.")
@click.option(
    "--fill",
    type=click.FloatRange(0, 100, min_open=True),
    metavar="SHARE",
    help="Shuffle the workload and repeat of it until GPUs asked for reach this share of those there are; nobody"
    " leaves. By default workloads come and go at their times.",
)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Write result.json and all placements.")
@click.option(
    "--bind-latency",
    type=click.FloatRange(0, 3600),
    default=0.0,
    metavar="SECONDS",
    help="Time from a decision until its pods run; none by default.",
)
@click.option(
    "--communication",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.3,
    show_default=True,
    metavar="SHARE",
    help="Share of a training step that is all-reduce; the slow-down of gangs is estimated for it.",
)
@cluster_options
@config_option
def command(
    cluster: str,
    workload: str,
    policy: str,
    seeds: str,
    fill: float | None,
    out: Path | None,
    bind_latency: float,
    communication: float,
    kubeconfig: str | None,
    context: str | None,
    config_path: Path | None,
) -> None:
    """Schedule a workload on a cluster in virtual time, and compare policies.

    The decisions are those of the very code that `run` schedules with. Same input and seed, same result.

    \b
    C:  live (read once, with --kubeconfig), leaf-spine:spines=8,leaves=16,nodes=16,gpus=8,
        a directory or file of kubectl get -o yaml, a recorded directory,
        openb nodes (CSV), a topograph model, the Lingjun table
    W:  poisson:rate=120/h,jobs=1000,sizes=1:0.5|8:0.5,duration=lognormal:mean=2h,sigma=1.5
        YAML manifests, a recorded directory, openb pods (CSV), streams of Gavel and Muri
    P:  topo, topo:FILE (another configuration), blind-gang (gangs without topology),
        rack (a gang in one leaf, if any has room), and pod by pod: random, best-fit,
        least-allocated (kube-scheduler's default), most-allocated, dot-product, fgd
    """  # noqa: D301 - click reads the backspace
    from topo_scheduler.simulation.cases.model import CaseError
    from topo_scheduler.simulation.cases.reading import LIVE, read_cluster

    try:
        read = read_cluster(cluster, kubeconfig=kubeconfig, context=context) if cluster == LIVE else cluster
        tasks = _tasks(read, workload, policy, seeds, fill, bind_latency, communication, config_path)
        _simulate(tasks, out)
    except CaseError as error:
        raise Failure(str(error), USAGE) from error


def _tasks(
    cluster: "str | ClusterCase",
    workload: str,
    policy: str,
    seeds: str,
    fill: float | None,
    latency: float,
    communication: float,
    config_path: Path | None,
) -> "list[Task]":
    from topo_scheduler.api.config import ConfigError
    from topo_scheduler.daemon import read_configuration
    from topo_scheduler.simulation.policies.names import read_policies, seeds_of
    from topo_scheduler.simulation.slowdown import Assumed
    from topo_scheduler.simulation.tasks import Task

    try:
        base = read_configuration(config_path)
    except ConfigError as error:
        raise Failure(str(error), USAGE) from error
    numbers = seeds_of(seeds)
    assumed = Assumed(communication=communication)
    return [
        Task(one, seed, cluster, workload, fill, base, latency, assumed)
        for one in read_policies(policy)
        for seed in numbers
    ]


def _simulate(tasks: "Sequence[Task]", out: Path | None) -> None:
    from topo_scheduler.cli import render
    from topo_scheduler.simulation import tasks as running
    from topo_scheduler.simulation.results.table import comparison
    from topo_scheduler.simulation.results.writing import check_folder, write_result

    if out is not None:
        check_folder(out)
    runs: list[Run] = []
    files: dict[str, bytes] = {}
    with _progress(len(tasks)) as progress:
        for number, task in enumerate(tasks):
            progress(number, f"{task.policy.name}, seed {task.seed}", 0, 1)
            arrived = 0

            def tell(count: int, total: int, number: int = number, name: str = task.policy.name) -> None:
                nonlocal arrived
                arrived += count
                progress(number, name, arrived, total)

            done = running.run(task, tell)
            runs.append(done.run)
            files[done.run.file] = done.placements
    if out is not None:
        write_result(out, runs, files)
    screen = render.console()
    screen.print(comparison(runs))
    for complaint in dict.fromkeys(one for run in runs for one in run.complaints):
        click.echo(f"warning: {complaint}", err=True)
    if out is not None:
        click.echo(f"{out / 'result.json'}: {len(runs)} {'run' if len(runs) == 1 else 'runs'}")


class _Silent:
    def __call__(self, number: int, name: str, arrived: int, total: int) -> None:
        """Show nothing."""


class _Shown:
    def __init__(self, bar: "object", task: int) -> None:
        self._bar, self._task = bar, task

    def __call__(self, number: int, name: str, arrived: int, total: int) -> None:
        """Show how many runs are done, the current one by its arrivals."""
        done = number + arrived / max(1, total)
        self._bar.update(self._task, completed=done, description=name)  # type: ignore[attr-defined]


@contextmanager
def _progress(runs: int) -> "Iterator[_Silent | _Shown]":
    """Show a bar on a terminal, nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    screen = Console(stderr=True)
    if not screen.is_terminal:
        yield _Silent()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeRemainingColumn(), console=screen, transient=True) as bar:
        yield _Shown(bar, bar.add_task("", total=runs))
