"""Read a cluster and a workload from the specs on the command line.

A spec is ``live``, a generator such as ``leaf-spine:spines=8,leaves=16,nodes=16,gpus=8``, or a path. The content of the
file decides its format. Options follow a path: ``topo.csv@gpus=8,model=A100``.
"""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from topo_scheduler.api.fractions import WHOLE_GPU
from topo_scheduler.api.labels import GPU_RESOURCES, GPU_SHARING
from topo_scheduler.api.quantity import QuantityError
from topo_scheduler.simulation.cases import gavel, generated, lingjun, muri, openb, topograph
from topo_scheduler.simulation.cases.amounts import arrival_milli, capacity_milli, node_milli, pod_milli
from topo_scheduler.simulation.cases.claims import capacity_of_slices
from topo_scheduler.simulation.cases.directory import read_objects
from topo_scheduler.simulation.cases.documents import SUFFIXES, Document, read_documents, read_folder
from topo_scheduler.simulation.cases.model import LIVE, Arrival, CaseError, ClusterCase, WorkloadCase
from topo_scheduler.simulation.cases.object_factory import TracedJob, make_arrival, take_host
from topo_scheduler.simulation.cases.options import Options, number, one_of, split_generator, split_path, whole_number
from topo_scheduler.simulation.cases.recorded import is_record, read_record
from topo_scheduler.simulation.cases.tables import header_of, quoted, read_text, wrong
from topo_scheduler.simulation.cases.transforms import enlarge, first_arrivals, limit_gpus, repeat, with_load
from topo_scheduler.state.nodes.resources import ResourceTable

_MAX_OPTION: Final = 1_000_000
_CLUSTER_FORMS: Final = f"{LIVE}, {generated.LEAF_SPINE}:spines=2,leaves=4,nodes=8,gpus=8 or a path"
LONGEST_SECONDS: Final = 1000 * 365 * 86_400
"""Seconds, a thousand years. Later times and longer durations are rejected as typing errors."""


# ---------------------------------------------------------------- clusters


def read_cluster(spec: str, *, kubeconfig: str | None = None, context: str | None = None) -> ClusterCase:
    """Return the cluster that a spec describes.

    Args:
        spec: ``live``, a generator, or a path.
        kubeconfig: path for a live cluster; None means the default kubeconfig.
        context: context of the kubeconfig; None means the current one.

    Raises:
        CaseError: the spec can't be read, or the cluster has no node with GPUs.
    """
    cluster = _read_cluster(spec, kubeconfig, context)
    if not cluster.nodes:
        raise CaseError(f"{spec}: there are no nodes; add them, such as kubectl get nodes -o yaml > nodes.yaml")
    resources = ResourceTable(GPU_RESOURCES)
    for node in cluster.nodes:
        try:
            resources.amounts(node.status.allocatable or node.status.capacity)
        except QuantityError as error:
            raise CaseError(f"{spec}: node {node.metadata.name}: {error}; correct it, or leave the node out") from error
    if not capacity_milli(cluster.nodes) and not capacity_of_slices(cluster):
        raise CaseError(
            f"{spec}: none of {len(cluster.nodes)} nodes has GPUs: status.allocatable contains no"
            f" {' and no '.join(GPU_RESOURCES)}, and no ResourceSlice a GPU; is the device plugin or the driver running"
            " there?"
        )
    return cluster


def _read_cluster(spec: str, kubeconfig: str | None, context: str | None) -> ClusterCase:
    if spec == LIVE:
        from topo_scheduler.simulation.cases.live import read_live

        return read_live(kubeconfig, context)
    if spec.partition(":")[0] == generated.LEAF_SPINE:
        return generated.leaf_spine(_all_options(spec))
    if not spec:  # an unset shell variable; as a path it would mean the current directory
        raise CaseError(f"--cluster: it is empty; name {_CLUSTER_FORMS}")
    path, options = split_path(spec)
    _check_there(path, _CLUSTER_FORMS)
    if path.is_dir():
        options.finish()
        if is_record(path):
            return read_record(path)[0]
        return read_objects(path.name, read_folder(path))
    return _cluster_of_file(path, options)


def _all_options(spec: str) -> Options:
    """Return a generator's own parameters together with the options after ``@``."""
    _, generator_options, options = split_generator(spec)
    if duplicates := sorted(generator_options.keys() & options.values.keys()):
        raise CaseError(f"{spec}: {duplicates[0]} is given twice; keep one")
    return Options(spec, {**generator_options, **options.values})


