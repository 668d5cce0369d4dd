"""The policy of the docs limits which PriorityClass a tenant gives to a PodGroup, as no ResourceQuota does."""

import asyncio
import re
import time
from collections.abc import Iterator

import pytest
import yaml

from tests.controlplane import ControlPlane
from tests.crds import native_pod_group

from .api import Api, ApiError, Json
from .cluster import ROOT
from .conftest import ALPHA, GATES

pytestmark = pytest.mark.only("real")
DENIED = "a PodGroup of this namespace may have the PriorityClass batch only"
IN_FORCE_SECONDS = 30.0


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane of this module's own, whose PodGroups have a priority."""
    with ControlPlane(feature_gates={**GATES, "WorkloadAwarePreemption": True}, runtime_config=ALPHA) as plane:
        yield plane


def policies_of_docs() -> list[Json]:
    page = (ROOT / "docs/how-to/pod-groups.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (block,) = (block for block in blocks if "ValidatingAdmissionPolicy" in block)
    return list(yaml.safe_load_all(block))


async def created(api: Api, name: str, namespace: str, cls: str) -> str:
    """Create a PodGroup with a PriorityClass; return the class that it has, `DENIED`, or why else it was refused."""
    try:
        group = await api.create("podgroups", native_pod_group(name, 2, namespace, priorityClassName=cls))
    except ApiError as error:
        return DENIED if DENIED in str(error) else str(error)
    return str(group["spec"].get("priorityClassName"))


async def comes_to(api: Api, namespace: str, cls: str, expected: str) -> None:
    """Create PodGroups until the answer is as expected: admission learns of classes and policies a moment later."""
    deadline = time.monotonic() + IN_FORCE_SECONDS
    while (answer := await created(api, f"group-{time.monotonic_ns()}", namespace, cls)) != expected:
        assert time.monotonic() < deadline, answer
        await asyncio.sleep(0.5)


async def test_the_policy_of_the_docs_limits_the_priority_of_pod_groups(plane: ControlPlane) -> None:
    policy, binding = policies_of_docs()
    async with Api(plane.kubeconfig) as api:
        for name, labels in (("tenant-a", {"tenant": "a"}), ("operators", {})):
            await api.create("namespaces", {"kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        for name, value in (("batch", 0), ("high", 1000)):
            await api.create("priorityclasses", {"metadata": {"name": name}, "value": value})
        await comes_to(api, "tenant-a", "high", "high")
        await comes_to(api, "tenant-a", "batch", "batch")
        await api.create("validatingadmissionpolicies", policy)
        await api.create("validatingadmissionpolicybindings", binding)
        await comes_to(api, "tenant-a", "high", DENIED)
        assert await created(api, "batch", "tenant-a", "batch") == "batch"
        assert await created(api, "none", "tenant-a", "") == "None"
        assert await created(api, "high", "operators", "high") == "high"
