"""Configuration files: read whole or refused with the path of the field, never half read."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.api.config import ConfigError, Configuration, load_configuration
from topo_scheduler.api.durations import parse_duration
from topo_scheduler.api.models import Model
from topo_scheduler.api.process import API_VERSION
from topo_scheduler.api.scoring import ScoringWeights

HEADER = "apiVersion: topology.scheduler/v1alpha1\n"
HOW = HEADER + "kind: SchedulerConfig\n"
WHAT = HEADER + "kind: TopologySchedulerConfig\n"


def load(text: str) -> Configuration:
    return load_configuration({"the.yaml": text})


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text)
    message = str(caught.value)
    assert message.startswith("the.yaml: ")
    return message


@pytest.mark.parametrize("text", ["", "---\n", "# nothing\n", HOW, WHAT, WHAT + "---\n" + HOW])
def test_what_is_not_said_has_the_documented_default(text: str) -> None:
    config = load(text)
    assert config.topology.spec.scoring_weights.milli() == (400, 300, 200, 100)
    constraints = config.topology.spec.topology_constraints
    assert constraints.enforcement is Enforcement.REQUIRED
    assert (constraints.max_nodes_per_leaf, constraints.max_gpus_per_leaf) == (None, None)
    assert config.scheduler.scheduler_name == "topology-aware-scheduler"
    assert config.scheduler.gpu_resources == ("nvidia.com/gpu", "amd.com/gpu")


def test_both_kinds_stand_in_one_file_in_any_order() -> None:
    how = HOW + "schedulerName: ours\n"
    what = WHAT + "spec: {topologyConstraints: {maxNodesPerLeaf: 4, maxGPUsPerLeaf: 32, enforcement: preferred}}\n"
    for text in (f"{how}---\n{what}", f"{what}---\n{how}"):
        config = load(text)
        assert config.scheduler.scheduler_name == "ours"
        constraints = config.topology.spec.topology_constraints
        assert (constraints.max_nodes_per_leaf, constraints.max_gpus_per_leaf) == (4, 32)
        assert constraints.enforcement is Enforcement.PREFERRED


def test_the_two_kinds_may_stand_under_two_keys_of_a_config_map() -> None:
    config = load_configuration({"a": HOW + "schedulerName: ours\n", "b": WHAT + "metadata: {name: x}\n"})
    assert config.scheduler.scheduler_name == "ours"


@pytest.mark.parametrize(
    ("text", "path", "remedy"),
    [
        (WHAT + "spek: {}", "spek", "did you mean spec?"),
        (WHAT + "spec: {scoringWeight: {}}", "spec.scoringWeight", "did you mean scoringWeights?"),
        (
            WHAT + "spec: {scoringWeights: {resourceAvailabilty: 1}}",
            "spec.scoringWeights.resourceAvailabilty",
            "did you mean resourceAvailability?",
        ),
        (
            WHAT + "spec: {topologyConstraints: {maxGpusPerLeaf: 4}}",
            "spec.topologyConstraints.maxGpusPerLeaf",
            "did you mean maxGPUsPerLeaf?",
        ),
        (WHAT + "spec: {topologyConstraints: {zzz: 4}}", "spec.topologyConstraints.zzz", "known here: enforcement"),
        (HOW + "leaderElection: {leaseDurations: 15s}", "leaderElection.leaseDurations", "did you mean leaseDuration?"),
        (
            HOW + "topology: {levels: [{name: leaf, labels: [x]}, {name: a, labels: [x], label: y}]}",
            "topology.levels.1.label",
            "did you mean labels?",
        ),
    ],
)
def test_an_unknown_key_is_refused_with_its_path_and_what_may_be_meant(text: str, path: str, remedy: str) -> None:
    message = refusal(text)
    assert f"  {path}: unknown key" in message
    assert remedy in message


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        (
            WHAT + "spec: {scoringWeights: {topologyAlignment: 1.1}}",
            "spec.scoringWeights.topologyAlignment",
            "must be at most 1 (found 1.1)",
        ),
        (
            WHAT + "spec: {scoringWeights: {topologyAlignment: -0.1}}",
            "spec.scoringWeights.topologyAlignment",
            "must be at least 0 (found -0.1)",
        ),
        (
            WHAT + "spec: {scoringWeights: {topologyAlignment: .nan}}",
            "spec.scoringWeights.topologyAlignment",
            "must be at most 1 (found nan)",
        ),
        (
            WHAT + "spec: {scoringWeights: {resourceAvailability: 0, topologyAlignment: 0, domainUtilization: 0,"
            " historicalPerformance: 0}}",
            "spec.scoringWeights",
            "at least one weight",
        ),
        (
            WHAT + "spec: {topologyConstraints: {maxNodesPerLeaf: 0}}",
            "spec.topologyConstraints.maxNodesPerLeaf",
            "must be at least 1",
        ),
        (
            WHAT + "spec: {topologyConstraints: {maxGPUsPerLeaf: -1}}",
            "spec.topologyConstraints.maxGPUsPerLeaf",
            "must be at least 1",
        ),
        (
            WHAT + "spec: {topologyConstraints: {enforcement: soft}}",
            "spec.topologyConstraints.enforcement",
            "'required'",
        ),
        (
            WHAT + "spec: {topologyConstraints: {maxNodesPerLeaf: true}}",
            "spec.topologyConstraints.maxNodesPerLeaf",
            "neither true nor false",
        ),
        (WHAT + "spec: {reservation: {after: yes}}", "spec.reservation.after", "neither true nor false"),
        (WHAT + "spec: []", "spec", "expected a mapping (found [])"),
        (HOW + "metrics: {port: 70000}", "metrics.port", "65535"),
        (HOW + "clientConnection: {maxBindsInFlight: 0}", "clientConnection.maxBindsInFlight", "must be at least 1"),
        (HOW + "clientConnection: {bindTimeout: soon}", "clientConnection.bindTimeout", "not a duration such as 90s"),
        (HOW + "clientConnection: {bindTimeout: 0s}", "clientConnection.bindTimeout", "is not between 1ns and 24h"),
        (HOW + "leaderElection: {leaseDuration: 5s}", "leaderElection", "leaseDuration > renewDeadline"),
        (HOW + "leaderElection: {retryPeriod: 9s}", "leaderElection", "1.2 x retryPeriod"),
        (HOW + "topology: {families: [ekss]}", "topology", "unknown family 'ekss'; known are"),
        (HOW + "topology: {levels: [{name: Leaf, labels: [x]}]}", "topology.levels.0.name", "pattern"),
        (HOW + "topology: {levels: [{name: leaf, labels: []}]}", "topology.levels.0.labels", "must not be empty"),
        (
            HOW + "topology: {levels: [{name: leaf, labels: [x]}, {name: leaf, labels: [y]}]}",
            "topology",
            "two levels have one name",
        ),
        (HOW + "gpuResources: []", "gpuResources", "must not be empty"),
        (HOW + "schedulerName: ''", "schedulerName", "write a name of at most 63 letters"),
        (HOW + "logging: {level: loud}", "logging.level", "'debug'"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_path(text: str, path: str, words: str) -> None:
    message = refusal(text)
    assert f"  {path}: " in message
    assert words in message


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (HOW + "spec: null", "spec: expected a mapping (found null)"),
        (HOW + "volumeBindTimeout: null", "volumeBindTimeout: expected a duration such as 15s or 1m30s, or a number"),
        (HOW + "metrics: {port: [1]}", "metrics.port: expected a whole number (found [1])"),
        (HOW + "metrics: {port: 1.5}", "metrics.port: expected a whole number (found 1.5)"),
        (HOW + "metrics: {tls: {enabled: maybe}}", "metrics.tls.enabled: expected true or false (found 'maybe')"),
        (HOW + "plugins: [{}]", "plugins.0.name: a value is required\n"),
        (HOW + "plugins: [{name: a}]\npluginTimeout: 9s", "pluginTimeout is 9s, and may be at most a fifth of renew"),
        (HOW + "metadata: {unknwon: 1}", "metadata: unknown key unknwon; known here: name, namespace, labels, annot"),
        (
            HOW + "schedulerName: '" + "x" * 5000 + "'",
            "schedulerName: must have at most 317 characters (found '" + "x" * 79,
        ),
    ],
)
def test_a_refusal_speaks_of_yaml_and_shows_little_of_what_was_found(text: str, line: str) -> None:
    message = refusal(text) + "\n"
    assert f"\n  {line}" in message
    assert "Input" not in message
    assert "instance" not in message
    assert len(message) < 400
    assert "{" not in message.partition("is refused")[2]


def test_all_faults_are_reported_at_once() -> None:
    message = refusal(
        WHAT + "spec: {scoringWeights: {topologyAlignment: 2}, topologyConstraints: {maxNodesPerLeaf: 0}}"
    )
    assert "topologyAlignment" in message
    assert "maxNodesPerLeaf" in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "not valid YAML"),
        ("- 1", "expected a mapping"),
        ("just text", "expected a mapping"),
        ("kind: SchedulerConfig", "write topology.scheduler/v1alpha1"),
        ("apiVersion: topology.scheduler/v2\nkind: SchedulerConfig", "write topology.scheduler/v1alpha1"),
        (HEADER, "write one of SchedulerConfig, TopologySchedulerConfig"),
        (HEADER + "kind: ConfigMap", "write one of SchedulerConfig, TopologySchedulerConfig"),
        (HOW + "---\n" + HOW, "kind SchedulerConfig is given twice"),
        (
            HOW + "logging: {level: info}\nlogging: {level: debug}",
            "key 'logging' is given twice\n  in \"<unicode string>\", line 4, column 1",
        ),
        (WHAT + "x: !!python/object/apply:os.getcwd []", "not valid YAML"),
        (WHAT + "1: 2", "a key must be a text"),
        (WHAT + "spec: " + "[" * 5000, "nested too deeply"),
        (
            WHAT + "metadata: {name: 2026-13-01}",
            "reads a value as another type than text: month must be in 1..12; put it in",
        ),
        (WHAT + "metadata: {name: !!int x}", "reads a value as another type"),
        (WHAT + "metadata: {name: " + "9" * 5000 + "}", "reads a value as another type"),
        (WHAT + "metadata: {name: " + "[" * 3000 + "]" * 3000 + "}", "nested too deeply"),
    ],
)
def test_what_is_no_configuration_is_refused(text: str, words: str) -> None:
    assert words in refusal(text)


def test_anchors_and_merges_are_no_repetition() -> None:
    text = HOW + "clientConnection: &c {maxBindsInFlight: 5}\n---\n" + WHAT
    assert load(text).scheduler.client_connection.max_binds_in_flight == 5
    merged = "clientConnection:\n  <<: {maxBindsInFlight: 5}\n  <<: {context: x}\n  bindTimeout: 9s\n"
    assert load(HOW + merged).scheduler.client_connection.bind_timeout == 9


def test_one_kind_in_two_places_names_both() -> None:
    with pytest.raises(ConfigError, match=r"second\.yaml: .* here and in first\.yaml"):
        load_configuration({"first.yaml": WHAT, "second.yaml": WHAT})


def test_a_bad_document_spoils_the_good_one_beside_it() -> None:
    # The caller keeps what it had: there is no result in which one of the two was taken over.
    refusal(HOW + "schedulerName: ours\n---\n" + WHAT + "spec: {scoringWeights: {topologyAlignment: 2}}")


def test_sharing_is_read() -> None:
    text = """
