"""Measured figures on pages that are written by hand: each sentence or row, with the names of its figures.

The syntax is that of the templates (`tests.docs.templates`). Other measured figures belong on the pages of the
reference, with a link to them.
"""

from typing import Final

_GAIN: Final = (
    "| {label} | {{{{gains_80.{key}.p99_s}}}} s | {{{{gains_80.{key}.gangs_across_leaves}}}} |"
    " {{{{gains_80.{key}.slow_down:.3f}}}} | {{{{gains_100.{key}.p95_s}}}} s, {{{{gains_100.{key}.p99_s}}}} s |"
    " {{{{gains_100.{key}.gangs_across_leaves}}}} | {{{{gains_100.{key}.slow_down:.3f}}}} |"
)
_GAINS: Final = {
    "topo": "`topo`",
    "preferred": "`topo:preferred.yaml`",
    "rack": "`rack` (a gang in one leaf, if any has room)",
    "least_allocated": "`least-allocated` (kube-scheduler's default)",
}
QUOTES: Final[dict[str, tuple[str, ...]]] = {
    "README.md": (
        "{{gains_80.command}}",
        "| policy | {{gains_80.in_use_percent}} % in use: wait p99 |",
        "| {{gains_100.in_use_percent}} % in use: wait p95, p99 |",
        *(_GAIN.format(key=key, label=label) for key, label in _GAINS.items()),
        "one job in a hundred then waits {{gains_80.topo.p99_s}} seconds or more",
        "At the higher load training time drops by {{gains_100.less_training_time_percent}} %, and the 99th percentile"
        " of waits is {{gains_100.p99_over_rack}} times that of `rack`.",
        "The columns at {{gains_100.in_use_percent}} % come from `rate=100/h`.",
    ),
    "docs/decisions/0015-small-pods-by-node.md": (
        "{{fragmentation.default.fragmentation:.1f}} % of the GPUs are allocated this way,"
        " {{fragmentation_off.default.off:.1f}} % by the score of leaves.",
    ),
    "docs/decisions/0017-room-for-others.md": (
        "Without headroom kubelets refused {{beside_others_without_headroom.refused_percent}} in 100 binds of this"
        " scheduler. With it they refused {{beside_others.refused_here}} of {{beside_others.pods_each:,}} binds in"
        " three runs",
    ),
    "docs/explanation/barrier.md": (
        "{{operations.shortest_us}} to {{operations.longest_us}} in the worst measured cases.",
        "{{operations.victims_of_a_gang_of_64}} for a gang of 64 on {{operations.nodes}} nodes.",
    ),
    "docs/explanation/bin-packing.md": (
        "on the list `default` {{large_pods.placed_percent}} % of the pods with eight GPUs, and"
        " {{large_pods.placed_by_fgd_percent}} % with FGD.",
    ),
    "docs/explanation/leader-election.md": (
        "with {{failover_sigkill.nodes}} nodes: {{failover_sigkill.next_bind_s}} seconds after SIGKILL.",
    ),
    "docs/explanation/reliability.md": (
        "the first bind came up to {{failover_outage.next_bind_s.2:.0f}} seconds after the first answer",
    ),
    "docs/how-to/resource-claims.md": (
        "The last [long run](../reference/long-runs.md) found {{devices.result}}, but those below.",
    ),
    "docs/reference/device-selectors.md": ("The last [long run](long-runs.md) found {{cel.result}}.",),
    "docs/how-to/record-and-replay.md": (
        "{{record_costs.bytes_a_decision}} bytes on disk for each decision;",
        "{{record_costs.cpu_ms_a_pod.0}} to {{record_costs.cpu_ms_a_pod.1}} ms of CPU time for each pod;",
        "one second of pause for each checkpoint, with {{record_costs.nodes}} nodes and {{record_costs.pods}} pods.",
    ),
}
