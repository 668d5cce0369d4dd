"""The permissions that users of commands need, as ``cli-permissions.md`` lists them.

tests/cli/test_rights.py compares them with the requests of the commands.
"""

from typing import Final

RIGHTS: Final = """\
# Permissions of commands

[Commands](cli.md) send requests to the API server as the user of the kubeconfig. The table lists the permissions that this user
needs. A permission without a namespace is cluster-wide. For example, test the first one:

```sh
kubectl auth can-i list nodes
```

| command | needs | uses if allowed |
| --- | --- | --- |
| `topology`, `explain`, `drain` | | `list` deployments.apps, to find the scheduler's ConfigMap; `get` that ConfigMap |
| `topology` | `list` nodes and pods; with `--watch` also `watch` | the same for resourceslices, deviceclasses and resourceclaims, to show devices and their holders |
| `explain` of a bound pod | `get` the pod; for a gang, or by the name of a workload, `list` pods in its namespace | `list` events in its namespace; `get` a workload that has no pods; for pods with claims, `list` resourceclaims in its namespace |
| `explain` of a pending pod | the same, and `list` nodes and pods | `get` the owners of pending pods; `list` namespaces, PodGroups, poddisruptionbudgets, and, if recovery is on, migrations.topology.scheduler; for pods with claims, the storage rules of the example below; for pods that request extended resources, deviceclasses, and resourceslices and resourceclaims if a class backs the resource; NodeResourceTopologies, if they are served |
| `drain --dry-run` | `list` nodes and pods | `get` the Lease of the scheduler |
| `drain` | the same, `patch` nodes, `list` and `create` migrations.topology.scheduler; with `--wait` also `get` these | `get` the Lease of the scheduler; `get` nodes, to skip those that were deleted meanwhile |
| `check-config --live` | `list` nodes | |
| `simulate --cluster live` | `list` nodes and pods | `list` all other objects that influence placements |

If a user may not list Deployments, the commands read the ConfigMap `topology-scheduler-config` of `kube-system`. If that cannot be
read either, the commands warn that they assume defaults. `drain` then does not know whether recovery is enabled. `explain` also
reports other objects that it could not read, if they may change its answer.

## ClusterRoles

These two ClusterRoles are sufficient. Bind the first to users of `topology` and `explain`, and both to users of `drain`. The first
role shows all pods of all namespaces. Owners of further kinds, such as JobSets, need one more rule each.

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
  - apiGroups: [resource.k8s.io]
    resources: [deviceclasses, resourceslices, resourceclaims]
    verbs: [list, watch]
  - apiGroups: [policy]
    resources: [poddisruptionbudgets]
    verbs: [list]
  - apiGroups: [topology.node.k8s.io]
    resources: [noderesourcetopologies]
    verbs: [list]
  - apiGroups: [topology.scheduler]
    resources: [migrations]
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
