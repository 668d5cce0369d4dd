"""How long pods run is a claim of their namespace, by annotation and by the deadline of their Job.

Only the deadline in their own spec ends pods whatever users do.
"""

import pytest

from tests.helpers import controlled_by, job_owner, make_job, make_pod, timestamp
from tests.scheduling.driver import Driver, fabric, gang
from tests.scheduling.running_pods import run_pod_until
from topo_scheduler.api.objects import Pod
from topo_scheduler.recording.checkpoint import dump, load
from topo_scheduler.scheduling.instructions import BindOutcome

EXPECTED_DURATION = "topology.scheduler/expected-duration"

ALLOWED = {"short": "s1-l1-2"}


@pytest.fixture
def d() -> Driver:
    """A leaf of two nodes of which one is free, reserved for a gang; the other is free after an hour."""
    d = Driver(fabric({"s1/l1": 2}))
    run_pod_until(d, "a", "s1-l1-1", ends=3600)
    d.apply(*gang(2))
    d.step()
    d.step(31)
    return d


def job_pod(d: Driver, name: str, seconds: int, gpus: int = 8, started: int | None = None, says: str = "") -> Pod:
    """Return a pod of a Job with a deadline."""
    job = make_job(name)
    job.spec.active_deadline_seconds = seconds
    job.status.start_time = None if started is None else timestamp(started)
    d.own(job_owner(job))
    annotations = {"expected-duration": says} if says else {}
    return make_pod(
        name, namespace="evil", gpus=gpus, cpu="1", owner=controlled_by("Job", name), annotations=annotations
    )


def start(d: Driver, *pods: Pod) -> None:
    """The kubelet reports that pods started."""
    for pod in pods:
        pod.status.phase, pod.status.start_time = "Running", timestamp(d.now)
    d.apply(*pods)


def liars(d: Driver) -> list[Pod]:
    """Bind pods of Jobs with a deadline of five minutes."""
    pods = [job_pod(d, f"liar-{number}", 300, gpus=0) for number in range(3)]
    assert len(d.run(*pods)) == 3
    return pods


def let_in(d: Driver) -> dict[str, str]:
    """Return where a pod runs whose Job has a deadline before the reserved node is needed."""
    return d.run(job_pod(d, "short", 600))


def test_a_job_that_ends_in_time_uses_reserved_nodes(d: Driver) -> None:
    assert let_in(d) == ALLOWED


def test_pods_that_outlive_the_deadline_of_their_job_cost_their_namespace_its_benefit(d: Driver) -> None:
    pods = liars(d)
    start(d, *pods)
    d.settle(400)
    job = job_pod(d, "said", 600)
    job.metadata.annotations[EXPECTED_DURATION] = "10m"
    assert d.run(job) == {}
    assert let_in(d) == {}
    began = job_pod(d, "began", 600, started=int(d.now))
    assert d.run(began) == {}, "a Job that started is believed no more"
    own = make_pod("short", namespace="evil", gpus=8)
    own.spec.active_deadline_seconds = 600
    assert d.run(own) == ALLOWED, "its kubelet ends it"


def test_pods_of_another_namespace_keep_the_benefit(d: Driver) -> None:
    start(d, *liars(d))
    d.settle(400)
    honest = job_pod(d, "short", 600)
    honest.metadata.namespace = "default"
    assert d.run(honest) == ALLOWED


def test_pods_are_held_to_what_they_were_bound_with(d: Driver) -> None:
    pods = liars(d)
    for pod, edit in zip(pods, ("", "1h", "soon"), strict=True):
        assert pod.metadata.annotations.pop(EXPECTED_DURATION) == "300s"
        pod.metadata.owner_references = [controlled_by("DaemonSet", "not-any-more")]
        pod.metadata.annotations |= {EXPECTED_DURATION: edit} if edit else {}
    d.apply(*pods)
    start(d, *pods)
    d.settle(400)
    assert let_in(d) == {}


def test_pods_are_held_to_it_when_what_they_are_charged_can_not_be_read(d: Driver) -> None:
    pods = liars(d)
    for pod in pods:
        pod.metadata.annotations.pop(EXPECTED_DURATION)
        pod.spec.containers[0].resources.requests["memory"] = "many"
    start(d, *pods)
    d.settle(400)
    assert let_in(d) == {}


def test_what_pods_were_bound_with_is_known_after_a_restart(d: Driver) -> None:
    pods = liars(d)
    start(d, *pods)
    again = Driver(fabric({"s1/l1": 2}))
    again.now = d.now
    run_pod_until(again, "a", "s1-l1-1", ends=3600)
    again.apply(*pods, *gang(2))
    again.step()
    assert again.engine.world.promises.believed("evil")
    again.step(400)
    assert let_in(again) == {}


@pytest.mark.unrecorded
def test_what_pods_were_bound_with_is_in_a_checkpoint(d: Driver) -> None:
    pods = liars(d)
    for pod in pods:
        pod.metadata.annotations.pop(EXPECTED_DURATION)
    d.apply(*pods)
    resolve, extensions = d.engine.arrivals._resolve, d.engine.world.around.extensions
    d.engine = load(dump(d.engine, resolve, ""), resolve, extensions)
    start(d, *pods)
    d.settle(400)
    assert let_in(d) == {}


def test_an_overrun_that_ends_between_two_steps_is_not_kept(d: Driver) -> None:
    pods = liars(d)
    start(d, *pods)
    d.now += 3000
    for pod in pods:
        d.finish(pod)
    d.settle()
    assert not d.engine.world.promises.believed("evil")


@pytest.mark.parametrize(
    ("started", "says", "written"),
    [(None, "", "3000s"), (-600, "", "2369s"), (None, "2h", "3000s"), (None, "10m", "10m"), (-90_000, "", "1s")],
)
def test_the_rest_of_the_deadline_of_its_job_is_written_on_a_pod(
    d: Driver, started: int | None, says: str, written: str
) -> None:
    pod = job_pod(d, "p", 3000, started=started, says=says)
    d.run(pod)
    assert pod.metadata.annotations[EXPECTED_DURATION] == written


def test_nothing_is_written_where_its_own_deadline_ends_a_pod_before_its_job_ends(d: Driver) -> None:
    pod = job_pod(d, "p", 3000)
    pod.spec.active_deadline_seconds = 600
    d.run(pod)
    assert pod.spec.node_name
    assert EXPECTED_DURATION not in pod.metadata.annotations
    assert pod.metadata.uid not in d.engine.world.promises


def test_a_pod_whose_bind_failed_claims_nothing(d: Driver) -> None:
    pod = job_pod(d, "p", 600)
    d.apply(pod)
    d.step()
    (uid,) = d.flight
    assert uid in d.engine.world.promises
    d.answer(uid, BindOutcome.REJECTED)
    assert uid not in d.engine.world.promises


@pytest.mark.parametrize("of_job", [False, True])
@pytest.mark.parametrize(("grace", "fits"), [(30, True), (600, True), (10_000, False), (2**62, False)])
def test_a_deadline_ends_a_pod_after_its_grace_period(d: Driver, of_job: bool, grace: int, fits: bool) -> None:
    pod = job_pod(d, "p", 600 if of_job else 10**9)
    pod.spec.active_deadline_seconds = None if of_job else 600
    pod.spec.termination_grace_period_seconds = grace
    assert bool(d.run(pod)) == fits