spec:
  fairness: {overdueAfter: 5m, decisionsPerSecond: 50, decisionBurst: 10}
  quotas:
    - {namespaces: [team-a, "ml-*"], hard: {gpus: 16, cpu: "1500m", memory: 1Ti, a.com/fpga: 2, hugepages-2Mi: 1Gi}}
    - {namespaces: [team-a], domain: spine-1/leaf-2, hard: {pods: 0}}
  domainAccess:
    - {domain: spine-2, namespaces: [team-a]}
"""
    spec = load(WHAT + text).topology.spec
    assert (spec.fairness.overdue_after, spec.fairness.decisions_per_second, spec.fairness.decision_burst) == (
        300,
        50,
        10,
    )
    assert spec.quotas[0].namespaces == ("team-a", "ml-*")
    assert spec.quotas[0].domain is None
    assert spec.quotas[0].hard["gpus"] == "16"
    assert spec.quotas[1].domain == "spine-1/leaf-2"
    assert spec.domain_access[0].domain == "spine-2"


def test_nothing_is_shared_unless_it_is_said() -> None:
    spec = load(WHAT).topology.spec
    assert (spec.quotas, spec.domain_access) == ((), ())
    assert (spec.fairness.overdue_after, spec.fairness.decisions_per_second) == (600, None)


@pytest.mark.parametrize(
    ("spec", "path", "remedy"),
    [
        ("quotas: [{namespaces: [a], hard: {gpu: 1}}]", "spec.quotas.0.hard", "did you mean gpus?"),
        ("quotas: [{namespaces: [a], hard: {warp: 1}}]", "spec.quotas.0.hard", "write one of gpus, cpu"),
        ("quotas: [{namespaces: [a], hard: {cpu: lots}}]", "spec.quotas.0.hard", "is not a quantity"),
        ("quotas: [{namespaces: [a], hard: {cpu: 1E15}}]", "spec.quotas.0.hard", "cpu: "),
        ("quotas: [{namespaces: [a], hard: {cpu: [1]}}]", "spec.quotas.0.hard", "is not a quantity"),
        ("quotas: [{namespaces: [a], hard: {cpu: -1}}]", "spec.quotas.0.hard", "is negative"),
        ("quotas: [{namespaces: [a], hard: {cpu: true}}]", "spec.quotas.0.hard", "is not a quantity"),
        ("quotas: [{namespaces: [a], hard: {}}]", "spec.quotas.0.hard", "must not be empty"),
        ("quotas: [{namespaces: [], hard: {cpu: 1}}]", "spec.quotas.0.namespaces", "must not be empty"),
        ("quotas: [{namespaces: a, hard: {cpu: 1}}]", "spec.quotas.0.namespaces", "expected a list (found 'a')"),
        ("quotas: [{hard: {cpu: 1}}]", "spec.quotas.0.namespaces", "required"),
        ("quotas: [{namespace: [a], hard: {cpu: 1}}]", "spec.quotas.0.namespace", "did you mean namespaces?"),
        (
            "quotas: [{namespaces: [a], domain: a//b, hard: {cpu: 1}}]",
            "spec.quotas.0.domain",
            "write a name such as leaf-1 or a path",
        ),
        ("domainAccess: [{domain: '', namespaces: [a]}]", "spec.domainAccess.0.domain", "write a name such as leaf-1"),
        ("domainAccess: [{domain: s1}]", "spec.domainAccess.0.namespaces", "required"),
        (
            "domainAccess: [{domain: s1, namespaces: [a]}, {domain: s1, namespaces: [b]}]",
            "spec",
            "domainAccess lists s1 twice; put its namespaces into one entry",
        ),
        ("fairness: {decisionsPerSecond: 0}", "spec.fairness.decisionsPerSecond", "must be at least 0.1"),
        ("fairness: {decisionBurst: 0}", "spec.fairness.decisionBurst", "must be at least 1"),
        ("fairness: {overdueAfter: never}", "spec.fairness.overdueAfter", "such as 90s"),
    ],
)
def test_sharing_that_makes_no_sense_is_refused(spec: str, path: str, remedy: str) -> None:
    message = refusal(WHAT + f"spec: {{{spec}}}")
    assert f"  {path}: " in message
    assert remedy in message


def test_links_are_read() -> None:
    entries = "[{level: leaf, capacity: 3200Gb, oversubscription: 2}, {domain: s1/l3, capacity: 1.5Tb}]"
    first, second = load_configuration({"f": WHAT + f"spec: {{links: {entries}}}"}).topology.spec.links
    assert (first.level, first.mbits) == ("leaf", 1_600_000)
    assert (second.domain, second.mbits) == ("s1/l3", 1_500_000)


@pytest.mark.parametrize(
    ("links", "path", "remedy"),
    [
        ("[{level: leaf}]", "spec.links.0", "nothing is said of level leaf; give capacity, oversubscription or both"),
        ("[{capacity: 1Gb}]", "spec.links.0", "give level or domain"),
        ("[{level: leaf, domain: s1, capacity: 1Gb}]", "spec.links.0", "give level or domain"),
        ("[{level: leaf, capacity: 0Gb}]", "spec.links.0.capacity", "not between 1 Mbit/s and 1000 Tbit/s; leave out"),
        ("[{level: leaf, capacity: -5Gb}]", "spec.links.0.capacity", "is not a bandwidth such as 100Gb"),
        ("[{level: leaf, capacity: 99999Tb}]", "spec.links.0.capacity", "not between 1 Mbit/s and 1000 Tbit/s"),
        ("[{level: leaf, capacity: 400}]", "spec.links.0.capacity", "expected a text; put a number into quotes"),
        ("[{level: leaf, oversubscription: 0}]", "spec.links.0.oversubscription", "must be at least 0.001"),
        ("[{level: leaf, oversubscription: -2}]", "spec.links.0.oversubscription", "must be at least 0.001"),
        ("[{level: leaf, oversubscription: 1.0e-9}]", "spec.links.0.oversubscription", "must be at least 0.001"),
        ("[{level: leaf, oversubscription: .inf}]", "spec.links.0.oversubscription", "finite"),
        ("[{level: leaf, oversubscription: .nan}]", "spec.links.0.oversubscription", "finite"),
        ("[{level: leaf, capacity: 1Mb, oversubscription: 2}]", "spec.links.0", "less than 1 Mbit/s"),
        ("[{level: node, oversubscription: 2}]", "spec.links.0", "level node needs a capacity"),
        ("[{level: leaf, capacity: 1Gb}, {level: leaf, capacity: 2Gb}]", "spec", "links names level leaf twice"),
        ("[{domain: s1, capacity: 1Gb}, {domain: s1, capacity: 2Gb}]", "spec", "links names domain s1 twice"),
        ("[{domain: a//b, capacity: 1Gb}]", "spec.links.0.domain", "write a name such as leaf-1 or a path"),
        ("[{levle: leaf, capacity: 1Gb}]", "spec.links.0.levle", "did you mean level?"),
    ],
)
def test_links_that_make_no_sense_are_refused(links: str, path: str, remedy: str) -> None:
    message = refusal(WHAT + f"spec: {{links: {links}}}")
    assert f"  {path}: " in message
    assert remedy in message


def test_what_was_read_can_not_be_changed() -> None:
    config = load(HOW)
    with pytest.raises(ValueError, match="frozen"):
        config.scheduler.scheduler_name = "other"
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.scheduler = load(HOW).scheduler  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("15s", 15),
        ("1m30s", 90),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("30s1m", 90),
        ("86399.125s", 86399.125),
        ("20", 20),
        ("0.25", 0.25),
    ],
)
def test_durations_are_read_as_in_annotations_and_may_be_numbers(text: str, seconds: float) -> None:
    config = load(HOW + f"volumeBindTimeout: {text}\n").scheduler
    assert config.volume_bind_timeout == seconds
    assert parse_duration(config.model_dump(by_alias=True)["volumeBindTimeout"]) == seconds


@pytest.mark.parametrize("text", ["''", "s", "'15'", "15 s", "-1s", "1d", "soon", "0s", "25h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="volumeBindTimeout"):
        load(HOW + f"volumeBindTimeout: {text}\n")


@given(st.tuples(*[st.integers(0, 1000)] * 4).filter(any))
def test_weights_are_exact_in_thousandths(milli: tuple[int, int, int, int]) -> None:
    weights = ScoringWeights(
        resource_availability=milli[0] / 1000,
        topology_alignment=milli[1] / 1000,
        domain_utilization=milli[2] / 1000,
        historical_performance=milli[3] / 1000,
    )
    assert weights.milli() == milli


@given(st.text(max_size=60))
def test_no_text_ends_in_anything_but_a_configuration_or_a_refusal(text: str) -> None:
    for document in (text, HOW + text, WHAT + "spec: " + text):
        try:
            load(document)
        except ConfigError as error:
            assert str(error).startswith("the.yaml: ")


AS_GIVEN = """\
apiVersion: topology.scheduler/v1alpha1
kind: SchedulerConfig
metadata:
  name: topology-scheduler-config
  namespace: kube-system
