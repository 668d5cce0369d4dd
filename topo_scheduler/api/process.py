"""`SchedulerConfig` and its parts: how the process runs. Changes need a restart."""

from typing import Annotated, Any, Final, Literal

from pydantic import (
    Field,
    model_validator,
)

from topo_scheduler.api.labels import (
    BANDWIDTH_LABELS,
    FAMILIES,
    GPU_MODEL_LABELS,
    GPU_RESOURCES,
    LEVELS,
    NETWORK_FAMILIES,
    RAIL_LABELS,
)
from topo_scheduler.api.models import Metadata, Model, Seconds
from topo_scheduler.api.names import DnsLabel, DnsSubdomain, FilePath, HostAddress, QualifiedName
from topo_scheduler.api.recording import LEAST_BYTES, AuditLog, Bytes, Recording
from topo_scheduler.api.scoring import SharedSpec
from topo_scheduler.api.text import quoted

API_VERSION: Final = "topology.scheduler/v1alpha1"
SCHEDULER_NAME: Final = "topology-aware-scheduler"


class LeaderElection(Model):
    """Leader election by a Lease, with the names and defaults of kube-scheduler."""

    leader_elect: bool = True
    """Whether to acquire the Lease before scheduling. Turn off only if exactly one replica runs."""
    lease_duration: Seconds = 15.0
    """How long other replicas wait after the last renewal before they take over."""
    renew_deadline: Seconds = 10.0
    """How long the leader retries a renewal before it stops leading."""
    retry_period: Seconds = 2.0
    """Pause between attempts to acquire or renew the Lease."""
    resource_name: DnsSubdomain = "topology-scheduler"
    """Name of the Lease."""
    resource_namespace: DnsLabel = "kube-system"
    """Namespace of the Lease."""

    @model_validator(mode="after")
    def _ordered(self) -> "LeaderElection":
        if not self.lease_duration > self.renew_deadline > 1.2 * self.retry_period:
            durations = f"{self.lease_duration:g}s, {self.renew_deadline:g}s and {self.retry_period:g}s"
            raise ValueError(f"leaseDuration > renewDeadline > 1.2 x retryPeriod must hold; they are {durations}")
        return self


class ClientConnection(Model):
    """Connection to the API server, and the number of concurrent requests."""

    kubeconfig: FilePath = ""
    """Path of a kubeconfig. If empty, the in-cluster configuration is used, else the default kubeconfig."""
    context: str = ""
    """Context of the kubeconfig. If empty, its current context is used."""
    max_binds_in_flight: Annotated[int, Field(ge=1, le=1000)] = 48
    """Maximum number of concurrent Binding requests, and up to 48 more while as many hang. In measurements, more
    requests only queued in the API server."""
    bind_timeout: Seconds = 20.0
    """Maximum time of one bind with its retries. A bind that takes longer is repeated later. One attempt gets two
    fifths of this time, at least 4 s if it is that long: choose more than a slow API server needs for an answer."""


class Level(Model):
    """One level of the fabric, and the node labels that name its domains."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=32)]
    """Name of the level, e.g. ``spine``."""
    labels: Annotated[tuple[QualifiedName, ...], Field(min_length=1)]
    """Label keys, in order of precedence: the first key that the node carries counts."""


class Rails(Model):
    """Labels of rail-optimised fabrics. Nodes whose NICs connect to the same leaf switches form one scalable unit."""

    labels: tuple[QualifiedName, ...] = RAIL_LABELS
    """Label keys, each with the name of the leaf switch of one rail. With an empty list no rails are read."""
    level: str = "leaf"
    """Level of the fabric at which a unit is a domain: the unit replaces the domain that other labels name."""


class FabricSettings(Model):
    """Position of nodes in the network, read from node labels."""

    families: tuple[str, ...] = NETWORK_FAMILIES
    """Predefined label families, tried in order for each node. ``kubernetes`` adds region and zone as outer levels."""
    levels: tuple[Level, ...] = ()
    """Custom levels, outermost first. If set, they replace ``families``."""
    rails: Rails = Rails.defaults()
    """Labels with the leaf switch of each rail. A node with any of them belongs to its scalable unit: these labels
    override all other labels of a leaf."""
    accelerators: tuple[Level, ...] | None = None
    """Custom levels of accelerator domains (NVLink domains and similar), outermost first. If set, they replace the
    predefined ``accelerator-domain`` and ``accelerator-sub-domain``. With an empty list no such levels are read."""

    @model_validator(mode="after")
    def _known(self) -> "FabricSettings":
        for name in self.families:
            if name not in FAMILIES:
                raise ValueError(f"unknown family {quoted(name)}; known are {', '.join(FAMILIES)}")
        names = [level.name for level in self.levels]
        if len(set(names)) != len(names):
            raise ValueError("two levels have one name")
        accelerator_levels = [level.name for level in self.accelerators or ()]
        if duplicate := next(
            (name for name in accelerator_levels if accelerator_levels.count(name) > 1 or name in (names or LEVELS)),
            None,
        ):
            raise ValueError(f"accelerators: another level is called {duplicate!r} already; a name means one level")
        # Default rails are not checked, even if they are written out, as records have them.
        if self.rails != Rails() and self.rails.level not in (names or LEVELS):
            raise ValueError(
                f"rails: no level is called {quoted(self.rails.level)}; there are {', '.join(names or LEVELS)}"
            )
        return self


class Logging(Model):
    """Level and format of logs."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum severity of log lines."""
    format: Literal["json", "text"] = "json"
    """``json``: one JSON object per line. ``text``: lines for people."""


