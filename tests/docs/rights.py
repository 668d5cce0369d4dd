"""The rights that users of commands need, as ``cli.md`` states them; tests/cli/test_rights.py compares them."""

from typing import Final

RIGHTS: Final = """
## Rights

Commands ask the API server as the user of the kubeconfig. What that user needs, cluster-wide where no namespace is named:

| command | needs | uses where it may |
| --- | --- | --- |
| `topology`, `explain`, `drain` | | `list` deployments.apps, to find the scheduler's ConfigMap; `get` that ConfigMap |
| `topology` | `list` nodes and pods; with `--watch` also `watch` | |
| `explain` of a bound pod | `get` the pod; of a gang, or by the name of a workload, `list` pods in its namespace | `list` events in its namespace |
| `explain` of a pending pod | the same, and `list` nodes and pods | `get` the owners of pending pods; `list` namespaces and PodGroups; for pods with claims what the example lists of storage |
| `drain --dry-run` | `list` nodes and pods | `get` the Lease of the scheduler |
| `drain` | the same, `patch` nodes, `list` and `create` migrations.topology.scheduler; with `--wait` also `get` these | `get` the Lease of the scheduler |
| `check-config --live` | `list` nodes | |
| `simulate --cluster live` | `list` nodes and pods | `list` whatever else decides about placements |

A user who may not list Deployments gets the ConfigMap `topology-scheduler-config` of `kube-system`. If it can't be read
either, these commands warn that defaults are assumed, and `drain` does not know whether recovery is on. `explain`
says what else it could not read where that may change its answer.

These two ClusterRoles are enough; bind the first to users of `topology` and `explain`, both to users of `drain`. The
first shows all pods of all namespaces. Owners of further kinds (JobSets, for one) need a rule each.

```yaml
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: topology-scheduler-reader
rules:
  - apiGroups: [""]
    resources: [nodes, pods]
    verbs: [get, list, watch]
  - apiGroups: [apps]
    resources: [deployments]
    verbs: [get, list]
  - apiGroups: [""]
    resources: [configmaps]
    resourceNames: [topology-scheduler-config]
    verbs: [get]
  # For explain of pending pods.
  - apiGroups: [apps, batch]
    resources: [replicasets, statefulsets, daemonsets, jobs, cronjobs]
    verbs: [get]
  - apiGroups: [scheduling.k8s.io, scheduling.x-k8s.io, scheduling.sigs.k8s.io, scheduling.volcano.sh]
    resources: [podgroups]
    verbs: [list]
  - apiGroups: [""]
    resources: [namespaces, events, persistentvolumes, persistentvolumeclaims]
    verbs: [list]
  - apiGroups: [storage.k8s.io]
    resources: [storageclasses, csinodes, csidrivers, csistoragecapacities, volumeattachments]
    verbs: [list]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: topology-scheduler-drainer
rules:
  - apiGroups: [""]
    resources: [nodes]
    verbs: [patch]
  - apiGroups: [topology.scheduler]
    resources: [migrations]
    verbs: [get, list, create]
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    resourceNames: [topology-scheduler]
    verbs: [get]
```
"""  # noqa: E501 - rows of a table
