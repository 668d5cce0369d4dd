"""manifests/: what is applied to a cluster agrees with the code, with itself and with what is promised."""

import re
from pathlib import Path
from typing import Any

import pytest

import topo_scheduler
from topo_scheduler.api.config import CONFIG_MAP, load_configuration
from topo_scheduler.api.process import SCHEDULER_NAME, MetricsSettings, SchedulerConfig
from topo_scheduler.cli.run import command, with_flags
from topo_scheduler.kernels.cache import OWN_VARIABLE
from topo_scheduler.observability.metrics import Metrics, Snapshot

from .dockerfile import read_dockerfile
from .manifests import (
    BASE,
    EXAMPLES,
    MANIFESTS,
    ROOT,
    Object,
    by_identity,
    container,
    identity,
    kustomization,
    one,
    read,
    render,
    resources,
)

INSTALL = MANIFESTS / "install.yaml"
DEV_DEPLOYMENT = MANIFESTS / "overlays" / "dev" / "deployment.yaml"
FLAGS_OF_METRICS = ("metrics_tls", "metrics_authorization")
NAMESPACED = {
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "ConfigMap",
    "Deployment",
    "Service",
    "PodDisruptionBudget",
    "NetworkPolicy",
}
OVERLAYS = sorted(path.parent for path in (MANIFESTS / "overlays").glob("*/kustomization.yaml"))


@pytest.fixture(scope="module")
def objects() -> list[Object]:
    """Everything that ``kubectl apply -k manifests`` applies, rendered where that is possible."""
    return render(MANIFESTS) or resources(MANIFESTS)


def _pod(objects: list[Object]) -> dict[str, Any]:
    spec: dict[str, Any] = one(objects, "Deployment")["spec"]["template"]["spec"]
    return spec


# ------------------------------------------------------------------ rendering


def test_every_file_of_the_base_is_used() -> None:
    assert sorted(kustomization(BASE)["resources"]) == sorted(
        path.name for path in BASE.glob("*.yaml") if path.name != "kustomization.yaml"
    )


def test_the_base_is_what_its_files_say() -> None:
    """So that install.yaml can be checked, and the files read, without kustomize."""
    for folder in (MANIFESTS, BASE):
        assert set(kustomization(folder)) == {"apiVersion", "kind", "resources"}
    rendered = render(MANIFESTS)
    if rendered is not None:
        assert by_identity(rendered) == by_identity(resources(MANIFESTS))


def test_install_yaml_is_up_to_date() -> None:
    assert by_identity(read(INSTALL)) == by_identity(render(MANIFESTS) or resources(MANIFESTS)), (
        "render it again, below its first comment: kubectl kustomize manifests"
    )


def test_objects_are_all_of_one_installation(objects: list[Object]) -> None:
    for item in objects:
        assert item["metadata"]["labels"]["app"] == "topology-scheduler", identity(item)
        namespace = "kube-system" if item["kind"] in NAMESPACED else None
        assert item["metadata"].get("namespace") == namespace, identity(item)


@pytest.mark.parametrize("folder", OVERLAYS, ids=lambda folder: folder.name)
def test_overlays_build_on_the_base(folder: Path) -> None:
    base = by_identity(resources(BASE))
    assert kustomization(folder)["resources"][0] == "../../base"
    for patch in kustomization(folder).get("patches", []):
        for item in read(folder / patch["path"]):
            assert identity(item) in base, "a patch of something that is not there"
    rendered = render(folder)
    if rendered is not None:
        assert {identity(item) for item in rendered} >= base.keys() - {
            identity(item)
            for patch in kustomization(folder).get("patches", [])
            for item in read(folder / patch["path"])
            if item.get("$patch") == "delete"
        }


def test_dev_has_one_replica_that_needs_no_lease() -> None:
    rendered = render(MANIFESTS / "overlays" / "dev")
    patched = rendered or read(MANIFESTS / "overlays" / "dev" / "deployment.yaml")
    deployment = one(patched, "Deployment")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"]["type"] == "Recreate"
    assert "--leader-elect=false" in container(patched)["args"]
    if rendered is not None:
        assert not any(item["kind"] == "PodDisruptionBudget" for item in rendered)
        assert container(rendered)["image"] == "topo-scheduler:dev"
        assert container(rendered)["securityContext"] == container(resources(BASE))["securityContext"]


