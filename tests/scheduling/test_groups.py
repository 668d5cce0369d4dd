"""Which gang a pod belongs to, whatever made it: the order of the rules, and the warnings where two disagree."""

from collections.abc import Mapping, Sequence

import pytest

from tests.helpers import Owner, controlled_by, in_group, job_owner, make_group, make_job, make_pod, owner
from topo_scheduler.api.groups import GroupApi
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.intake.understand import Lineage, Understood, understand
from topo_scheduler.state.nodes.resources import ResourceTable
from topo_scheduler.state.pods.pod_groups import Disruption, GroupKey, Groups, PodGroup, Serving
from topo_scheduler.state.pods.workloads import Workload

LEAF = "topology.scheduler/leaf"
KUEUE = {"kueue.x-k8s.io/pod-group-name": "kq"}
KUEUE_COUNT = {"kueue.x-k8s.io/pod-group-total-count": "5"}
KOORDINATOR = {"gang.scheduling.koordinator.sh/name": "ko", "gang.scheduling.koordinator.sh/min-available": "6"}
SIGS_PODS = {"pod-group.scheduling.sigs.k8s.io/name": "si", "pod-group.scheduling.sigs.k8s.io/min-available": "7"}
LWS = {"leaderworkerset.sigs.k8s.io/name": "lws", "leaderworkerset.sigs.k8s.io/group-index": "2"}
LWS_SIZE = {"leaderworkerset.sigs.k8s.io/size": "8"}
VOLCANO_MIN = {"scheduling.volcano.sh/group-min-member": "9"}


def served(*groups: PodGroup, apis: Sequence[GroupApi] = tuple(GroupApi)) -> Groups:
    registry = Groups({LEAF: "leaf", "topology.scheduler/spine": "spine"})
    for api in apis:
        registry.serve(api, Serving.LISTED, 0)
    for group in groups:
        registry.put(group)
    return registry


def understood(pod: Pod, groups: Groups, *owners: Owner) -> Understood:
    return understand(pod, Lineage(owners), ResourceTable(SchedulerConfig().gpu_resources), 0, groups)


def short(workload: Workload) -> tuple[str, int]:
    return (workload.name, workload.size) if workload.gang else ("", 1)


ALL = served(
    make_group("native", 3),
    make_group("plugins", 4, api=GroupApi.PLUGINS),
    make_group("sigs", 4, api=GroupApi.SIGS),
    make_group("volcano", 4, api=GroupApi.VOLCANO),
)
JOB = job_owner(make_job("job", parallelism=10, completions=10, indexed=True))

RULES: list[tuple[str, Mapping[str, str], Mapping[str, str], tuple[GroupApi, str] | None, tuple[str, int]]] = [
    ("our name", {"gang-name": "crew", "gang-size": "2"}, {}, None, ("crew", 2)),
    ("our size", {"gang-size": "2"}, {}, None, ("job", 2)),
    ("native", {}, {}, (GroupApi.NATIVE, "native"), ("native", 3)),
    ("plugins", {}, {}, (GroupApi.PLUGINS, "plugins"), ("plugins", 4)),
    ("sigs", {}, {}, (GroupApi.SIGS, "sigs"), ("sigs", 4)),
    ("volcano", {}, {}, (GroupApi.VOLCANO, "volcano"), ("volcano", 4)),
    ("kueue", KUEUE_COUNT, KUEUE, None, ("kq", 5)),
    ("koordinator", KOORDINATOR, {}, None, ("ko", 6)),
    ("sigs on pods", {}, SIGS_PODS, None, ("si", 7)),
    ("lws", LWS_SIZE, LWS, None, ("lws-2", 8)),
    ("job", {}, {}, None, ("job", 10)),
]
"""One of each rule, the highest in precedence first: annotations, labels, a PodGroup; and the gang it makes."""