def _cluster_of_file(path: Path, options: Options) -> ClusterCase:
    if path.suffix in SUFFIXES:
        documents = read_documents(path)
        if len(documents) == 1 and topograph.is_topograph(documents[0].obj):
            host = take_host(options)
            options.finish()
            return topograph.read_topograph(documents[0], host)
        options.finish()
        return read_objects(path.stem, documents)
    header = header_of(read_text(path))
    if set(header) & set(lingjun.COLUMNS):
        host = take_host(options)
        options.finish()
        return lingjun.read_lingjun(path, host)
    if set(header) >= set(openb.POD_COLUMNS) or set(header) >= set(muri.COLUMNS):
        raise wrong(path, 1, "this is a list of what arrives, not of nodes", "name it as --workload")
    if set(header) & set(openb.NODE_COLUMNS):
        options.finish()
        return openb.read_openb_nodes(path)
    known = f"{','.join(openb.NODE_COLUMNS)} or {','.join(lingjun.COLUMNS)}"
    raise wrong(path, 1, "this is no list of nodes", f"a CSV file of nodes begins with {known}; YAML ends in .yaml")


def _check_there(path: Path, forms: str) -> None:
    try:
        if path.exists():
            return
        base, separator, suffix = str(path).rpartition("@")
        malformed_option = bool(separator and base) and Path(base).exists()
    except (OSError, ValueError):
        malformed_option = False
    if malformed_option:
        raise CaseError(f"{path}: {quoted(suffix)} is no option; write name=value, separated by commas")
    raise wrong(path, 0, "there is no such file or directory", f"name {forms}")


# ---------------------------------------------------------------- workloads


@dataclass(frozen=True, slots=True)
class _Changes:
    """Changes that the options of a workload request, in the order in which they are applied."""

    jobs: int | None
    at_most: int | None
    gangs: int
    repeat: int
    load: float | None


def read_workload(spec: str, seed: int = 42, *, cluster: ClusterCase | None = None) -> WorkloadCase:
    """Return the workload that a spec describes.

    Args:
        spec: a generator or a path, followed by options.
        seed: seed of the random numbers.
        cluster: the cluster it will run on. Loads refer to its GPUs, and each workload must fit in it.

    Raises:
        CaseError: the spec can't be read, nothing arrives, or a workload is larger than the cluster.
    """
    collects = gc.isenabled()
    gc.disable()  # it would scan the growing set of objects repeatedly and free nothing
    try:
        workload, changes = _read_workload(spec, seed, cluster)
        return replace(_changed(spec, workload, changes, cluster), name=spec)
    finally:
        if collects:
            gc.enable()


def _changed(spec: str, workload: WorkloadCase, changes: _Changes, cluster: ClusterCase | None) -> WorkloadCase:
    if changes.jobs is not None:
        workload = first_arrivals(workload, changes.jobs)
    if changes.at_most is not None:
        workload = limit_gpus(workload, changes.at_most)
    if changes.gangs > 1:
        workload = enlarge(workload, cluster, changes.gangs)
    if not workload.arrivals:
        raise CaseError(f"{spec}: nothing arrives; it needs pods, or objects that make pods")
    if cluster is not None:
        check_sizes(workload, cluster, changes.gangs)
    if changes.repeat > 1:
        workload = repeat(workload, changes.repeat)
    if changes.load is not None:
        if cluster is None:
            raise CaseError(f"{spec}: load is a share of a cluster's GPUs; name a cluster too")
        workload = with_load(workload, cluster, changes.load)
    _check_arrivals(workload)
    return workload


def _take_changes(options: Options) -> _Changes:
    return _Changes(
        options.take("jobs", whole_number(1, _MAX_OPTION), None),
        options.take("at-most", whole_number(1, _MAX_OPTION), None),
        options.take("gangs", whole_number(1, 1000), 1),
        options.take("repeat", whole_number(1, 1000), 1),
        options.take("load", number(0.0, 1000.0), None),
    )


