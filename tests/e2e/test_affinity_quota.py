"""A team's anti-affinity closes nodes to other teams, unless a quota forbids terms about other namespaces."""

import re
from typing import Any, Final

import pytest
import yaml

from . import objects
from .api import ApiError, Json
from .cluster import ROOT, Cluster
from .replica import Replica

PAGE: Final = ROOT / "docs" / "how-to" / "share-a-cluster.md"
TEAM: Final = "e2e-team"


def repelling(name: str, **of: Any) -> Json:
    """A pod with required anti-affinity."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}, **of}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return objects.pod(name, namespace=TEAM, affinity=affinity)


@pytest.mark.only("real")
async def test_a_quota_keeps_the_anti_affinity_of_a_team_to_itself(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [1]})
    await cluster.add_namespace(TEAM)
    await cluster.api.create("pods", repelling("all", namespaceSelector={}), TEAM)
    await cluster.wait_bound("all", 1, namespace=TEAM)
    (other,) = await cluster.apply(objects.pod("other", 1))
    await cluster.wait_note(other, "didn't satisfy existing pods anti-affinity rules")
    await cluster.api.delete("pods", "all", TEAM, grace=0)
    await cluster.wait_bound("other", 1)
    (text,) = (block for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S) if "ResourceQuota" in block)
    quota = yaml.safe_load(text)
    quota["metadata"]["namespace"] = TEAM
    path = f"/api/v1/namespaces/{TEAM}/resourcequotas"
    await cluster.api.request("POST", path, quota)

    async def counted() -> bool:
        (quota_object,) = (await cluster.api.request("GET", path))["items"]
        return "used" in quota_object.get("status", {})

    await cluster.wait_until(counted, 30, "the quota is counted")
    with pytest.raises(ApiError, match="exceeded quota: own-affinity-only"):
        await cluster.api.create("pods", repelling("again", namespaceSelector={}), TEAM)
    await cluster.api.create("pods", repelling("own"), TEAM)
    await cluster.apply(objects.pod("another", 1))
    await cluster.wait_bound("another", 1)
    await cluster.api.request("DELETE", f"{path}/{quota['metadata']['name']}")
