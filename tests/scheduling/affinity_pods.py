"""Pods with the label app=web, the affinity between them, and nodes in labelled racks."""

from tests.helpers import NVIDIA, make_node, make_pod
from tests.scheduling.driver import Driver
from topo_scheduler.api.objects import (
    Container,
    ContainerPort,
    ObjectMeta,
    PartialObject,
    Pod,
    PodSpec,
    Quantity,
    ResourceRequirements,
)
from topo_scheduler.api.selectors import Affinity, LabelSelector, PodAffinity, PodAffinityTerm, TopologySpreadConstraint

HOSTNAME = "kubernetes.io/hostname"
WEB_PODS = LabelSelector({"app": "web"})


def nodes_in_racks(*racks: str) -> Driver:
    """Return a driver with nodes n1, n2, … of 8 GPUs in these racks, all under one leaf."""
    return Driver(
        [
            make_node(f"n{number}", "s1/l1", labels={HOSTNAME: f"n{number}", "rack": rack})
            for number, rack in enumerate(racks, 1)
        ]
    )


def one_gpu_spec(port: int = 0, **parts: object) -> PodSpec:
    """Return the spec of a pod with one GPU and one CPU."""
    requests: dict[str, Quantity] = {NVIDIA: 1, "cpu": "1"}
    ports = [ContainerPort(port)] if port else []
    return PodSpec(containers=[Container("main", ResourceRequirements(requests, requests), ports=ports)], **parts)  # type: ignore[arg-type]


def pod_affinity(key: str, selector: LabelSelector = WEB_PODS) -> Affinity:
    """Return a required affinity to pods with these labels."""
    return Affinity(pod_affinity=PodAffinity([PodAffinityTerm(selector, topology_key=key)]))


def pod_anti_affinity(key: str, selector: LabelSelector = WEB_PODS) -> Affinity:
    """Return a required anti-affinity to pods with these labels."""
    return Affinity(pod_anti_affinity=PodAffinity([PodAffinityTerm(selector, topology_key=key)]))


def web_pod(name: str, of: PodSpec | None = None, *, node: str = "", **more: object) -> Pod:
    """Return a pod with the label app=web; one that has a node belongs to another scheduler."""
    scheduler = "other" if node else "topology-aware-scheduler"
    return make_pod(name, spec=of or one_gpu_spec(), labels={"app": "web"}, node=node, scheduler=scheduler, **more)  # type: ignore[arg-type]


def web_gang(size: int, of: PodSpec) -> list[Pod]:
    """Return the pods of a gang with the label app=web."""
    annotations = {"gang-name": "g", "gang-size": str(size)}
    return [web_pod(f"g-{number}", copy_of_spec(of), annotations=annotations) for number in range(size)]


def copy_of_spec(of: PodSpec) -> PodSpec:
    """Return a spec of its own with the same containers and constraints."""
    return PodSpec(
        containers=of.containers,
        affinity=of.affinity,
        node_selector=of.node_selector,
        topology_spread_constraints=of.topology_spread_constraints,
    )


def namespace(name: str, **labels: str) -> PartialObject:
    """Return a namespace with labels."""
    return PartialObject(metadata=ObjectMeta(name=name, labels=labels))


LAUNCHER_PODS = LabelSelector({"role": "launcher"})


def spread_constraint(key: str, skew: int = 1) -> TopologySpreadConstraint:
    """Return a topology spread constraint over pods with the label app=web."""
    return TopologySpreadConstraint(key, "DoNotSchedule", skew, label_selector=WEB_PODS)


def nodes_in_leaves_and_racks(*of: tuple[str, str], gpus: int = 8) -> Driver:
    """Return a driver with nodes n1, n2, … at (leaf, rack)."""
    return Driver(
        [
            make_node(f"n{number}", leaf, gpus=gpus, labels={HOSTNAME: f"n{number}", "rack": rack})
            for number, (leaf, rack) in enumerate(of, 1)
        ]
    )
