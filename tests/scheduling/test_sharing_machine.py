"""Quotas and reserved domains under whatever happens: never broken by a decision, and no pod waits for nothing."""

from collections import Counter
from fnmatch import fnmatchcase
from typing import Any

import yaml
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.helpers import NVIDIA, make_node, make_pod
from tests.scheduling.driver import Driver, configured
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.instructions import BindOutcome

NAMESPACES = ("a", "b", "team-x")
DOMAINS = ("s1", "s2", "s1/l1", "l1", "nowhere", "")
PATHS = ("s1/l1", "s1/l2", "s2/l1", "s2/l2")
NODES = [f"n{number}" for number in range(6)]
GPUS = 4

quotas = st.lists(
    st.fixed_dictionaries(
        {
            "namespaces": st.sampled_from([["a"], ["team-*"], ["*"], ["a", "b"]]),
            "domain": st.sampled_from((*DOMAINS, "s1", "s2")),
            "hard": st.sampled_from([{"gpus": 4}, {"gpus": 6, "cpu": "8"}, {NVIDIA: 9}, {"cpu": "3500m"}, {"pods": 3}]),
        }
    ),
    min_size=1,
    max_size=3,
)
access = st.lists(
    st.fixed_dictionaries(
        {"domain": st.sampled_from(DOMAINS[:-1]), "namespaces": st.sampled_from([["a"], ["team-*", "b"], ["none"]])}
    ),
    max_size=2,
    unique_by=lambda entry: entry["domain"],
)


def asked(pod: Pod, name: str) -> int:
    """What a pod asks; CPU in milli."""
    requests = pod.spec.containers[0].resources.requests
    return {
        "gpus": int(requests.get(NVIDIA, 0)),
        NVIDIA: int(requests.get(NVIDIA, 0)),
        "cpu": 1000 * int(requests["cpu"]),
        "pods": 1,
    }[name]


def limit(text: object, name: str) -> int:
    number = str(text)
    if name != "cpu":
        return int(number)
    return int(number[:-1]) if number.endswith("m") else 1000 * int(number)


