"""How many pending pods the configured memory is for."""

from tests.helpers import make_pod
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.process import PendingPodsSettings as Limits
from topo_scheduler.api.recording import LEAST_BYTES
from topo_scheduler.scheduling.intake.pending import PendingPods


def test_a_plain_pod_counts_about_ten_kibibytes() -> None:
    pods = PendingPods(Limits(memory=LEAST_BYTES))
    kept: list[Pod] = []
    while pods.has_room("default") and len(kept) < LEAST_BYTES // 1024:
        kept.append(make_pod(f"pod-{len(kept)}", gpus=1))
        pods.put(kept[-1], ())
    plain = LEAST_BYTES / (10 * 1024)
    assert 0.7 * plain < len(kept) < 1.5 * plain
    assert pods.has_room("other"), "half as much again is for namespaces that have less than their share"
    for pod in kept:
        pods.drop(pod.metadata.uid)
    assert pods.has_room("default")
