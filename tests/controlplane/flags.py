"""The command line of every component: what a test needs, and what keeps a benchmark fair."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

STAGES = Path(__file__).resolve().parent / "stages"
KUBELET_DEAD = "kubelet-dead.kwok.x-k8s.io"
"""Label of a node whose kubelet is dead: KWOK renews no lease of it any more, and does nothing to its pods."""
_QPS, _BURST = 1000, 2000
_PROTOBUF = "application/vnd.kubernetes.protobuf"
_OPEN_PATHS = "--authorization-always-allow-paths=/healthz,/livez,/readyz,/metrics"


def etcd(data: Path, port: int, peer_port: int, *, fsync: bool) -> list[str]:
    """One member, its peers' address being only itself."""
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
    return [
        f"--data-dir={data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        f"--unsafe-no-fsync={str(not fsync).lower()}",
        f"--quota-backend-bytes={8 * 2**30}",
        "--log-level=warn",
    ]


def kube_apiserver(
    pki: Path,
    port: int,
    etcd_port: int,
    *,
    controllers: bool,
    priority_and_fairness: bool,
    feature_gates: Mapping[str, bool],
    runtime_config: Sequence[str],
) -> list[str]:
    """Serve with RBAC, signing its own certificate in ``pki``, where its keys and tokens are, too."""
    key = pki / "service-accounts.key"
    flags = [
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={pki}",
        f"--token-auth-file={pki / 'tokens.csv'}",
        "--authorization-mode=Node,RBAC",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--endpoint-reconciler-type=none",  # endpoints may not be loopback addresses
        "--allow-privileged=true",
        "--max-requests-inflight=4000",
        "--max-mutating-requests-inflight=2000",
        f"--enable-priority-and-fairness={str(priority_and_fairness).lower()}",
        "--event-ttl=5m",  # many tests list events, and those of earlier tests are of no use
        "--profiling=false",
        *_gates(feature_gates),
    ]
    if not controllers:  # no controller makes the account that a pod needs, or removes the taint of a new node
        flags.append("--disable-admission-plugins=ServiceAccount,TaintNodesByCondition")
    if runtime_config:
        flags.append(f"--runtime-config={','.join(runtime_config)}")
    return flags


def kube_controller_manager(
    kubeconfig: Path, pki: Path, port: int, *, lease_seconds: int | None, feature_gates: Mapping[str, bool]
) -> list[str]:
    """Every controller that is on by default, as fast as it can.

    Without leases (no KWOK) nodes keep the readiness their test gave them; otherwise a node is given up a little
    after its lease has run out, as by default.
    """
    grace = "24h" if lease_seconds is None else f"{lease_seconds + 10}s"
    return [
        f"--kubeconfig={kubeconfig}",
        f"--kube-api-qps={_QPS}",
        f"--kube-api-burst={_BURST}",
        f"--kube-api-content-type={_PROTOBUF}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={pki / 'controller-manager'}",
        _OPEN_PATHS,
        f"--service-account-private-key-file={pki / 'service-accounts.key'}",
        f"--root-ca-file={pki / 'apiserver.crt'}",
        "--concurrent-job-syncs=50",
        "--concurrent-replicaset-syncs=50",
        "--concurrent-deployment-syncs=20",
        "--concurrent-statefulset-syncs=20",
        "--concurrent-namespace-syncs=20",
        "--concurrent-gc-syncs=50",
        f"--node-monitor-grace-period={grace}",
        f"--node-startup-grace-period={'24h' if lease_seconds is None else '60s'}",
        *_gates(feature_gates),
    ]


def kwok(kubeconfig: Path, port: int, *, lease_seconds: int) -> list[str]:
    """Simulate every node that is not labelled dead, by the stages of this folder. (KWOK has no limit of requests.)"""
    return [
        f"--kubeconfig={kubeconfig}",
        *(f"--config={path}" for path in sorted(STAGES.glob("*.yaml"))),
        f"--manage-nodes-with-label-selector=!{KUBELET_DEAD}",
        f"--node-lease-duration-seconds={lease_seconds}",
        f"--server-address=127.0.0.1:{port}",
        "--v=WARN",  # it would log every patch
    ]


def kube_scheduler(config: Path, pki: Path, port: int, *, feature_gates: Mapping[str, bool]) -> list[str]:
    """Run by a configuration that :func:`scheduler_config` has completed."""
    return [
        f"--config={config}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={pki / 'scheduler'}",
        _OPEN_PATHS,
        *_gates(feature_gates),
    ]


def scheduler_config(given: Path | Mapping[str, Any] | None, kubeconfig: Path, target: Path) -> Path:
    """Write what was asked for, completed by how to reach this API server; what was asked for wins."""
    asked = yaml.safe_load(given.read_text()) if isinstance(given, Path) else dict(given or {})
    connection = {"qps": _QPS, "burst": _BURST, "contentType": _PROTOBUF, **asked.get("clientConnection", {})}
    complete = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        **asked,
        "clientConnection": {**connection, "kubeconfig": str(kubeconfig)},
    }
    target.write_text(json.dumps(complete, indent=1))
    return target


def _gates(feature_gates: Mapping[str, bool]) -> list[str]:
    gates = ",".join(f"{name}={str(on).lower()}" for name, on in feature_gates.items())
    return [f"--feature-gates={gates}"] if gates else []