def pending_pods_spec(cluster: str) -> str:
    """Return the spec of the pending pods of a cluster, the default workload.

    Raises:
        CaseError: the source of the cluster contains no pending pods.
    """
    path = Path(cluster)
    if cluster == LIVE or path.is_dir() or path.suffix in SUFFIXES:
        return cluster
    if cluster.partition(":")[0] != generated.LEAF_SPINE:
        _check_there(split_path(cluster)[0], _CLUSTER_FORMS)
    raise CaseError(
        f"--workload: {cluster} contains no pending pods; name a workload. It may be left out for a live cluster, files"
        " of kubectl, and a record of the daemon"
    )


def _read_workload(spec: str, seed: int, cluster: ClusterCase | None) -> tuple[WorkloadCase, _Changes]:
    if spec.partition(":")[0] in generated.STREAMS:
        kind, generator_options, options = split_generator(spec)
        jobs = generated.stream(kind, Options(spec, generator_options), seed)
        changes = _take_changes(options)
        workload = _of_jobs(spec, jobs, options, cluster, changes)
        options.finish()
        return workload, changes
    path, options = split_path(spec)
    if str(path) == LIVE:
        if cluster is None or cluster.name != LIVE:
            raise CaseError(f"--workload: {LIVE} is what waits in a live cluster; it goes with --cluster {LIVE}")
        changes = _take_changes(options)
        options.finish()
        return WorkloadCase(LIVE, cluster.waiting), changes
    _check_there(path, f"{LIVE}, a path, or {generated.STREAMS[0]}:rate=120/h,duration=lognormal:mean=2h,sigma=1.5")
    changes = _take_changes(options)
    workload = _workload_of(path, options, cluster, changes)
    options.finish()
    return workload, changes


def _workload_of(path: Path, options: Options, cluster: ClusterCase | None, changes: _Changes) -> WorkloadCase:
    classes: Sequence[Any] = cluster.priority_classes if cluster else ()
    if path.is_dir():
        if is_record(path):
            return read_record(path)[1]
        if streams := sorted(path.glob("*.trace")):
            jobs = [job for stream in streams for job in gavel.read_gavel(stream)]
            return _of_jobs(path.name, jobs, options, cluster, changes)
        return _pods_of(path.name, read_folder(path), classes)
    if path.suffix in SUFFIXES:
        return _pods_of(path.stem, read_documents(path), classes)
    text = read_text(path)
    header = header_of(text)
    readers: list[tuple[bool, Callable[[Path], list[TracedJob]]]] = [
        ("\t" in text.partition("\n")[0] or path.suffix == ".trace", gavel.read_gavel),
        (bool({"job_id", "submit_time", "num_gpu"} & set(header)) and "gpu_milli" not in header, muri.read_muri),
    ]
    for fits, read in readers:
        if fits:
            return _of_jobs(path.stem, read(path), options, cluster, changes)
    if set(header) >= set(openb.NODE_COLUMNS) or set(header) >= set(lingjun.COLUMNS):
        raise wrong(path, 1, "this is a list of nodes, not of what arrives", "name it as --cluster")
    if set(header) & set(openb.POD_COLUMNS):
        return openb.read_openb_pods(path)
    known = f"{','.join(openb.POD_COLUMNS)} or {','.join(muri.COLUMNS)}"
    remedy = f"a CSV file of pods or jobs begins with {known}; a stream of Gavel has 7 fields between tabs"
    raise wrong(path, 1, "this is no list of pods or jobs", remedy)


def _pods_of(name: str, documents: Sequence[Document], classes: Sequence[Any]) -> WorkloadCase:
    # Importing the embedded cluster, which expands manifests into pods, takes long; traces do not need it.
    from topo_scheduler.simulation.cases.manifests import read_manifests

    return read_manifests(name, documents, classes)