def test_monitoring_scrapes_the_service(objects: list[Object]) -> None:
    (monitor,) = read(MANIFESTS / "overlays" / "monitoring" / "servicemonitor.yaml")
    service = one(objects, "Service")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= service["metadata"]["labels"].items()
    assert monitor["metadata"]["namespace"] == service["metadata"]["namespace"], "it selects in its own namespace only"
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    assert monitor["spec"]["jobLabel"] in service["metadata"]["labels"]
    assert endpoint["path"] == "/metrics"
    assert endpoint["scheme"] == "https"
    assert endpoint["bearerTokenFile"] == "/var/run/secrets/kubernetes.io/serviceaccount/token"
    assert endpoint["tlsConfig"] == {"insecureSkipVerify": True}, "of a certificate that is made at the start"
    (binding,) = read(MANIFESTS / "overlays" / "monitoring" / "metrics-reader.yaml")
    (reader,) = binding["subjects"]
    role = one(objects, "ClusterRole", binding["roleRef"]["name"])
    assert role["rules"] == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    (rule,) = one(objects, "NetworkPolicy")["spec"]["ingress"]
    (source,) = rule["from"]
    labels = {"kubernetes.io/metadata.name": reader["namespace"]}
    assert source == {"namespaceSelector": {"matchLabels": labels}}, "where Prometheus is, and nowhere else"


def test_metrics_are_for_authorized_clients_and_by_tls(objects: list[Object]) -> None:
    """By flags, so that the probes work with every ConfigMap, such as one that does not name metrics."""
    shown = load_configuration(one(objects, "ConfigMap", CONFIG_MAP)["data"])
    assert shown.scheduler.metrics == MetricsSettings(), "a flag would override it in silence"
    for items in (objects, render(MANIFESTS / "overlays" / "dev") or read(DEV_DEPLOYMENT)):
        flags = command.make_context("run", container(items)["args"][1:]).params
        metrics = with_flags(shown, {name: flags[name] for name in FLAGS_OF_METRICS}).scheduler.metrics
        assert (metrics.tls.enabled, metrics.authorization) == (True, "tokenReview")


def test_the_alert_on_leaders_is_per_scheduler() -> None:
    """A second scheduler in the cluster must not hide that the first has no leader."""
    (rule,) = read(MANIFESTS / "overlays" / "monitoring" / "prometheusrule.yaml")
    (alert,) = (entry for entry in rule["spec"]["groups"][0]["rules"] if entry["alert"] == "TopologySchedulerNoLeader")
    assert alert["expr"].startswith("sum by (job) ")


def test_alerts_speak_of_metrics_that_exist() -> None:
    exposed = set()
    for family in Metrics(Snapshot).registry.collect():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        exposed |= {family.name + suffix for suffix in suffixes}
    (rule,) = read(MANIFESTS / "overlays" / "monitoring" / "prometheusrule.yaml")
    (group,) = rule["spec"]["groups"]
    for alert in group["rules"]:
        asked = set(re.findall(r"\b(?:topology|scheduler)_\w+", alert["expr"]))
        assert asked <= exposed, alert["alert"]
        assert asked or 'up{job="topology-scheduler"}' in alert["expr"]
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert {"summary", "description"} == alert["annotations"].keys()


# --------------------------------------------------------- agreement with code


def test_the_config_map_is_the_example(objects: list[Object]) -> None:
    config_map = one(objects, "ConfigMap", CONFIG_MAP)
    example = EXAMPLES / "10-scheduler-config.yaml"
    assert config_map["data"] == {"config.yaml": example.read_text()}, "both are one text; change them together"
    loaded = load_configuration(config_map["data"])
    assert loaded.scheduler.scheduler_name == SCHEDULER_NAME


def test_the_deployment_starts_the_command_with_the_mounted_configuration(objects: list[Object]) -> None:
    spec = _pod(objects)
    box = container(objects)
    assert "command" not in box, "the image's entrypoint"
    assert box["args"][:2] == ["run", "--config=/etc/topology-scheduler"]
    (volume,) = (v for v in spec["volumes"] if v.get("configMap", {}).get("name") == CONFIG_MAP)
    (mount,) = (m for m in box["volumeMounts"] if m["name"] == volume["name"])
    assert mount["mountPath"] == "/etc/topology-scheduler"
    assert mount["readOnly"] is True
    assert "subPath" not in mount, "a subPath mount is never updated"