def pod_with(*rules: int) -> Pod:
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    pod = make_pod("p", owner=controlled_by("Job", "job"))
    for number in rules:
        _, more_annotations, more_labels, group, _ = RULES[number]
        annotations |= more_annotations
        labels |= more_labels
        if group is not None:
            in_group(pod, group[1], group[0])
    plain = make_pod("p", annotations=annotations, labels=labels)
    pod.metadata.annotations |= plain.metadata.annotations
    pod.metadata.labels |= plain.metadata.labels
    return pod


@pytest.mark.parametrize("number", range(len(RULES)), ids=[rule[0] for rule in RULES])
def test_each_rule_alone(number: int) -> None:
    reading = understood(pod_with(number), ALL, JOB)
    assert short(reading.workload) == RULES[number][-1]
    assert not reading.member.problem
    assert not reading.warnings, "the Job rule holds where nothing else is said: it contradicts nothing"


PAIRS = [(high, low) for high in range(len(RULES) - 1) for low in range(high + 1, len(RULES) - 1)]


@pytest.mark.parametrize(("high", "low"), PAIRS, ids=[f"{RULES[a][0]} over {RULES[b][0]}" for a, b in PAIRS])
def test_of_two_the_higher_holds_and_a_contradiction_is_a_warning(high: int, low: int) -> None:
    reading = understood(pod_with(high, low), ALL, JOB)
    if (high, low) == (0, 1):
        assert short(reading.workload) == ("crew", 2), "one annotation each of one pair"
        return
    assert short(reading.workload) == RULES[high][-1]
    warnings = [text for reason, text in reading.warnings if reason is Reason.GROUP_CONFLICT]
    assert len(warnings) == 1 == len(reading.warnings), reading.warnings
    assert "says otherwise and is not followed" in warnings[0]


@pytest.mark.parametrize("number", range(2, len(RULES) - 1), ids=[rule[0] for rule in RULES[2:-1]])
def test_gang_false_is_above_all_and_contradicts_what_names_a_group(number: int) -> None:
    pod = pod_with(number)
    pod.metadata.annotations["topology.scheduler/gang"] = "false"
    reading = understood(pod, ALL, JOB)
    assert short(reading.workload) == ("", 1)
    assert bool(reading.warnings) == (RULES[number][0] != "lws"), "labels of a controller are no user's wish"


def test_groups_and_annotations_that_agree_cause_no_warning() -> None:
    pod = in_group(pod_with(9), "native")
    groups = served(make_group("native", 8))
    reading = understood(pod, groups, JOB)
    assert short(reading.workload) == ("native", 8)
    assert not reading.warnings, "a controller makes a PodGroup of the size it promises"
    pod = in_group(make_pod("p", annotations={"gang-name": "native", "gang-size": "8"}), "native")
    assert not understood(pod, groups).warnings


# ---------------------------------------------------------------- PodGroups


def test_what_a_native_group_says() -> None:
    group = make_group("g", 4, priority=7, key=LEAF, spec={"disruptionMode": "PodGroup"})
    workload = understood(in_group(make_pod("p", priority=1), "g"), served(group)).workload
    assert (workload.gang, workload.size, workload.level, workload.disruption_mode) == (
        True,
        4,
        "leaf",
        Disruption.GANG,
    )
    assert workload.disruption_mode == "gang"
    assert workload.id == "default/podgroups.scheduling.k8s.io/g"
    workload.members["p"] = understood(make_pod("p", priority=1), served()).member
    assert workload.priority == 7


@pytest.mark.parametrize(
    ("mode", "read"),
    [("Pod", "pod"), ("PodGroup", "gang"), (None, "pod"), ({"all": {}}, "gang"), ({"single": {}}, "pod")],
)
def test_disruption_modes(mode: object, read: str) -> None:
    assert make_group("g", spec={"disruptionMode": mode}).disruption_mode == read


def test_a_basic_group_is_no_gang() -> None:
    group = make_group("g", spec={"schedulingPolicy": {"basic": {}}})
    reading = understood(in_group(make_pod("p"), "g"), served(group))
    assert not reading.workload.gang
    assert not reading.member.problem
    assert not reading.workload.awaits