spec:
  scoringWeights:
    resourceAvailability: 0.5
    topologyAlignment: 0.3
    domainUtilization: 0.1
    historicalPerformance: 0.1
  topologyConstraints:
    maxNodesPerLeaf: 4
    maxGPUsPerLeaf: 32
    enforcement: preferred
"""


def config_map(data: dict[str, str], name: str = "topology-scheduler-config") -> str:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
    return str(yaml.safe_dump(body))


@pytest.mark.parametrize("wrap", [lambda text: text, lambda text: config_map({"config.yaml": text})])
def test_a_scheduler_config_takes_metadata_and_the_fields_of_decisions(wrap: Callable[[str], str]) -> None:
    config = load(wrap(AS_GIVEN))
    assert config.topology.spec.scoring_weights.milli() == (500, 300, 100, 100)
    constraints = config.topology.spec.topology_constraints
    assert (constraints.max_nodes_per_leaf, constraints.max_gpus_per_leaf) == (4, 32)
    assert constraints.enforcement is Enforcement.PREFERRED
    assert config.scheduler == load(HOW).scheduler, "a change of these must not ask for a restart"
    assert load(wrap(AS_GIVEN.replace("SchedulerConfig", "TopologySchedulerConfig"))).topology.spec == (
        config.topology.spec
    )


def test_both_kinds_may_each_say_a_part() -> None:
    what = WHAT + "spec: {scoringWeights: {historicalPerformance: 0}, smallPods: {}, links: []}\n"
    how = HOW + "spec: {scoringWeights: {topologyAlignment: 0.9}, topologyConstraints: {enforcement: preferred}}\n"
    for text in (f"{how}---\n{what}", f"{what}---\n{how}"):
        spec = load(text).topology.spec
        assert spec.scoring_weights.milli() == (400, 900, 200, 0)
        assert spec.topology_constraints.enforcement is Enforcement.PREFERRED


def test_one_field_with_one_value_in_both_kinds_is_no_conflict() -> None:
    what = WHAT + "spec: {topologyConstraints: {maxNodesPerLeaf: 4}}\n"
    spec = load(HOW + "spec: {topologyConstraints: {maxNodesPerLeaf: 4}}\n---\n" + what).topology.spec
    assert spec.topology_constraints.max_nodes_per_leaf == 4


@pytest.mark.parametrize(
    ("mine", "theirs", "path", "values"),
    [
        ("maxNodesPerLeaf: 4", "maxNodesPerLeaf: 8", "spec.topologyConstraints.maxNodesPerLeaf", ("4", "8")),
        ("maxGPUsPerLeaf: 4", "maxGPUsPerLeaf: 8", "spec.topologyConstraints.maxGPUsPerLeaf", ("4", "8")),
        # A value that is the default counts too, where it was written.
        ("enforcement: required", "enforcement: preferred", "spec.topologyConstraints.enforcement", ("required",)),
    ],
)
def test_one_field_with_two_values_is_refused(mine: str, theirs: str, path: str, values: tuple[str, ...]) -> None:
    documents = {
        "first.yaml": HOW + f"spec: {{topologyConstraints: {{{mine}}}}}\n",
        "second.yaml": WHAT + f"spec: {{topologyConstraints: {{{theirs}}}}}\n",
    }
    with pytest.raises(ConfigError) as caught:
        load_configuration(documents)
    message = str(caught.value)
    assert all(word in message for word in ("first.yaml", "second.yaml", f"{path} is {values[0]}", "keep one", *values))


def test_what_both_kinds_together_ask_for_is_checked() -> None:
    how = HOW + "spec: {scoringWeights: {resourceAvailability: 0, topologyAlignment: 0}}\n"
    what = WHAT + "spec: {scoringWeights: {domainUtilization: 0, historicalPerformance: 0}}\n"
    assert "spec.scoringWeights of both kinds together (the other in the.yaml) is refused: at least one" in refusal(
        f"{how}---\n{what}"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HOW + "spec: {fairness: {}}", "spec.fairness: unknown key; write it in a document of kind Topology"),
        (HOW + "spec: {quotas: []}", "write it in a document of kind TopologySchedulerConfig, as spec.quotas"),
        (HOW + "spec: {leaderElection: {}}", "spec.leaderElection: unknown key; write it beside spec"),
        (WHAT + "spec: {plugins: []}", "scoringWeights.plugins or in a document of kind SchedulerConfig, as plugins"),
        (WHAT + "recovery: {}", "recovery: unknown key; write it as spec.recovery"),
        (WHAT + "spec: {migSlots: true}", "unknown key; write it as spec.recovery.defragmentation.migSlots"),
        (WHAT + "spec: {after: 30s}", "spec.after: unknown key; known here: scoringWeights, "),
        (WHAT + "spec: {quotas: [{gangs: 1}]}", "spec.quotas.0.gangs: unknown key; known here: "),
        (WHAT + "spec: {recovery: true}", "spec.recovery: expected a mapping; write the fields of it below this key"),
        (HOW + "spec: {scoringWeight: {}}", "spec.scoringWeight: unknown key; did you mean scoringWeights?"),
        (HOW + "spec: {topologyConstraints: {maxNodesPerLeaf: 0}}", "spec.topologyConstraints.maxNodesPerLeaf"),
        (config_map({}), "ConfigMap topology-scheduler-config: no key of data ends with .yaml or .yml"),
        (config_map({"config": AS_GIVEN}), "no key of data ends with .yaml or .yml"),
        (config_map({"config.yaml": HOW + "x: 1"}), "ConfigMap topology-scheduler-config: config.yaml: Scheduler"),
        (config_map({"config.yaml": "a: ["}), "config.yaml: not valid YAML"),
        (config_map({"config.yaml": {"kind": "SchedulerConfig"}}), "expected a text, found dict"),  # type: ignore[dict-item]
        (config_map({"a.yaml": HOW, "b.yaml": HOW}), "kind SchedulerConfig is given twice"),
    ],
)
def test_what_stands_in_the_wrong_place_is_refused_with_the_right_one(text: str, words: str) -> None:
    assert words in refusal(text)


def test_a_config_map_among_manifests_is_opened_and_the_rest_is_skipped() -> None:
    service = "apiVersion: v1\nkind: Service\nmetadata: {name: x}\n"
    others = config_map({"a.yaml": "b"}, name="other")
    ours = config_map({"config.yaml": HOW + "schedulerName: mine\n", "what.yml": WHAT, "README": "a: ["}, name="any")
    assert load("---\n".join((service, ours, others))).scheduler.scheduler_name == "mine"
    message = refusal(service)
    assert message.startswith(
        "the.yaml: no configuration among the objects in it (Service x); write a document of apiVersion"
    )


def test_a_list_is_its_items_and_what_is_skipped_is_known() -> None:
    service = "{apiVersion: v1, kind: Service, metadata: {name: x}}"
    ours = "{apiVersion: topology.scheduler/v1alpha1, kind: SchedulerConfig, schedulerName: mine}"
    configuration = load(f"apiVersion: v1\nkind: List\nitems:\n- {service}\n- {ours}\n")
    assert (configuration.scheduler.scheduler_name, configuration.skipped, configuration.kinds) == (
        "mine",
        ("Service x",),
        ("SchedulerConfig",),
    )
    assert configuration == load(ours), "what stands beside it makes no other configuration"
    assert load("").kinds == load("").skipped == ()
    wrong = ours.replace("v1alpha1", "v1")
    assert "apiVersion is 'topology.scheduler/v1'; write topology.scheduler/v1alpha1" in refusal(wrong)
    assert "kind is 'Migration'; write one of" in refusal(ours.replace("SchedulerConfig", "Migration"))


@pytest.mark.parametrize("head", [HOW, WHAT])
def test_metadata_is_that_of_an_object(head: str) -> None:
    load(head + "metadata: {name: x, labels: {a: b}, annotations: {}, uid: y, managedFields: []}")
    assert "metadata: unknown key lables; did you mean labels?" in refusal(head + "metadata: {lables: {a: b}}")


def test_metrics_may_be_for_authorized_clients_only() -> None:
    text = HOW + "metrics: {tls: {enabled: true, certFile: /a, keyFile: /b}, authorization: tokenReview}\n"
    metrics = load(text).scheduler.metrics
    assert (metrics.tls.enabled, metrics.tls.cert_file, metrics.authorization) == (True, "/a", "tokenReview")
    plain = load(HOW).scheduler.metrics
    assert (plain.tls.enabled, plain.authorization) == (False, "none")


@pytest.mark.parametrize(
    ("metrics", "path", "words"),
    [
        (
            "authorization: tokenReview",
            "metrics",
            "needs TLS, as tokens must not travel in clear text; set tls.enabled",
        ),
        ("authorization: kubeRBAC", "metrics.authorization", "'tokenReview'"),
        ("tls: {enabled: true, certFile: /a}", "metrics.tls", "certFile and keyFile go together"),
        ("tls: {certFile: /a, keyFile: /b}", "metrics.tls", "TLS is off; set enabled: true"),
    ],
)
def test_metrics_that_make_no_sense_are_refused(metrics: str, path: str, words: str) -> None:
    message = refusal(HOW + f"metrics: {{{metrics}}}")
    assert f"  {path}: " in message
    assert words in message


def test_defaults_are_what_an_empty_mapping_gives() -> None:
    def models(base: type[Model]) -> Iterator[type[Model]]:
        for model in base.__subclasses__():
            yield model
            yield from models(model)

    seen = 0
    for model in models(Model):
        if any(info.is_required() for info in model.model_fields.values()):
            continue
        with suppress(ValidationError):  # a placement rule that asks for nothing, and its like
            validated = model.model_validate({})
            assert model.defaults() == validated
            assert model.defaults().model_dump() == validated.model_dump()
            seen += 1
    assert seen > 25


def test_a_config_map_without_an_api_version_in_its_text_names_the_key_and_the_field() -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata:\n  config.yaml: |\n    kind: SchedulerConfig\n"
    with pytest.raises(ConfigError, match=f"ConfigMap x: config.yaml: apiVersion is missing; write {API_VERSION}"):
        load_configuration({"map.yaml": text})


def test_mistakes_in_both_documents_are_reported_together() -> None:
    text = (
        f"apiVersion: {API_VERSION}\nkind: SchedulerConfig\nleaderElection: {{leaseDuratoin: 3s}}\n---\n"
        f"apiVersion: {API_VERSION}\nkind: TopologySchedulerConfig\n"
        "spec: {topologyConstraints: {enforcement: prefered}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_configuration({"both.yaml": text})
    assert "leaseDuratoin" in str(caught.value) and "prefered" in str(caught.value)


def test_a_kind_that_is_given_twice_hides_no_other_mistake() -> None:
    message = refusal("---\n".join((HOW + "bogus: 1\n", WHAT, WHAT, WHAT)))
    assert "bogus: unknown key" in message
    assert message.count("kind TopologySchedulerConfig is given twice") == 2


@pytest.mark.parametrize(
    "data",
    [
        {"a.yaml": "apiVersion: other.io/v1\nkind: SchedulerConfig\nfoo: 1\n"},
        {"README": "Our notes. Example:\n  kind: SchedulerConfig\n"},
        {"README": f"Our notes. Example:\n  apiVersion: {API_VERSION}\n  kind: SchedulerConfig\n"},
        {"notes.yaml": f"text: |\n  apiVersion: {API_VERSION}\n  kind: SchedulerConfig\n"},
        {"kind": "SchedulerConfig"},
        {"a.yaml": "kind: SchedulerConfig\na: [\n"},
    ],
    ids=["another group", "a text", "a text with both", "a text inside", "a value", "no YAML"],
)
def test_a_config_map_of_another_program_is_skipped(data: dict[str, str]) -> None:
    assert load("---\n".join((config_map(data, name="other"), WHAT))).kinds == ("TopologySchedulerConfig",)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"config.yaml": '{"kind": "TopologySchedulerConfig"}'}, "config.yaml: apiVersion is missing"),
        ({"config.yaml": f"apiVersion: {API_VERSION}\na: [\n"}, "config.yaml: not valid YAML"),
        ({"config.yaml": f"apiVersion: {API_VERSION}\n"}, "config.yaml: kind is missing"),
        ({"config": HOW}, "no key of data ends with .yaml or .yml"),
    ],
    ids=["JSON", "no YAML", "no kind", "no suffix"],
)
def test_a_config_map_of_any_name_that_has_configuration_is_read(data: dict[str, str], words: str) -> None:
    assert words in refusal("---\n".join((config_map(data, name="mine"), WHAT)))
