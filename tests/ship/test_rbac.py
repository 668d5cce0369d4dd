"""Least privilege: every verb on every resource is one that the scheduler needs, in its narrowest form."""

from collections.abc import Iterator
from typing import NamedTuple

from topo_scheduler.api.groups import PLURAL, GroupApi
from topo_scheduler.api.process import LeaderElection
from topo_scheduler.kube.connection.resources import OWNER_KINDS

from .manifests import BASE, MANIFESTS, Object, one, read, resources

READ = {"get", "list", "watch"}
WRITES = {
    ("", "pods/binding", "create"),
    ("", "pods/status", "patch"),
    ("", "pods/eviction", "create"),
    ("scheduling.k8s.io", "podgroups/status", "patch"),
    ("topology.scheduler", "migrations", "create"),
    ("topology.scheduler", "migrations", "delete"),
    ("topology.scheduler", "migrations/status", "update"),
    ("", "persistentvolumes", "patch"),
    ("", "persistentvolumeclaims", "patch"),
    ("resource.k8s.io", "resourceclaims", "create"),
    ("resource.k8s.io", "resourceclaims", "patch"),
    ("resource.k8s.io", "resourceclaims", "update"),
    ("resource.k8s.io", "resourceclaims", "delete"),
    ("resource.k8s.io", "resourceclaims/status", "patch"),
    ("resource.k8s.io", "resourceclaims/binding", "patch"),
    ("events.k8s.io", "events", "create"),
    ("events.k8s.io", "events", "patch"),
    ("authentication.k8s.io", "tokenreviews", "create"),
    ("authorization.k8s.io", "subjectaccessreviews", "create"),
    ("coordination.k8s.io", "leases", "create"),
    ("coordination.k8s.io", "leases", "update"),
}
READS = {
    ("", "nodes"),
    ("", "pods"),
    ("", "namespaces"),
    ("", "persistentvolumes"),
    ("", "persistentvolumeclaims"),
    ("storage.k8s.io", "storageclasses"),
    ("storage.k8s.io", "csinodes"),
    ("storage.k8s.io", "csidrivers"),
    ("storage.k8s.io", "csistoragecapacities"),
    ("storage.k8s.io", "volumeattachments"),
    ("resource.k8s.io", "deviceclasses"),
    ("resource.k8s.io", "resourceslices"),
    ("resource.k8s.io", "resourceclaims"),
    ("topology.node.k8s.io", "noderesourcetopologies"),
    ("policy", "poddisruptionbudgets"),
    ("coordination.k8s.io", "leases"),
    ("topology.scheduler", "migrations"),
    *((str(api), PLURAL) for api in GroupApi),
}
OWNERS = {(kind.group, kind.plural) for kind in OWNER_KINDS}
METRICS_READER = "topology-scheduler-metrics-reader"
"""The one role that is not for the scheduler, but for those who read its metrics."""
AGGREGATED = {"topology.scheduler/aggregate-to-owners": "true"}


class Grant(NamedTuple):
    """One permission."""

    role: str
    kind: str
    group: str
    resource: str
    verb: str
    names: tuple[str, ...]


def _grants(items: list[Object]) -> Iterator[Grant]:
    for item in items:
        if item["kind"] not in ("Role", "ClusterRole"):
            continue
        for rule in item.get("rules", []):
            if item["metadata"]["name"] == METRICS_READER:
                assert rule == {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}
                continue
            assert set(rule) <= {"apiGroups", "resources", "verbs", "resourceNames"}, "no nonResourceURLs"
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        names = tuple(rule.get("resourceNames", ()))
                        yield Grant(item["metadata"]["name"], item["kind"], group, resource, verb, names)


GRANTS = list(_grants(resources(BASE)))
FURTHER = read(MANIFESTS / "owner-kinds.yaml")


def test_no_wildcards() -> None:
    for grant in [*GRANTS, *_grants(FURTHER)]:
        assert "*" not in (grant.group, grant.resource, grant.verb), grant