def test_a_group_of_one_is_a_single_pod_unless_the_others_must_be_near() -> None:
    alone = understood(in_group(make_pod("p"), "g"), served(make_group("g", 1))).workload
    assert not alone.gang
    near = understood(in_group(make_pod("p"), "g"), served(make_group("g", 1, key=LEAF))).workload
    assert (near.gang, near.size, near.level) == (True, 1, "leaf")


@pytest.mark.parametrize("api", list(GroupApi))
def test_a_group_that_does_not_exist_is_waited_for(api: GroupApi) -> None:
    reading = understood(in_group(make_pod("p"), "g", api), served())
    assert reading.workload.awaits == f"PodGroup default/g of {api} does not exist"
    assert not reading.member.problem


@pytest.mark.parametrize("api", list(GroupApi))
def test_one_of_another_namespace_is_never_joined(api: GroupApi) -> None:
    theirs = make_group("g", 2, api=api, namespace="theirs")
    assert understood(in_group(make_pod("p"), "g", api), served(theirs)).workload.awaits
    crossing = understood(in_group(make_pod("p"), "theirs/g", api), served(theirs))
    assert "a pod can only join one of its own namespace" in crossing.member.problem
    assert not crossing.workload.gang


@pytest.mark.parametrize("api", [GroupApi.PLUGINS, GroupApi.SIGS, GroupApi.VOLCANO])
def test_an_api_that_is_not_served_is_ignored_with_a_warning_unless_another_rule_applies(api: GroupApi) -> None:
    none = served(apis=())
    reading = understood(in_group(make_pod("p"), "g", api), none)
    assert not reading.workload.gang
    assert [reason for reason, _ in reading.warnings] == [Reason.GROUP_IGNORED]
    assert "does not serve" in reading.warnings[0][1]
    pod = in_group(make_pod("p", owner=controlled_by("Job", "job")), "g", api)
    reading = understood(pod, none, JOB)
    assert short(reading.workload) == ("job", 10), "the next rule applies"
    assert not reading.warnings


@pytest.mark.parametrize("api", [GroupApi.PLUGINS, GroupApi.SIGS, GroupApi.VOLCANO])
def test_nothing_is_evicted_for_a_pod_that_names_a_group_of_an_api_that_is_not_served(api: GroupApi) -> None:
    none = served(apis=())
    alone = understood(in_group(make_pod("p"), "g", api), none)
    assert "does not serve; install its CustomResourceDefinition, or remove" in alone.member.doubt
    assert alone.warnings[0][1].endswith("the pod is placed for itself, and no pod is evicted for it")
    of_job = in_group(make_pod("p", owner=controlled_by("Job", "job")), "g", api)
    assert understood(of_job, none, JOB).member.doubt, "the group may have been larger than the Job"
    ours = in_group(make_pod("p", annotations={"gang-name": "a", "gang-size": "3"}), "g", api)
    assert not understood(ours, none).member.doubt
    single = in_group(make_pod("p", annotations={"gang": "false"}), "g", api)
    assert not understood(single, none).member.doubt


@pytest.mark.parametrize("api", [GroupApi.PLUGINS, GroupApi.SIGS, GroupApi.VOLCANO])
def test_a_group_of_an_api_that_was_served_is_waited_for(api: GroupApi) -> None:
    group = make_group("g", 3, api=api)
    groups = served(group)
    groups.drop(group.key)
    groups.serve(api, Serving.ABSENT, 0)
    pod = in_group(make_pod("p", owner=controlled_by("Job", "job")), "g", api)
    workload = understood(pod, groups, JOB).workload
    assert workload.id == group.key.id and workload.gang
    assert "does not serve any more; install its CustomResourceDefinition again, or remove" in workload.awaits
    sized = in_group(make_pod("p", annotations=VOLCANO_MIN), "g", api)
    if api is GroupApi.VOLCANO:
        assert short(understood(sized, groups).workload) == ("g", 9), "its size stands on the pod"