class Shared(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.paths = {name: PATHS[number % len(PATHS)] for number, name in enumerate(NODES)}
        self.driver = Driver([self.node(name) for name in NODES])
        self.spec: dict[str, Any] = {"quotas": [], "domainAccess": []}
        self.number = 0

    def node(self, name: str) -> Any:
        return make_node(name, self.paths[name], gpus=GPUS, cpu="16")

    # ------------------------------------------------------------ what happens

    @initialize(quotas=quotas, access=access)
    def begin(self, quotas: list[dict[str, Any]], access: list[dict[str, Any]]) -> None:
        self.configure(quotas, access)

    @rule(quotas=quotas, access=access)
    def configure(self, quotas: list[dict[str, Any]], access: list[dict[str, Any]]) -> None:
        quotas = [{key: value for key, value in quota.items() if value} for quota in quotas]
        self.spec = {"quotas": quotas, "domainAccess": access}
        self.driver.engine.configure(configured(yaml.safe_dump(self.spec, default_flow_style=True)))

    @rule(name=st.sampled_from(NODES), path=st.sampled_from(PATHS))
    def relabel(self, name: str, path: str) -> None:
        self.paths[name] = path
        self.driver.nodes(self.node(name))

    @rule(name=st.sampled_from(NODES))
    def node_comes_back(self, name: str) -> None:
        self.driver.drop_node(name)
        self.driver.nodes(self.node(name))

    @rule(
        namespace=st.sampled_from(NAMESPACES),
        gpus=st.integers(0, GPUS),
        cpu=st.integers(1, 3),
        size=st.sampled_from([1, 1, 1, 2, 3]),
        mixed=st.booleans(),
        count=st.integers(1, 4),
    )
    def submit(self, namespace: str, gpus: int, cpu: int, size: int, mixed: bool, count: int) -> None:
        for _ in range(count):
            self.submit_one(namespace, gpus, cpu, size, mixed)
        self.step(fails=False)

    def submit_one(self, namespace: str, gpus: int, cpu: int, size: int, mixed: bool) -> None:
        self.number += 1
        annotations = {"gang-name": f"g{self.number}", "gang-size": str(size)} if size > 1 else {}
        for member in range(size):
            self.driver.apply(
                make_pod(
                    f"p{self.number}-{member}",
                    namespace=namespace,
                    gpus=gpus if member or not mixed else 0,
                    cpu=str(cpu),
                    annotations=annotations,
                    created=self.number,
                    uid=f"uid-{self.number}-{member}",
                )
            )

    @rule(namespace=st.sampled_from(NAMESPACES), node=st.sampled_from(NODES), gpus=st.integers(0, GPUS))
    def another_scheduler_binds(self, namespace: str, node: str, gpus: int) -> None:
        self.number += 1
        self.driver.apply(
            make_pod(f"o{self.number}", namespace=namespace, gpus=gpus, scheduler="other", node=node, cpu="1")
        )

    @precondition(lambda self: any(pod.spec.node_name for pod in self.driver.pods.values()))
    @rule(data=st.data())
    def a_pod_ends(self, data: st.DataObject) -> None:
        running = sorted(uid for uid, pod in self.driver.pods.items() if pod.spec.node_name)
        pod = self.driver.pods[data.draw(st.sampled_from(running))]
        self.driver.delete(pod)

    # ------------------------------------------------------------ what is decided

    @rule(fails=st.booleans())
    def step(self, fails: bool) -> None:
        d = self.driver
        before = {uid: bind.node for uid, bind in d.flight.items()}
        d.step(20)  # workloads in backoff are ready by then
        self.check({uid: bind.node for uid, bind in d.flight.items() if uid not in before})
        for number, uid in enumerate(list(d.flight)):
            d.answer(uid, BindOutcome.REJECTED if fails and not number else BindOutcome.BOUND)

    def inside(self, node: str, domain: str) -> bool:
        path = self.paths[node]
        return not domain or domain in (path, path.split("/")[0], path.split("/")[1])

    def check(self, fresh: dict[str, str]) -> None:
        nodes = {uid: pod.spec.node_name for uid, pod in self.driver.pods.items()}
        nodes |= {uid: bind.node for uid, bind in self.driver.flight.items()}
        pods = self.driver.pods
        for uid, node in fresh.items():
            namespace = pods[uid].metadata.namespace
            for entry in self.spec["domainAccess"]:
                allowed = any(fnmatchcase(namespace, pattern) for pattern in entry["namespaces"])
                assert allowed or not self.inside(node, entry["domain"])
            for quota in self.spec["quotas"]:
                domain = quota.get("domain", "")
                if not self.inside(node, domain) or not self.applies(quota, namespace):
                    continue
                for name, text in quota["hard"].items():
                    held = self.held(nodes, namespace, domain, name)
                    assert held <= limit(text, name) or not asked(pods[uid], name), (quota, namespace)
        self.nobody_waits_for_nothing(nodes)

    def applies(self, quota: dict[str, Any], namespace: str) -> bool:
        return any(fnmatchcase(namespace, pattern) for pattern in quota["namespaces"])

    def held(self, nodes: dict[str, str], namespace: str, domain: str, name: str) -> int:
        return sum(
            asked(self.driver.pods[uid], name)
            for uid, node in nodes.items()
            if node and self.driver.pods[uid].metadata.namespace == namespace and self.inside(node, domain)
        )

    def nobody_waits_for_nothing(self, nodes: dict[str, str]) -> None:
        """A pod alone waits only where, node by node, something keeps it away."""
        in_backoff = {
            uid for entry in self.driver.engine.outcomes.admission_backoff._held.values() for uid in entry.waiting
        }
        free = {name: Counter({"gpus": GPUS, "cpu": 16_000}) for name in NODES}
        for uid, node in nodes.items():
            if node:
                for name in ("gpus", "cpu"):
                    free[node][name] -= asked(self.driver.pods[uid], name)
        for uid, pod in self.driver.pods.items():
            if nodes[uid] or pod.metadata.annotations or pod.spec.scheduler_name == "other":
                continue
            if uid in in_backoff:
                continue  # a pod like it was refused, and is tried first
            for node in NODES:
                fits = all(free[node][name] >= asked(pod, name) for name in ("gpus", "cpu") if asked(pod, name))
                assert not (fits and self.may_go(nodes, pod, node)), (pod.metadata.name, node)

    def may_go(self, nodes: dict[str, str], pod: Pod, node: str) -> bool:
        namespace = pod.metadata.namespace
        for entry in self.spec["domainAccess"]:
            if self.inside(node, entry["domain"]) and not any(fnmatchcase(namespace, p) for p in entry["namespaces"]):
                return False
        for quota in self.spec["quotas"]:
            domain = quota.get("domain", "")
            if self.applies(quota, namespace) and self.inside(node, domain):
                for name, text in quota["hard"].items():
                    more = asked(pod, name)
                    if more and self.held(nodes, namespace, domain, name) + more > limit(text, name):
                        return False
        return True


TestShared = Shared.TestCase
TestShared.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