def test_no_grant_beyond_what_is_needed() -> None:
    for grant in GRANTS:
        if grant.verb in READ:
            assert (grant.group, grant.resource) in READS | OWNERS, grant
        else:
            assert (grant.group, grant.resource, grant.verb) in WRITES, grant


def test_nothing_needed_is_missing_and_nothing_is_granted_twice() -> None:
    assert {(g.group, g.resource, g.verb) for g in GRANTS if g.verb not in READ} == WRITES
    assert {(g.group, g.resource) for g in GRANTS if g.verb in READ} == READS | OWNERS
    for group, resource in READS | OWNERS:
        verbs = sorted(g.verb for g in GRANTS if (g.group, g.resource) == (group, resource) and g.verb in READ)
        assert verbs == (["get"] if resource == "leases" else ["get", "list", "watch"])
    granted = [(g.group, g.resource, g.verb) for g in GRANTS]
    assert len(set(granted)) == len(granted)


def test_what_must_never_be_granted() -> None:
    for grant in [*GRANTS, *_grants(FURTHER)]:
        own = (grant.group, grant.resource, grant.verb) in {
            ("topology.scheduler", "migrations", "delete"),
            ("resource.k8s.io", "resourceclaims", "delete"),  # those that it made for extended resources
        }
        assert own or grant.verb not in {"delete", "deletecollection", "escalate", "bind", "impersonate"}, grant
        assert grant.resource not in {
            "secrets",
            "configmaps",
            "serviceaccounts",
            "serviceaccounts/token",
            "pods/exec",
            "pods/attach",
            "pods/portforward",
            "pods/ephemeralcontainers",
            "nodes/proxy",
            "nodes/status",
        }, grant
        if grant.resource in ("pods", "nodes"):
            assert grant.verb in READ, grant


def test_the_lease_is_held_by_name_in_one_namespace() -> None:
    leases = [grant for grant in GRANTS if grant.resource == "leases"]
    defaults = LeaderElection()
    assert all(grant.kind == "Role" for grant in leases)
    role = one(resources(BASE), "Role")
    assert role["metadata"]["namespace"] == defaults.resource_namespace
    for grant in leases:
        assert grant.names == (() if grant.verb == "create" else (defaults.resource_name,)), grant
    assert all(not grant.names for grant in GRANTS if grant.resource != "leases")


def test_every_role_is_bound_to_the_one_service_account() -> None:
    items = resources(BASE)
    account = one(items, "ServiceAccount")["metadata"]
    bound = set()
    for binding in (item for item in items if item["kind"].endswith("RoleBinding") or item["kind"] == "RoleBinding"):
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
        ]
        assert binding["roleRef"]["kind"] == binding["kind"].removesuffix("Binding")
        bound.add((binding["roleRef"]["kind"], binding["roleRef"]["name"]))
    roles = {
        (item["kind"], item["metadata"]["name"])
        for item in items
        if item["kind"] in ("Role", "ClusterRole") and not AGGREGATED.items() <= item["metadata"]["labels"].items()
    }
    roles.remove(("ClusterRole", METRICS_READER))
    assert bound == roles, "bound or aggregated, each exactly once"
    deployment = one(items, "Deployment")
    assert deployment["spec"]["template"]["spec"]["serviceAccountName"] == account["name"]


def test_owner_kinds_are_added_by_label() -> None:
    aggregate = one(resources(BASE), "ClusterRole", "topology-scheduler-owners")
    assert aggregate["aggregationRule"] == {"clusterRoleSelectors": [{"matchLabels": AGGREGATED}]}
    assert "rules" not in aggregate, "applying it again must not take away what the control plane filled in"
    for item in [one(resources(BASE), "ClusterRole", "topology-scheduler-owners-builtin"), *FURTHER]:
        assert item["kind"] == "ClusterRole"
        assert AGGREGATED.items() <= item["metadata"]["labels"].items()
        # Built-in kinds are watched; others are asked for one by one.
        assert {grant.verb for grant in _grants([item])} == ({"get"} if item in FURTHER else READ)
    assert {(grant.group, grant.resource) for grant in _grants(FURTHER)} >= {
        ("jobset.x-k8s.io", "jobsets"),
        ("ray.io", "rayclusters"),
    }