def test_a_group_is_waited_for_where_pods_of_it_are_bound() -> None:
    """As after a restart: their annotations say so."""
    pod = in_group(make_pod("p"), "g", GroupApi.PLUGINS)
    table = ResourceTable(SchedulerConfig().gpu_resources)
    ids: list[str] = []

    def bound(id_: str) -> bool:
        ids.append(id_)
        return True

    assert understand(pod, Lineage(), table, 0, served(apis=()), bound=bound).workload.awaits
    assert ids == [f"default/podgroups.{GroupApi.PLUGINS}/g"]


def test_volcano_without_its_api_has_the_size_on_the_pod() -> None:
    pod = in_group(make_pod("p", annotations=VOLCANO_MIN), "g", GroupApi.VOLCANO)
    assert short(understood(pod, served(apis=())).workload) == ("g", 9)


def test_a_native_group_of_an_api_that_is_not_served_is_refused() -> None:
    reading = understood(in_group(make_pod("p"), "g"), served(apis=()))
    assert "spec.schedulingGroup.podGroupName names PodGroup default/g" in reading.member.problem
    assert "does not serve" in reading.member.problem


def test_an_answer_older_than_the_pod_is_not_believed() -> None:
    groups = served(apis=())
    groups.serve(GroupApi.VOLCANO, Serving.ABSENT, 5)
    pod = in_group(make_pod("p"), "g", GroupApi.VOLCANO)
    table = ResourceTable(SchedulerConfig().gpu_resources)
    assert not understand(pod, Lineage(), table, 4, groups).workload.awaits
    assert not groups.take_wondered()
    assert understand(pod, Lineage(), table, 6, groups).workload.awaits
    assert groups.take_wondered()
    assert not groups.take_wondered()


# ---------------------------------------------------------------- controllers


def test_a_jobset_is_a_gang_only_when_it_says_how_large() -> None:
    labels = {"jobset.sigs.k8s.io/jobset-name": "set", "jobset.sigs.k8s.io/job-global-index": "1"}
    pod = make_pod("p", owner=controlled_by("Job", "job"), labels=labels)
    assert short(understood(pod, ALL, JOB, owner("JobSet", "set")).workload) == ("job", 10)
    whole = understood(pod, ALL, JOB, owner("JobSet", "set", {"gang-size": "20"})).workload
    assert short(whole) == ("set", 20)
    assert whole.id == "default/jobsets.jobset.x-k8s.io/set"
    on_job = job_owner(make_job("job", parallelism=10, annotations={"gang-size": "5"}))
    assert short(understood(pod, ALL, on_job, owner("JobSet", "set")).workload) == ("job", 5)


@pytest.mark.parametrize("kind", ["PyTorchJob", "RayCluster"])
def test_controllers_that_promise_no_size_make_no_gang_unless_it_is_written(kind: str) -> None:
    labels = {"training.kubeflow.org/job-name": "j", "ray.io/cluster": "j"}
    pod = make_pod("p", owner=controlled_by(kind, "j"), labels=labels)
    assert not understood(pod, ALL, owner(kind, "j")).workload.gang
    assert short(understood(pod, ALL, owner(kind, "j", {"gang-size": "4"})).workload) == ("j", 4)


# ---------------------------------------------------------------- what makes no sense