def _of_jobs(
    name: str, jobs: list[TracedJob], options: Options, cluster: ClusterCase | None, changes: _Changes
) -> WorkloadCase:
    """Return traced jobs as pods and Jobs, in order of arrival; the first arrives at 0 s.

    The caller applies ``changes`` afterwards. Here they decide which jobs are checked for size before pods are made.
    """
    largest = max((node_milli(node) // WHOLE_GPU for node in cluster.nodes), default=0) if cluster else 0
    node_gpus = options.take("node-gpus", whole_number(1, 64), max(1, largest or 8))
    annotate_durations = options.take("durations", one_of("annotated", "unknown"), "unknown") == "annotated"
    ignore_priorities = options.take("priorities", one_of("kept", "ignored"), "kept") == "ignored"
    first_arrival = min((job.at for job in jobs), default=0.0)
    arrivals = []
    capacity = capacity_milli(cluster.nodes) if cluster else None
    for job in sorted(jobs, key=lambda job: job.at)[: changes.jobs]:
        if capacity is not None and job.gpus <= (changes.at_most or job.gpus):
            _check_total(job, WHOLE_GPU * job.gpus * changes.gangs, capacity, changes.gangs)
        shifted = replace(job, at=round(job.at - first_arrival, 3), priority=0 if ignore_priorities else job.priority)
        arrivals.append(make_arrival(shifted, node_gpus, annotate_duration=annotate_durations))
    return WorkloadCase(name, tuple(arrivals))


def _check_arrivals(workload: WorkloadCase) -> None:
    """Check that pod uids are unique, and that no time exceeds `LONGEST_SECONDS`."""
    arrival_by_pod_uid: dict[str, Arrival] = {}
    for arrival in workload.arrivals:
        source = arrival.source or workload.name
        for verb, seconds in (("arrives", arrival.at), ("runs for", arrival.seconds or 0.0)):
            if not seconds <= LONGEST_SECONDS:
                problem = (
                    f"{arrival.name} {verb} {seconds:.10g} seconds{' after the start' if verb == 'arrives' else ''}"
                )
                raise CaseError(
                    f"{source}: {problem}, more than a thousand years; correct its times, or raise the load"
                )
        for pod in arrival.pods:
            if (other := arrival_by_pod_uid.setdefault(pod.metadata.uid, arrival)) is not arrival:
                problem = f"a pod of {arrival.name} is called {pod.metadata.name}, as one of {other.name}"
                raise CaseError(f"{source}: {problem} ({other.source or workload.name}); rename one of the two")


# ---------------------------------------------------------------- do they fit together?


def check_sizes(workload: WorkloadCase, cluster: ClusterCase, gangs: int = 1) -> None:
    """Check that the empty cluster has enough GPUs for each workload.

    Args:
        workload: the workload to check.
        cluster: the cluster it will run on.
        gangs: factor by which GPU requests were multiplied; limits in messages are divided by it.

    Raises:
        CaseError: names the first workload that does not fit, and the remedy.
    """
    of_slices = capacity_of_slices(cluster)  # a DeviceClass may back the resource that pods request
    capacity = capacity_milli(cluster.nodes) + sum(of_slices.values())
    largest = max((*map(node_milli, cluster.nodes), *of_slices.values()))
    has_shared_gpus = any(
        node.metadata.labels.get(GPU_SHARING) == "true" and node_milli(node) for node in cluster.nodes
    )
    for arrival in workload.arrivals:
        requested_milli = arrival_milli(arrival)
        largest_pod = max(pod_milli(pod) for pod in arrival.pods)
        _check_total(arrival, requested_milli, capacity, gangs)
        if largest_pod > largest:
            problem = f"has a pod of {largest_pod // WHOLE_GPU} GPUs, and no node more than {largest // WHOLE_GPU}"
            raise _too_large(arrival, problem, (requested_milli // WHOLE_GPU - 1) // gangs)
        if largest_pod % WHOLE_GPU and not has_shared_gpus:
            raise CaseError(
                f"{arrival.source}: {arrival.name} asks for a share of a GPU, and no node shares its GPUs; label nodes"
                f" {GPU_SHARING}=true, or behind a generator, a topograph model or the Lingjun table write"
                " @sharing=true"
            )


def _check_total(workload: Arrival | TracedJob, requested: int, capacity: int, gangs: int) -> None:
    """Raise `CaseError` if a workload requests more than the capacity; both in thousandths of GPUs."""
    if requested > capacity:
        problem = f"asks for {requested / WHOLE_GPU:.10g} GPUs, and the cluster has {capacity // WHOLE_GPU}"
        raise _too_large(workload, problem, capacity // WHOLE_GPU // gangs)


def _too_large(workload: Arrival | TracedJob, problem: str, fits: int) -> CaseError:
    """Return the error for a workload that does not fit; ``fits`` is the limit to name for ``at-most``, in GPUs."""
    alternative = f", or leave such out with @at-most={fits}" if fits else ""
    return CaseError(f"{workload.source}: {workload.name} {problem}; give it a larger cluster{alternative}")
