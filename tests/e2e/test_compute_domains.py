"""Pods of one ComputeDomain, end to end: they share an NVLink domain, which the label of their nodes names."""

from typing import Final

from . import objects
from .api import Json
from .cluster import Cluster, nodes_of
from .conftest import StartReplica
from .device_objects import CLASS, asking, by_template, slice_of, template

CLIQUE: Final = "nvidia.com/gpu.clique"


def channel(domain: str) -> Json:
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomainChannelConfig",
        "domainID": domain,
        "allocationMode": "Single",
    }
    opaque = {"driver": "compute-domain.nvidia.com", "parameters": parameters}
    return asking(1, config=[{"requests": ["gpus"], "opaque": opaque}])


async def add_cliques(cluster: Cluster, cliques: dict[str, int]) -> dict[str, str]:
    """Add nodes with a channel each; return the NVLink domain of each."""
    clique_of = {f"{clique}-{number}": clique for clique, count in cliques.items() for number in range(count)}
    for name, clique in clique_of.items():
        label = {CLIQUE: f"7f6a.{clique}"} if clique != "plain" else {}
        await cluster.apply(objects.node(name, spine="s1", leaf=f"l-{clique}", labels=label))
    await cluster.apply(CLASS, *(slice_of(name, 1) for name in clique_of))
    return clique_of


async def test_gangs_of_one_compute_domain_share_an_nvlink_domain(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    clique_of = await add_cliques(cluster, {"plain": 5, "c1": 2, "c2": 4})
    await start_replica()
    await cluster.apply(template("cd", channel("0d5a")), objects.gang("training", 3, 0, **by_template("cd")))
    bound = await cluster.wait_bound("training", 3)
    assert {clique_of[node] for node in nodes_of(bound)} == {"c2"}
    (claim, *_) = await cluster.api.list("resourceclaims", "default")
    (config,) = claim["status"]["allocation"]["devices"]["config"]
    assert config["opaque"]["parameters"]["domainID"] == "0d5a"
    await cluster.apply(objects.pod("joins", **by_template("cd")))
    assert {clique_of[node] for node in nodes_of(await cluster.wait_bound("joins", 1))} == {"c2"}
    await cluster.apply(objects.pod("lacks", **by_template("cd")))
    (lacks,) = await cluster.wait_pods("lacks", 1)
    await cluster.wait_note(lacks, "The ComputeDomain of claim template default/cd has pods in NVLink domain 7f6a.c2")