@pytest.mark.parametrize(
    ("group", "named"),
    [
        (make_group("g", 0), "spec.schedulingPolicy.gang.minCount: 0 is not a whole number from 1"),
        (
            make_group("g", spec={"schedulingPolicy": {"gang": {"minCount": "4"}}}),
            "minCount: '4' is not a whole number",
        ),
        (make_group("g", spec={"schedulingPolicy": {"gang": {"minCount": True}}}), "minCount: True is not"),
        (make_group("g", spec={"schedulingPolicy": {"gang": 4}}), "minCount: None is not"),
        (make_group("g", spec={"schedulingPolicy": 4}), "spec.schedulingPolicy: 4 is not an object"),
        (make_group("g", spec={"priority": "high"}), "spec.priority: 'high' is not a whole number"),
        (
            make_group("g", 2, key="kubernetes.io/hostname"),
            "topology key kubernetes.io/hostname, which is the key of no level",
        ),
        (make_group("g", spec={"schedulingConstraints": {"topology": [4]}}), "topology[].key: None is not a string"),
        (make_group("g", spec={"schedulingConstraints": {"topology": 4}}), "topology: 4 is not a list"),
        (
            make_group("g", spec={"schedulingConstraints": {"topology": [{"key": "a"}, {"key": "b"}]}}),
            "one key only",
        ),
        (
            make_group("g", key=LEAF, spec={"schedulingPolicy": {"basic": {}}}),
            "spec.schedulingConstraints: this scheduler understands it for the policy gang only",
        ),
    ],
)
def test_fields_that_make_no_sense_are_refused_by_name(group: PodGroup, named: str) -> None:
    reading = understood(in_group(make_pod("p"), "g"), served(group))
    assert "PodGroup default/g of scheduling.k8s.io" in reading.member.problem
    assert named in reading.member.problem


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"minMember": -1}, "spec.minMember: -1 is not"),
        ({"minMember": 1 << 40}, "spec.minMember: 1099511627776 is not a whole number from 0 to 100000"),
        ({"networkTopology": {"mode": "firm"}}, "spec.networkTopology.mode: 'firm' is neither hard nor soft"),
        ({"networkTopology": {"highestTierAllowed": "1"}}, "highestTierAllowed: '1' is not a whole number"),
        ({"networkTopology": {"highestTierName": "rack"}}, "write highestTierAllowed"),
    ],
)
def test_fields_of_volcano_that_make_no_sense(spec: Mapping[str, object], named: str) -> None:
    group = make_group("g", 2, api=GroupApi.VOLCANO, spec=spec)
    reading = understood(in_group(make_pod("p"), "g", GroupApi.VOLCANO), served(group))
    assert named in reading.member.problem


@pytest.mark.parametrize(("network_topology", "tiers"), [({}, 0), ({"mode": "soft", "highestTierAllowed": 1}, 0),
                                             ({"highestTierAllowed": 2}, 2), ({"mode": "hard"}, 0)])  # fmt: skip
def test_tiers_of_volcano(network_topology: Mapping[str, object], tiers: int) -> None:
    group = make_group("g", 2, api=GroupApi.VOLCANO, spec={"networkTopology": network_topology})
    assert understood(in_group(make_pod("p"), "g", GroupApi.VOLCANO), served(group)).workload.tiers == tiers


@pytest.mark.parametrize("size", ["many", "0", "-4", "9" * 30, "4.0"])
def test_sizes_on_pods_that_make_no_sense(size: str) -> None:
    pod = make_pod("p", labels=KUEUE, annotations={"kueue.x-k8s.io/pod-group-total-count": size})
    assert "kueue.x-k8s.io/pod-group-total-count" in understood(pod, ALL).member.problem


def test_a_name_without_a_size_is_reported() -> None:
    reading = understood(make_pod("p", labels=KUEUE), ALL)
    assert not reading.workload.gang
    assert reading.warnings[0][0] is Reason.GROUP_IGNORED
    assert "kueue.x-k8s.io/pod-group-total-count is missing" in reading.warnings[0][1]
    assert reading.member.doubt, "a gang of unknown size: nothing is evicted for its pods"


def test_a_group_without_a_name() -> None:
    pod = make_pod("p")
    pod.spec.scheduling_group = {}
    assert "'' is not the name of a PodGroup" in understood(pod, ALL).member.problem


def test_identities_are_read_back() -> None:
    for api in GroupApi:
        key = GroupKey(api, "ns", "g.1")
        assert GroupKey.parse(key.id) == key
    for other in ("", "ns/g", "uid", "ns/podgroups.example.com/g", "ns/podgroups.scheduling.k8s.io/", "a/b/c/d"):
        assert GroupKey.parse(other) is None