def test_the_image_is_this_version_and_the_dockerfile_builds_it(objects: list[Object]) -> None:
    image = container(objects)["image"]
    assert image == f"topo-scheduler:{topo_scheduler.__version__}"
    assert f"docker build -t {image} ." in (ROOT / "Dockerfile").read_text()


def test_one_port_everywhere(objects: list[Object]) -> None:
    port = SchedulerConfig().metrics.port
    assert [(p["name"], p["containerPort"]) for p in container(objects)["ports"]] == [("https", port)]
    (service_port,) = one(objects, "Service")["spec"]["ports"]
    assert (service_port["port"], service_port["targetPort"]) == (port, "https")
    (rule,) = one(objects, "NetworkPolicy")["spec"]["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": port}]
    exposed = [i.words() for i in read_dockerfile(ROOT / "Dockerfile")[-1].instructions if i.name == "EXPOSE"]
    assert exposed == [[str(port)]]


def test_probes_ask_what_they_should(objects: list[Object]) -> None:
    box = container(objects)
    asked = {probe: box[probe]["httpGet"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert asked == {
        "startupProbe": {"path": "/livez", "port": "https", "scheme": "HTTPS"},
        "livenessProbe": {"path": "/livez", "port": "https", "scheme": "HTTPS"},
        "readinessProbe": {"path": "/readyz", "port": "https", "scheme": "HTTPS"},
    }


def test_binds_in_flight_have_time_to_finish(objects: list[Object]) -> None:
    assert _pod(objects)["terminationGracePeriodSeconds"] > SchedulerConfig().client_connection.bind_timeout


def test_kernels_are_kept_in_the_one_writable_folder(objects: list[Object]) -> None:
    box = container(objects)
    values = {item["name"]: item["value"] for item in box["env"]}
    (volume,) = (v for v in _pod(objects)["volumes"] if "emptyDir" in v)
    (mount,) = (m for m in box["volumeMounts"] if m["name"] == volume["name"])
    assert values == {OWN_VARIABLE: mount["mountPath"]}


# ------------------------------------------------------------------- promises


def test_the_pod_has_no_privilege(objects: list[Object]) -> None:
    spec = _pod(objects)
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert container(objects)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & spec.keys()
    assert all(volume.keys() & {"configMap", "emptyDir"} for volume in spec["volumes"])


def test_the_image_runs_as_a_number() -> None:
    users = [i.text for i in read_dockerfile(ROOT / "Dockerfile")[-1].instructions if i.name == "USER"]
    assert len(users) == 1
    uid, _, gid = users[0].partition(":")
    assert int(uid) > 0, "runAsNonRoot can neither look a name up nor accept 0"
    assert int(gid) > 0


def test_it_fits_its_budget_and_outlives_others(objects: list[Object]) -> None:
    box = container(objects)
    assert box["resources"]["limits"] == {"cpu": "1", "memory": "512Mi"}
    assert box["resources"]["requests"]["memory"] == box["resources"]["limits"]["memory"]
    assert _pod(objects)["priorityClassName"] == "system-cluster-critical"


def test_a_replica_stands_by_elsewhere(objects: list[Object]) -> None:
    deployment = one(objects, "Deployment")
    spec = _pod(objects)
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["replicas"] == 2
    assert deployment["spec"]["selector"]["matchLabels"] == labels == {"app": "topology-scheduler"}
    (term,) = spec["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert term["podAffinityTerm"]["labelSelector"]["matchLabels"] == labels
    (spread,) = spec["topologySpreadConstraints"]
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway", "a cluster of one node or zone must get both replicas"
    assert spread["labelSelector"]["matchLabels"] == labels
    budget = one(objects, "PodDisruptionBudget")["spec"]
    assert budget == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
    assert one(objects, "Service")["spec"]["selector"] == labels
    assert one(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels


def test_it_may_stand_on_a_control_plane_node(objects: list[Object]) -> None:
    assert {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"} in _pod(
        objects
    )["tolerations"]


def test_the_scheduler_does_not_schedule_itself(objects: list[Object]) -> None:
    assert "schedulerName" not in _pod(objects)
