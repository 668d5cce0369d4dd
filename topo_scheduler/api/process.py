"""How the process runs: `SchedulerConfig` and its parts. A change of these needs a restart."""

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
from topo_scheduler.api.recording import LEAST_BYTES, AuditLog, Bytes, Recording
from topo_scheduler.api.scoring import SharedSpec

API_VERSION: Final = "topology.scheduler/v1alpha1"
SCHEDULER_NAME: Final = "topology-aware-scheduler"


class LeaderElection(Model):
    """Leader election on a Lease, with kube-scheduler's names and defaults."""

    leader_elect: bool = True
    """Whether to take a Lease before scheduling. Off only where one replica is certain."""
    lease_duration: Seconds = 15.0
    """How long others wait after the last renewal before they take over."""
    renew_deadline: Seconds = 10.0
    """How long a leader tries to renew before it stops leading; less than the lease."""
    retry_period: Seconds = 2.0
    """Pause between attempts to take or renew the Lease."""
    resource_name: str = "topology-scheduler"
    """Name of the Lease."""
    resource_namespace: str = "kube-system"
    """Namespace of the Lease."""

    @model_validator(mode="after")
    def _ordered(self) -> "LeaderElection":
        if not self.lease_duration > self.renew_deadline > 1.2 * self.retry_period:
            raise ValueError("leaseDuration > renewDeadline > 1.2 x retryPeriod must hold")
        return self


class ClientConnection(Model):
    """How to reach the API server, and how hard to use it."""

    kubeconfig: str = ""
    """Path of a kubeconfig; empty means in-cluster, then the default kubeconfig."""
    context: str = ""
    """Context of the kubeconfig; empty means its current one."""
    max_binds_in_flight: Annotated[int, Field(ge=1, le=1000)] = 48
    """Bindings written at once. Measured: more does not bind faster, it only queues in the API server."""
    bind_timeout: Seconds = 20.0
    """How long one bind may take with its retries before it counts as failed."""


class Level(Model):
    """One level of the fabric and the node labels that name its domains; the first one present wins."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=32)]
    """What to call the level, e.g. ``spine``."""
    labels: Annotated[tuple[str, ...], Field(min_length=1)]
    """Label keys, tried in order."""


class Rails(Model):
    """Labels of rail-optimised fabrics. Nodes whose NICs hang on the same leaves form one unit, in the leaf's place."""

    labels: tuple[str, ...] = RAIL_LABELS
    """Label keys, each of which names the leaf switch of one rail. None are read where the list is empty."""
    level: str = "leaf"
    """The level that the units are domains of."""


class FabricSettings(Model):
    """Where nodes hang in the network, as told by their labels."""

    families: tuple[str, ...] = NETWORK_FAMILIES
    """Ready-made label families, tried in order for each node. ``kubernetes`` adds region and zone outside."""
    levels: tuple[Level, ...] = ()
    """Own levels, outermost first; when given, they replace the families."""
    rails: Rails = Rails.defaults()
    """Labels that tell the leaf of each rail. A node that has any hangs on its unit, whatever else tells a leaf."""
    accelerators: tuple[Level, ...] | None = None
    """Own levels of the second tree (NVLink domains and their like), outermost first; when given, they replace those
    that are known: ``accelerator-domain`` and ``accelerator-sub-domain``. An empty list reads none."""

    @model_validator(mode="after")
    def _known(self) -> "FabricSettings":
        for name in self.families:
            if name not in FAMILIES:
                raise ValueError(f"unknown family {name!r}; known are {', '.join(FAMILIES)}")
        names = [level.name for level in self.levels]
        if len(set(names)) != len(names):
            raise ValueError("two levels have one name")
        second = [level.name for level in self.accelerators or ()]
        if twice := next((name for name in second if second.count(name) > 1 or name in (names or LEVELS)), None):
            raise ValueError(f"accelerators: another level is called {twice!r} already; a name means one level")
        # Nothing is demanded of rails that nobody named, nor where defaults were written out, as records have them.
        if self.rails != Rails() and self.rails.level not in (names or LEVELS):
            raise ValueError(f"rails: no level is called {self.rails.level!r}; there are {', '.join(names or LEVELS)}")
        return self


class Logging(Model):
    """What is logged and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is written."""
    format: Literal["json", "text"] = "json"
    """One JSON object a line, or text for people."""


class ServingTLS(Model):
    """TLS of metrics and health. Off by default; the manifests switch it on."""

    enabled: bool = False
    """Serve HTTPS. Probes of the kubelet then need `scheme: HTTPS`; the kubelet verifies no certificate."""
    cert_file: str = ""
    """PEM file with the certificate and its chain, such as that of a mounted Secret; followed when it rotates. Empty:
    the scheduler makes a certificate of its own at its start, which clients can't verify."""
    key_file: str = ""
    """PEM file with the private key of `certFile`."""

    @model_validator(mode="after")
    def _both(self) -> "ServingTLS":
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("certFile and keyFile go together; give both, or none for a certificate made at the start")
        if self.cert_file and not self.enabled:
            raise ValueError("certFile is given, but TLS is off; set enabled: true")
        return self


