"""``topo-scheduler simulate``: schedules jobs in virtual time, by this scheduler and by other policies."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from topo_scheduler.cli.common import USAGE, CommandFailure, Number, cluster_options, config_option, say
from topo_scheduler.cli.progress import progress

if TYPE_CHECKING:
    from rich.table import Table

    from topo_scheduler.simulation.cases.model import ClusterCase
    from topo_scheduler.simulation.results.model import Run
    from topo_scheduler.simulation.sweep import LostTask
    from topo_scheduler.simulation.tasks import Done, Task
    from topo_scheduler.state.devices.hardware import NodeHardware


def _write_report(context: click.Context, _: click.Parameter, folder: Path | None) -> None:
    """Write the report of a result again and exit; the modules of the simulation are not imported."""
    if folder is None or context.resilient_parsing:
        return
    from topo_scheduler.simulation.cases.model import CaseError
    from topo_scheduler.simulation.results.writing import write_report

    try:
        click.echo(write_report(folder))
    except CaseError as error:
        raise CommandFailure(str(error), USAGE) from error
    context.exit()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--cluster", required=True, metavar="C", help="Cluster; see above.")
@click.option("--workload", metavar="W", help="Workload; see above. By default the pending pods of C.")
@click.option("--policy", default="topo", show_default=True, metavar="P[,P...]", help="Policies to compare; see above.")
@click.option(
    "--seeds", default="42", show_default=True, metavar="SEEDS", help="Seeds, one run each: 42, 42..51 or 1,5."
)
@click.option(
    "--fill",
    type=Number(0, 100, min_open=True),
    metavar="SHARE",
    help="Shuffle and resample until requested GPUs reach this share of the cluster; jobs never finish. By default"
    " jobs arrive and end at their times.",
)
@click.option(
    "--what-if",
    multiple=True,
    metavar="CHANGE[,...]",
    help="Run everything again with this change and show the difference; see above. Repeatable: one run each.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Write result.json, report.html and all placements."
)
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    metavar="DIR",
    is_eager=True,
    expose_value=False,
    callback=_write_report,
    help="Only write report.html again, from the result in DIR.",
)
@click.option(
    "--bind-latency",
    type=Number(0, 3600),
    default=0.0,
    metavar="SECONDS",
    help="Time from a decision until its pods run; 0 by default.",
)
@click.option(
    "--communication",
    type=Number(0, 1, max_open=True),
    default=0.3,
    show_default=True,
    metavar="SHARE",
    help="Share of all-reduce in a training step, for the estimated slowdown of gangs.",
)
@click.option(
    "--gpu-topology",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Links of the GPUs of each node: XML of NCCL or RCCL, the output of nvidia-smi topo -m, or the folder"
    " /sys/class/kfd/kfd/topology of AMD's driver. Shows which share of the bandwidth of an empty node pods get.",
)
@click.option(
    "--device-policy",
    default="ours,nvidia-best-effort,rocm,first-fit",
    show_default=True,
    metavar="D[,D...]",
    help="Choosers of GPUs on a node to compare, with --gpu-topology: also random.",
)
@click.option(
    "--mig-policy",
    metavar="M[,M...]",
    help="Choosers of MIG slots to compare: ours, first-fit, spread, packed, random. Shows which workloads only"
    " fragmentation keeps from their MIG instances.",
)
@click.option("--workers", type=click.IntRange(1, 1024), metavar="N", help="Run in N processes; needs Dask.")
@click.option("--dask", metavar="ADDRESS", help="Run on the Dask cluster with this scheduler: tcp://HOST:8786.")
@cluster_options
@config_option
def command(kubeconfig: str | None, context: str | None, **given: Any) -> None:
    """Schedule a workload on a cluster in virtual time, and compare policies.

    It runs the scheduling code of `run`. The same input and seed give the same result. All inputs and policies are in
    docs/reference/simulate-inputs.md and docs/reference/simulation.md.

    \b
    C:  live (read once, with --kubeconfig); leaf-spine:spines=8,leaves=16,nodes=16,gpus=8;
        a directory or file of kubectl get -o yaml; a recorded directory;
        openb nodes (CSV); a topograph model; the Lingjun table
    W:  live (its pending pods); YAML manifests;
        poisson:rate=120/h,jobs=1000,sizes=1:0.5|8:0.5,duration=lognormal:mean=2h,sigma=1.5;
        a recorded directory; openb pods (CSV); streams of Gavel and Muri
    P:  topo, topo:FILE (another configuration), blind-gang (gangs without topology),
        rack (a gang in one leaf, if any has room), and pod by pod: random, best-fit,
        least-allocated (kube-scheduler's default), most-allocated, dot-product, fgd
    CHANGE:
        add-leaf:4x8 (nodes x GPUs; @spine-2 below that one), drain:spine-1/leaf-3,
        job.yaml (arrives at the start); separated by commas: all at once
    """  # noqa: D301 - click reads the backspace
    from topo_scheduler.simulation.cases.model import LIVE, CaseError
    from topo_scheduler.simulation.cases.reading import pending_pods_spec, read_cluster

    try:
        options = _SimulateOptions(**given | {"workload": given["workload"] or pending_pods_spec(given["cluster"])})
        if options.workers and options.dask:
            raise CommandFailure("--workers and --dask: name one; a Dask cluster has workers of its own", USAGE)
        if options.bind_latency and options.fill is not None:
            raise CommandFailure("--bind-latency and --fill: no time passes in a fill; leave one out", USAGE)
        if options.mig_policy is not None and options.fill is not None:
            raise CommandFailure("--mig-policy and --fill: no instance ends in a fill; leave one out", USAGE)
        named = click.get_current_context().get_parameter_source("device_policy") is not ParameterSource.DEFAULT
        if named and options.gpu_topology is None:
            raise CommandFailure("--device-policy: name the links of a node too, by --gpu-topology FILE", USAGE)
        live = options.cluster == LIVE
        cluster = read_cluster(LIVE, kubeconfig=kubeconfig, context=context) if live else options.cluster
        with _exit_on_signals():
            lost_count = _simulate(options, _tasks(options, cluster))
    except CaseError as error:
        raise CommandFailure(str(error), USAGE) from error
    if lost_count:
        raise CommandFailure(
            f"{lost_count} {'run was' if lost_count == 1 else 'runs were'} lost; the figures cover all other runs"
        )


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Exit on SIGTERM and SIGHUP as on Ctrl-C, so that incomplete files are removed and workers end."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    # nohup ignores SIGHUP
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


MAX_REASONS: Final = 3
"""Maximum reasons that are shown of workloads that never ran, for each policy."""


@dataclass(frozen=True, slots=True)
class _SimulateOptions:
    """Values of the command line, by the names of its options."""

    cluster: str
    workload: str
    policy: str
    seeds: str
    fill: float | None
    what_if: tuple[str, ...]
    out: Path | None
    bind_latency: float
    communication: float
    gpu_topology: Path | None
    device_policy: str
    mig_policy: str | None
    workers: int | None
    dask: str | None
    config_path: Path | None


def _tasks(options: _SimulateOptions, cluster: "str | ClusterCase") -> "list[Task]":
    from topo_scheduler.api.config import ConfigError
    from topo_scheduler.runtime.config_files import read_configuration
    from topo_scheduler.simulation.cases.what_if import changes_of
    from topo_scheduler.simulation.policies.names import read_policies, seeds_of
    from topo_scheduler.simulation.slowdown import Assumed
    from topo_scheduler.simulation.tasks import Task, cases_of, check_files

    try:
        configuration = read_configuration(options.config_path)
    except ConfigError as error:
        raise CommandFailure(str(error), USAGE) from error
    seeds, policies = seeds_of(options.seeds), read_policies(options.policy)
    assumed = Assumed(communication=options.communication)
    scenarios = [("", ()), *((change, changes_of(change)) for change in options.what_if)]
    tasks = [
        Task(
            policy,
            seed,
            cluster,
            options.workload,
            options.fill,
            configuration,
            options.bind_latency,
            assumed,
            changes,
            name,
        )
        for name, changes in scenarios
        for policy in policies
        for seed in seeds
    ]
    check_files(tasks)
    for task in tasks[:: len(policies) * len(seeds)]:
        cases_of(task)  # so that an error in the last change is reported before hours are spent on the first
    return tasks


def _simulate(options: _SimulateOptions, tasks: "Sequence[Task]") -> int:
    """Run tasks, show and write their results; return the number of lost tasks."""
    from topo_scheduler.cli import render
    from topo_scheduler.simulation.devices.replay import read_device_policies, read_hardware
    from topo_scheduler.simulation.results.model import Lost
    from topo_scheduler.simulation.results.writing import check_folder, write_result
    from topo_scheduler.simulation.tasks import Done

    if options.out is not None:
        check_folder(options.out)
    hardware = None if options.gpu_topology is None else read_hardware(options.gpu_topology)
    device_policies = read_device_policies(options.device_policy)
    mig_table = None if options.mig_policy is None else _mig_table(options.mig_policy, tasks)
    outcomes = dict(_outcomes(options, tasks))
    done = [outcome for index in range(len(tasks)) if isinstance(outcome := outcomes[index], Done)]
    lost = [outcome for index in range(len(tasks)) if not isinstance(outcome := outcomes[index], Done)]
    runs = [outcome.run for outcome in done]
    if options.out is not None:
        files = {outcome.run.file: outcome.placements for outcome in done}
        lost_runs = [
            Lost(policy=task.policy.name, seed=task.seed, what_if=task.what_if or None, reason=reason)
            for task, reason in ((outcome.task, outcome.reason) for outcome in lost)
        ]
        write_result(options.out, runs, files, lost_runs)
    _show(runs)
    if hardware is not None:
        _show_devices(hardware, device_policies, done)
    if mig_table is not None:
        render.console().print(mig_table)
    for lost_task in lost:
        say(f"lost: {_name(lost_task.task)}, seed {lost_task.task.seed}: {lost_task.reason}", err=True)
    if options.out is not None:
        say(f"{options.out / 'result.json'}: {len(runs)} {'run' if len(runs) == 1 else 'runs'}")
        say(f"{options.out / 'report.html'}: what happened, in pictures")
    return len(lost)


def _outcomes(options: _SimulateOptions, tasks: "Sequence[Task]") -> "Iterator[tuple[int, Done | LostTask]]":
    """Yield the index and the outcome of each task: in order in this process, or as they end in several processes."""
    from topo_scheduler.simulation import tasks as running
    from topo_scheduler.simulation.sweep import sweep

    with progress(len(tasks)) as show:
        if options.workers or options.dask:
            show(0, f"0 of {len(tasks)} runs", 0, 1)
            for count, (index, outcome) in enumerate(
                sweep(tasks, workers=options.workers or 0, address=options.dask or "")
            ):
                show(count + 1, f"{count + 1} of {len(tasks)} runs", 0, 1)
                yield index, outcome
            return
        for number, task in enumerate(tasks):
            show(number, f"{_name(task)}, seed {task.seed}", 0, 1)
            arrived = 0

            def report_arrivals(count: int, total: int, number: int = number, task: "Task" = task) -> None:
                nonlocal arrived
                arrived += count
                show(number, f"{_name(task)}, seed {task.seed}", arrived, total)

            yield number, running.run(task, report_arrivals)


def _name(task: "Task") -> str:
    return f"{task.policy.name}, what if {task.what_if}" if task.what_if else task.policy.name


def _show_devices(hardware: "NodeHardware", policies: "Sequence[str]", done: "Sequence[Done]") -> None:
    """Show what share of the bandwidth of an empty node the pods of each run get, by chooser of GPUs."""
    from topo_scheduler.cli import render
    from topo_scheduler.simulation.devices.replay import replay
    from topo_scheduler.simulation.results.device_table import device_table
    from topo_scheduler.simulation.results.placements import decode

    rows = [(outcome.run, replay(hardware, decode(outcome.placements), policies, outcome.run.seed)) for outcome in done]
    render.console().print(device_table(rows, len(hardware.gpus)))


def _mig_table(names: str, tasks: "Sequence[Task]") -> "Table":
    """Return what the workloads of each case get of MIG slots, by chooser. Policies for nodes make no difference."""
    from topo_scheduler.simulation.devices.mig_replay import read_mig_policies, replay_mig
    from topo_scheduler.simulation.results.mig_table import mig_table
    from topo_scheduler.simulation.tasks import cases_of

    policies, rows = read_mig_policies(names), []
    for (change, seed), task in {(task.what_if, task.seed): task for task in tasks}.items():
        figures, foreign = replay_mig(*cases_of(task), policies, seed)
        rows.append((change, seed, figures))
        if foreign:
            say(f"warning: {foreign} workloads ask for MIG profiles that no GPU of the cluster has", err=True)
    return mig_table(rows)


def _show(runs: "Sequence[Run]") -> None:
    from topo_scheduler.cli import render
    from topo_scheduler.simulation.results.table import by_change, comparison, differences

    screen = render.console()
    groups = by_change(runs)
    baseline = groups.pop(None, [])
    if baseline:
        screen.print(*comparison(baseline, screen.width), sep="")
    for changed in groups.values():
        screen.print(*differences(baseline, changed, screen.width), sep="")
    shown_names: set[str] = set()
    for run in runs:
        name = f"{run.policy}, what if {run.what_if}" if run.what_if else run.policy
        if run.never_ran_reasons and name not in shown_names:  # the reasons are similar for all seeds
            shown_names.add(name)
            for line in run.never_ran_reasons[:MAX_REASONS]:
                say(f"{name}: never ran: {line}", err=True)
    for warning in dict.fromkeys(warning for run in runs for warning in run.warnings):
        say(f"warning: {warning}", err=True)