class ServingTLS(Model):
    """TLS for metrics and health endpoints. Off by default; the manifests turn it on."""

    enabled: bool = False
    """Whether to serve HTTPS. Kubelet probes then need `scheme: HTTPS`; the kubelet does not verify the certificate."""
    cert_file: FilePath = ""
    """PEM file with the certificate and its chain, e.g. in a mounted Secret. The scheduler reloads it when it rotates.
    If empty, the scheduler generates a certificate at start, which clients can't verify."""
    key_file: FilePath = ""
    """PEM file with the private key of `certFile`."""

    @model_validator(mode="after")
    def _has_both_files(self) -> "ServingTLS":
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("certFile and keyFile go together; give both, or none for a certificate made at the start")
        if self.cert_file and not self.enabled:
            raise ValueError("certFile is given, but TLS is off; set enabled: true")
        return self


class MetricsSettings(Model):
    """Endpoints for metrics and health, and access to them."""

    bind_address: HostAddress = "0.0.0.0"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 10261
    """Port for /metrics, /healthz, /livez and /readyz; 0 picks a free port."""
    tls: ServingTLS = ServingTLS.defaults()
    authorization: Literal["none", "tokenReview"] = "none"
    """Access to /metrics. ``none``: all clients that reach the port. ``tokenReview``: clients whose token may ``get``
    the nonResourceURL /metrics. The API server checks that by TokenReview and SubjectAccessReview; it needs TLS. Health
    endpoints are open to all clients in both cases. The manifests set ``tokenReview``."""

    @model_validator(mode="after")
    def _secret(self) -> "MetricsSettings":
        if self.authorization == "tokenReview" and not self.tls.enabled:
            raise ValueError(
                "authorization: tokenReview needs TLS, as tokens must not travel in clear text; set tls.enabled: true"
            )
        return self


class PendingPodsSettings(Model):
    """Limits on the pending pods that the scheduler reads at once. It reads pods beyond them later, oldest first."""

    max_per_namespace: Annotated[int, Field(ge=1, le=1_000_000)] = 20_000
    """Maximum pending pods of one namespace. A larger gang is never complete, so raise this limit and ``memory``
    together."""
    memory: Annotated[Bytes, Field(ge=LEAST_BYTES)] = 128 << 20
    """Maximum memory of all pending pods together in bytes, e.g. ``320Mi``; a plain pod counts 8 KiB. If pods need
    more, all namespaces get equal shares. The container's memory limit must leave an additional 300 MiB, and more above
    5,000 nodes."""


class PluginConfig(Model):
    """A plugin to load, by the name of its entry point."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", max_length=63)]
    """Name of its entry point in the group ``topo_scheduler.plugins``."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the plugin, as the plugin documents them."""


class SchedulerConfig(Model):
    """How the scheduler process runs. Changes take effect at its next start."""

    api_version: Literal["topology.scheduler/v1alpha1"] = API_VERSION
    kind: Literal["SchedulerConfig"] = "SchedulerConfig"
    metadata: Metadata = Field(default_factory=dict)
    """Metadata of any Kubernetes object; the scheduler ignores it."""
    spec: SharedSpec = SharedSpec.defaults()
    """Fields of a TopologySchedulerConfig that may also be set here. If both kinds set a field, the values must be
    equal."""
    scheduler_name: QualifiedName = SCHEDULER_NAME
    """The scheduler places pods with this ``spec.schedulerName``."""
    leader_election: LeaderElection = LeaderElection.defaults()
    client_connection: ClientConnection = ClientConnection.defaults()
    pod_initial_backoff_seconds: Seconds = 1.0
    """Backoff before the second attempt of a gang whose bind failed. Each further failure doubles it."""
    pod_max_backoff_seconds: Seconds = 10.0
    """Maximum backoff after a failed bind."""
    pending_pods: PendingPodsSettings = PendingPodsSettings.defaults()
    volume_bind_timeout: Seconds = 600.0
    """How long the scheduler waits for the volumes of a placed pod to be provisioned and bound. After that, it decides
    on the pod again."""
    gpu_resources: Annotated[tuple[QualifiedName, ...], Field(min_length=1)] = GPU_RESOURCES
    """Extended resources that count as GPUs."""
    gpu_model_labels: tuple[QualifiedName, ...] = GPU_MODEL_LABELS
    """Node labels with the GPU model, in order of precedence: the first label that the node carries counts."""
    bandwidth_labels: tuple[QualifiedName, ...] = BANDWIDTH_LABELS
    """Node labels with the network bandwidth of the node, e.g. ``200Gb``, in order of precedence."""
    topology: FabricSettings = FabricSettings.defaults()
    logging: Logging = Logging.defaults()
    metrics: MetricsSettings = MetricsSettings.defaults()
    record: Recording = Recording.defaults()
    audit_log: AuditLog = AuditLog.defaults()
    plugins: tuple[PluginConfig, ...] = ()
    """Plugins to load, in the order in which their filters run. If a plugin can't be loaded, the process does not
    start. Installed plugins that are not listed here are not loaded."""
    plugin_timeout: Seconds = 1.0
    """Maximum time that one decision spends in all plugins together, and one Binding in one plugin. A plugin that takes
    longer is disabled for some time. At most a fifth of ``renewDeadline``."""

    @model_validator(mode="after")
    def _plugins(self) -> "SchedulerConfig":
        names = [plugin.name for plugin in self.plugins]
        if duplicate := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"plugin {duplicate} is named twice; keep one")
        limit = self.leader_election.renew_deadline / 5
        if self.plugins and self.plugin_timeout > limit:
            raise ValueError(
                f"pluginTimeout is {self.plugin_timeout:g}s, and may be at most a fifth of renewDeadline, {limit:g}s:"
                " the Lease must be renewed meanwhile"
            )
        return self