class MetricsSettings(Model):
    """Where metrics and health are served, and to whom."""

    bind_address: str = "0.0.0.0"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 10261
    """Port for /metrics, /healthz, /livez and /readyz; 0 picks a free one."""
    tls: ServingTLS = ServingTLS.defaults()
    authorization: Literal["none", "tokenReview"] = "none"
    """Who may read /metrics. ``none``: everyone who reaches the port. ``tokenReview``: bearers of a token that may
    ``get`` the nonResourceURL /metrics, as the API server says by TokenReview and SubjectAccessReview. Needs TLS.
    Health is open to everyone either way. The manifests set ``tokenReview``."""

    @model_validator(mode="after")
    def _secret(self) -> "MetricsSettings":
        if self.authorization == "tokenReview" and not self.tls.enabled:
            raise ValueError(
                "authorization: tokenReview needs TLS, as tokens must not travel in clear text; set tls.enabled: true"
            )
        return self


class PendingPodsSettings(Model):
    """How many pending pods are read at once. Others stay outside, and come in as there is room, the oldest first."""

    most_per_namespace: Annotated[int, Field(ge=1, le=1_000_000)] = 20_000
    """Of one namespace. A gang that is larger is never complete, so raise this and ``memory`` together."""
    memory: Annotated[Bytes, Field(ge=LEAST_BYTES)] = 128 << 20
    """For all pending pods together, such as ``320Mi``; a plain one counts 10 KiB. Where they need more, namespaces
    have equal shares. The memory limit of the container must leave 300 MiB beside it, and more beyond 5,000 nodes."""


class PluginConfig(Model):
    """A plugin to load, by the name of its entry point."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", max_length=63)]
    """Name of its entry point in the group ``topo_scheduler.plugins``."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """What the plugin is given; the plugin says what may stand here."""


class SchedulerConfig(Model):
    """How the daemon runs. Changes take effect at its next start."""

    api_version: Literal["topology.scheduler/v1alpha1"] = API_VERSION
    kind: Literal["SchedulerConfig"] = "SchedulerConfig"
    metadata: Metadata = Field(default_factory=dict)
    """As of any object; it changes nothing."""
    spec: SharedSpec = SharedSpec.defaults()
    """Fields of a TopologySchedulerConfig that may also stand here. A field may stand in both with one value only."""
    scheduler_name: Annotated[str, Field(min_length=1, max_length=253)] = SCHEDULER_NAME
    """Pods with this ``spec.schedulerName`` are ours."""
    leader_election: LeaderElection = LeaderElection.defaults()
    client_connection: ClientConnection = ClientConnection.defaults()
    pod_initial_backoff_seconds: Seconds = 1.0
    """Pause before the second attempt of a gang whose bind failed; doubled with each failure."""
    pod_max_backoff_seconds: Seconds = 10.0
    """Longest such pause."""
    pending_pods: PendingPodsSettings = PendingPodsSettings.defaults()
    volume_bind_timeout: Seconds = 600.0
    """How long a pod that has a node waits for its volumes to be made and bound before it is decided on anew."""
    gpu_resources: Annotated[tuple[str, ...], Field(min_length=1)] = GPU_RESOURCES
    """Extended resources that are GPUs."""
    gpu_model_labels: tuple[str, ...] = GPU_MODEL_LABELS
    """Node labels that name the GPU model; the first one present wins."""
    bandwidth_labels: tuple[str, ...] = BANDWIDTH_LABELS
    """Node labels that tell the bandwidth of a node's network, e.g. ``200Gb``; the first one present wins."""
    topology: FabricSettings = FabricSettings.defaults()
    logging: Logging = Logging.defaults()
    metrics: MetricsSettings = MetricsSettings.defaults()
    record: Recording = Recording.defaults()
    audit_log: AuditLog = AuditLog.defaults()
    plugins: tuple[PluginConfig, ...] = ()
    """Plugins to load, in the order in which their filters are asked. One that can't be loaded keeps the process from
    starting. Installed plugins that are not named here are not loaded."""
    plugin_timeout: Seconds = 1.0
    """How long one decision may wait for all plugins together, and one Binding for one; a plugin that takes longer is
    set aside. At most a fifth of ``renewDeadline``."""

    @model_validator(mode="after")
    def _plugins(self) -> "SchedulerConfig":
        names = [plugin.name for plugin in self.plugins]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"plugin {twice} is named twice; keep one")
        most = self.leader_election.renew_deadline / 5
        if self.plugins and self.plugin_timeout > most:
            raise ValueError(
                f"pluginTimeout is {self.plugin_timeout:g}s, and may be at most a fifth of renewDeadline, {most:g}s:"
                " the Lease must be renewed meanwhile"
            )
        return self
