"""From pods and their owners to what is asked for: GPUs, models, refusals and warnings."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import (
    EPOCH,
    NVIDIA,
    Owner,
    controlled_by,
    job_owner,
    make_job,
    make_pod,
    ours,
    owner,
    requires,
    term,
    timestamp,
    where,
)
from tests.scheduling.driver import Driver, fabric
from topo_scheduler.api.annotations import USERS_MAY_WRITE, WRITTEN
from topo_scheduler.api.objects import Container, Pod, PodSpec, Quantity, ResourceRequirements
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.api.reasons import Reason
from topo_scheduler.api.selectors import Affinity
from topo_scheduler.scheduling.intake.understand import Lineage, Understood, understand
from topo_scheduler.state.nodes.resources import GPU, ResourceTable


def table() -> ResourceTable:
    return ResourceTable(SchedulerConfig().gpu_resources)


def understood(pod: Pod, *owners: Owner) -> Understood:
    return understand(pod, Lineage(owners), table(), 0)


def warned(pending: Understood, reason: Reason) -> list[str]:
    return [message for why, message in pending.warnings if why is reason]


def below(kind: str, name: str, gpus: int = 0) -> Pod:
    return make_pod("p", owner=controlled_by(kind, name), gpus=gpus)


def test_only_a_controller_that_was_read_and_has_a_namespace_recreates_a_pod() -> None:
    pod = below("Job", "train")
    assert understood(pod, owner("Job", "train")).member.recreated
    assert not understood(pod).member.recreated
    assert not understood(pod, owner("Job", "another")).member.recreated
    assert not understood(pod, owner("Job", "train", namespace="")).member.recreated
    assert not understood(below("Pod", "train"), owner("Pod", "train")).member.recreated


# ---------------------------------------------------------------- how many GPUs


@pytest.mark.parametrize(
    ("owners", "kind", "gpus"),
    [
        ([job_owner(make_job("j", parallelism=4, annotations={"gpu-count": "16"}))], "Job", 4),
        ([job_owner(make_job("j", annotations={"gpu-count": "8"}))], "Job", 8),
        ([job_owner(make_job("j", parallelism=4)), owner("CronJob", "c", {"gpu-count": "16"})], "Job", 4),
        ([owner("ReplicaSet", "j", {"gpu-count": "2"})], "ReplicaSet", 2),
        ([owner("ReplicaSet", "j"), owner("Deployment", "d", {"gpu-count": "2"})], "ReplicaSet", 2),
        ([owner("StatefulSet", "j", {"gpu-count": "3"})], "StatefulSet", 3),
        ([owner("RayCluster", "j", {"gpu-count": "3"})], "RayCluster", 3),
    ],
)
def test_the_count_on_a_job_is_of_the_whole_and_elsewhere_of_each(owners: list[Owner], kind: str, gpus: int) -> None:
    pending = understood(below(kind, "j"), *owners)
    assert pending.member.problem == ""
    assert (pending.member.cls.gpus, pending.member.charged_gpus) == (gpus, gpus)


def test_the_count_on_a_pod_is_its_own() -> None:
    job = make_job("j", parallelism=4, annotations={"gpu-count": "16"})
    pod = make_pod("p", owner=controlled_by("Job", "j"), annotations={"gpu-count": "1"})
    assert understood(pod, job_owner(job)).member.cls.gpus == 1


def test_a_remainder_is_refused_and_says_what_would_do() -> None:
    pending = understood(below("Job", "j"), job_owner(make_job("j", parallelism=3, annotations={"gpu-count": "16"})))
    assert "16 GPUs do not divide by its parallelism of 3" in pending.member.problem
    assert "topology.scheduler/gpu-count on Job default/j: " in pending.member.problem
    assert "multiple of 3" in pending.member.problem


def test_limits_are_the_truth_and_a_mismatch_is_reported() -> None:
    job = job_owner(make_job("j", parallelism=4, annotations={"gpu-count": "16"}))
    pending = understood(below("Job", "j", gpus=8), job)
    assert (pending.member.cls.gpus, pending.member.charged_gpus, pending.member.problem) == (8, 0, "")
    (message,) = warned(pending, Reason.MISMATCH)
    assert "4 GPUs per pod" in message
    assert "limits for 8" in message
    agreeing = understood(below("Job", "j", gpus=4), job)
    assert agreeing.warnings == []


def test_gpus_without_limits_are_charged_and_warned_about() -> None:
    pending = understood(make_pod("p", annotations={"gpu-count": "2"}))
    assert pending.member.charged_gpus == 2
    (message,) = warned(pending, Reason.UNENFORCED)
    assert "no GPU limits" in message
    assert "set limits" in message


def mig(annotations: dict[str, str]) -> Pod:
    """A pod whose limits name a part of a GPU."""
    pod = make_pod("p", annotations=annotations)
    part: dict[str, Quantity] = {"nvidia.com/mig-1g.10gb": 1}
    pod.spec.containers[0].resources = ResourceRequirements(part, part)
    return pod


def test_gpus_beside_limits_on_parts_of_gpus_are_no_reason_to_set_further_limits() -> None:
    pending = understood(mig({"gpu-count": "2"}))
    assert pending.member.charged_gpus == 2
    (message,) = warned(pending, Reason.UNENFORCED)
    assert "nvidia.com/mig-1g.10gb" in message
    assert message.endswith("remove topology.scheduler/gpu-count")
    assert "nvidia.com/gpu" not in message


@pytest.mark.parametrize("pod", [make_pod("p", annotations={"gpu-count": "2"}), mig({"gpu-count": "2"})])
def test_a_pod_that_is_refused_is_not_said_to_have_gpus_reserved(pod: Pod) -> None:
    pending = understand(pod, Lineage(()), table(), 0, permitted=())
    assert pending.warnings == []
    assert "namespace default may not" in pending.member.problem
    assert ("set limits on" in pending.member.problem) == ("mig" not in pending.member.problem)
    bad = make_pod("p", annotations={"gpu-count": "2", "network-bandwidth": "fast"})
    pending = understood(bad)
    assert pending.member.problem
    assert pending.warnings == []


def test_no_gpus_asked_is_no_reason_to_warn() -> None:
    assert understood(make_pod("p", annotations={"gpu-count": "0"})).warnings == []
    assert understood(make_pod("p")).warnings == []


def test_gpus_charged_by_annotation_are_written_on_the_binding_and_read_back() -> None:
    d = Driver(fabric({"s/l": 1}))
    pod = make_pod("p", annotations={"gpu-count": "6"})
    d.run(pod)
    assert pod.metadata.annotations["topology.scheduler/charged-gpus"] == "6"
    other = make_pod("other", gpus=4)
    assert d.run(other) == {}, "two GPUs are left"
    again = Driver(fabric({"s/l": 1}))
    again.apply(pod)
    assert again.run(make_pod("third", gpus=4)) == {}


@pytest.mark.parametrize("text", ["²", "-1", "1e9", "9" * 5000, "9" * 12, "", "x"])
def test_what_this_scheduler_can_not_have_written_holds_nothing(text: str) -> None:
    names = ("charged-gpus", "reserved-bandwidth", "rank", "gang-id", "score", "address")
    pod = make_pod("p", node="s-l-1", annotations=dict.fromkeys(names, text))
    d = Driver(fabric({"s/l": 1}))
    d.apply(pod)
    d.step()
    entry = d.engine.world.ledger.get(pod.metadata.uid)
    assert entry is not None
    assert entry.amount(GPU) == 0
    assert d.engine.world.links.held(pod.metadata.uid) is None


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_a_pending_pod_may_not_carry_what_only_the_scheduler_writes(name: str) -> None:
    pending = understood(make_pod("p", annotations={name: "8"}))
    assert f"{name} is written by the scheduler itself; remove it" in pending.member.problem


def test_a_bound_pod_does_not_join_a_gang_of_another_namespace() -> None:
    d = Driver(fabric({"s1/l1": 1, "s2/l1": 2}))
    d.apply(make_pod("spy", namespace="evil", node="s1-l1-1", annotations={"gang-id": "default/g"}))
    gang = [make_pod(f"g-{n}", gpus=8, annotations={"gang-name": "g", "gang-size": "2"}) for n in range(2)]
    assert set(d.run(*gang).values()) == {"s2-l1-1", "s2-l1-2"}


# ---------------------------------------------------------------- refused, with a reason


def spec(**kwargs: object) -> PodSpec:
    return PodSpec(containers=[Container("c", ResourceRequirements({NVIDIA: 1}, {NVIDIA: 1}))], **kwargs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (make_pod("p", annotations={"gpu-count": "many"}), "annotation topology.scheduler/gpu-count on Pod default/p"),
        (make_pod("p", annotations={"network-bandwidth": "fast"}), "such as 100Gb"),
        (make_pod("p", cpu="lots"), "container main: cpu: 'lots' is not a quantity"),
        (make_pod("p", annotations={"gang-name": "g"}), "add topology.scheduler/gang-size"),
        (make_pod("p", annotations={"gang-size": "2"}), "add topology.scheduler/gang-name"),
    ],
)
def test_what_can_not_be_honoured_is_refused_once_with_the_reason(pod: Pod, words: str) -> None:
    d = Driver(fabric({"s/l": 1}))
    d.apply(pod)
    d.step()
    (message,) = d.told(pod, Reason.FAILED_SCHEDULING)
    assert message.startswith("Refused: ")
    assert words in message
    assert d.marked() == set(), "no node that is added would help"
    for _ in range(3):
        d.nodes(*fabric({"s/l": 1, f"s/l{d.now}": 1}))
        d.tell_again(pod)
        d.step(1)
    assert d.flight == {}
    assert len(d.told(pod)) == 1


def test_a_corrected_pod_is_placed() -> None:
    d = Driver(fabric({"s/l": 1}))
    pod = make_pod("p", annotations={"gpu-count": "many"})
    d.apply(pod)
    d.step()
    pod.metadata.annotations |= ours({"gpu-count": "1"})
    assert d.run(pod) == {"p": "s-l-1"}


def test_a_corrected_owner_frees_its_pods() -> None:
    d = Driver(fabric({"s/l": 2}))
    d.own(job_owner(make_job("j", parallelism=2, annotations={"gpu-count": "7"})))
    pods = [below("Job", "j") for _ in range(2)]
    d.apply(*pods)
    d.step()
    assert d.flight == {}
    d.own(job_owner(make_job("j", parallelism=2, annotations={"gpu-count": "8"})))
    d.step()
    assert len(d.flight) == 2


def test_one_bad_member_keeps_its_gang_back_and_is_named_to_the_others() -> None:
    d = Driver(fabric({"s/l": 2}))
    annotations = {"gang-name": "g", "gang-size": "2"}
    good = make_pod("good", annotations=annotations)
    bad = make_pod("bad", annotations=annotations | {"gpu-model": ","})
    d.apply(good, bad)
    d.step()
    assert d.flight == {}
    (message,) = d.told(good)
    assert "pod default/bad: annotation topology.scheduler/gpu-model" in message


def test_amounts_beyond_any_node_are_refused_not_added_up() -> None:
    many = [Container(f"c{n}", ResourceRequirements({"memory": "8Pi"})) for n in range(200)]
    pod = make_pod("p", spec=PodSpec(containers=many))
    d = Driver(fabric({"s/l": 1}))
    d.apply(pod)
    d.step()
    assert "more than any node can have" in d.told(pod)[0]


# ---------------------------------------------------------------- warned, and placed all the same


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({"annotations": {"gpu-cuont": "4"}}, "gpu-cuont"),
        (
            {"labels": {"topology.scheduler/gang-size": "2"}},
            "label topology.scheduler/gang-size on Pod default/p",
        ),
    ],
)
def test_unknown_annotations_and_those_written_as_labels_are_reported_once_and_harm_nothing(
    written: dict[str, dict[str, str]], words: str
) -> None:
    d = Driver(fabric({"s/l": 1}))
    pod = make_pod("p", **written)  # type: ignore[arg-type]
    d.apply(pod)
    d.tell_again(pod)
    d.settle()
    (message,) = d.told(pod, Reason.ANNOTATION)
    assert words in message
    assert pod.spec.node_name


def test_owners_that_can_not_be_read_are_reported() -> None:
    pending = understand(make_pod("p"), Lineage((), "Job default/j: forbidden"), table(), 0)
    assert warned(pending, Reason.OWNER) == ["Job default/j: forbidden"]


@pytest.mark.parametrize(
    ("wish", "words"), [("leaf-9", "no domain is called leaf-9"), ("l1", "l1 may mean s1/l1, s2/l1; write the path")]
)
def test_an_unknown_or_ambiguous_domain_is_reported_and_ignored(wish: str, words: str) -> None:
    d = Driver(fabric({"s1/l1": 1, "s2/l1": 1}))
    pod = make_pod("p", annotations={"preferred-domain": wish})
    d.run(pod)
    (message,) = d.told(pod, Reason.DOMAIN_UNKNOWN)
    assert words in message
    assert pod.spec.node_name


@pytest.mark.parametrize(
    ("wish", "node"), [("s2", "s2-l1-1"), ("s1/l2", "s1-l2-1"), ("l3", "s2-l3-1"), ("s2/l1", "s2-l1-1")]
)
def test_a_preferred_domain_is_found_by_name_or_path(wish: str, node: str) -> None:
    d = Driver(fabric({"s1/l1": 1, "s1/l2": 1, "s2/l1": 1, "s2/l3": 1}))
    pod = make_pod("p", annotations={"preferred-domain": wish})
    assert d.run(pod) == {"p": node}
    assert d.told(pod, Reason.DOMAIN_UNKNOWN) == []


def test_a_domain_that_appears_later_is_found() -> None:
    d = Driver(fabric({"s1/l1": 1}, gpus=1))
    pod = make_pod("p", gpus=8, annotations={"preferred-domain": "l2"})
    d.apply(pod)
    d.step()
    assert d.told(pod, Reason.DOMAIN_UNKNOWN)
    d.nodes(*fabric({"s1/l2": 1, "s1/l3": 1, "s0/l0": 1}))
    d.settle()
    assert pod.spec.node_name == "s1-l2-1"


# ---------------------------------------------------------------- nothing makes it fall over


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from([*USERS_MAY_WRITE, "topology.scheduler/typo"]), st.text(max_size=8), max_size=4),
    st.dictionaries(st.sampled_from(USERS_MAY_WRITE), st.text("0123456789GbtruefalseN", max_size=6), max_size=4),
    st.integers(0, 5),
    st.one_of(st.none(), st.integers(0, 5)),
    st.integers(0, 9),
    st.booleans(),
)
def test_whatever_is_written_ends_in_a_request_or_a_reason(
    own: dict[str, str], job: dict[str, str], parallelism: int, completions: int | None, succeeded: int, indexed: bool
) -> None:
    made = make_job(
        "j", parallelism=parallelism, completions=completions, succeeded=succeeded, indexed=indexed, annotations=job
    )
    pod = make_pod("p", owner=controlled_by("Job", "j"), annotations=own)
    pending = understood(pod, job_owner(made))
    assert pending.workload.size >= 1
    assert pending.workload.gang == (pending.workload.size > 1)
    assert pending.member.cls.gpus >= 0


def test_node_affinity_of_the_pod_holds() -> None:
    d = Driver(fabric({"s/l": 3}))
    affinity: Affinity = requires(term(fields=[where("metadata.name", "In", "s-l-2")]))
    assert d.run(make_pod("p", spec=spec(affinity=affinity))) == {"p": "s-l-2"}


def test_a_job_that_may_run_beyond_all_calendars_is_not_expected_to_end() -> None:
    """Kubernetes takes any number for the deadline of a Job; a moment that far off has no name."""
    job = make_job("j")
    job.spec.active_deadline_seconds = 2**63 - 1
    job.status.start_time = timestamp(0)
    pending = understood(below("Job", "j"), job_owner(job))
    assert (pending.member.expected_seconds, pending.member.ends_by) == (inf, inf)
    job.spec.active_deadline_seconds = 600
    pending = understood(below("Job", "j"), job_owner(job))
    assert (pending.member.expected_seconds, pending.member.ends_by) == (600, EPOCH + 600)
