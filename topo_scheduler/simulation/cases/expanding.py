"""Expand manifests into pods as in a cluster, by admission and by controllers.

The code behind the embedded API server sets defaults, priorities, names, labels and indexes here too.
"""

from collections.abc import Mapping
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any, Final

from topo_scheduler.api.annotations import MAX_GANG_PODS
from topo_scheduler.api.groups import JOBSET_JOB_INDEX, JOBSET_NAME
from topo_scheduler.simulation.apiserver import Key, StatusError, Store, StoreEvent
from topo_scheduler.simulation.apiserver.objects import Json, controller_of
from topo_scheduler.simulation.cases.documents import MALFORMED_ERRORS, Document
from topo_scheduler.simulation.cases.model import CaseError
from topo_scheduler.simulation.controllers import Controller, deployment, job, replicaset, statefulset

TABLES: Final[Mapping[str, str]] = {
    "Pod": "pods",
    "Job": "jobs.batch",
    "Deployment": "deployments.apps",
    "ReplicaSet": "replicasets.apps",
    "StatefulSet": "statefulsets.apps",
}
JOBSET: Final = "JobSet"
_JOBSET: Final = "jobset.sigs.k8s.io/"
_COUNTS: Final = ("parallelism", "completions", "replicas")
_CONTROLLERS: Final[tuple[Controller, ...]] = (
    deployment.CONTROLLER,
    replicaset.CONTROLLER,
    statefulset.CONTROLLER,
    job.CONTROLLER,
)
_PRIORITIES: Final = "priorityclasses.scheduling.k8s.io"
_CREATED: Final = datetime(2026, 1, 1, tzinfo=UTC)
_SERVER_FIELDS: Final = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink")


class Expander:
    """Expands manifests into pods. The same seed gives the same names and uids."""

    def __init__(self, seed: int) -> None:
        self._store = Store(clock=lambda: _CREATED, seed=seed)
        self._due: dict[tuple[int, Key], None] = {}
        self._made: list[Key] = []
        self._store.observe(self._notice)

    def add_priority_class(self, obj: Mapping[str, Any]) -> None:
        """Add a PriorityClass that pods may name; an existing class of that name is kept.

        Raises:
            CaseError: the API server refuses the class.
        """
        name = (obj.get("metadata") or {}).get("name")
        if not isinstance(name, str) or self._store.find(_PRIORITIES, name) is None:
            try:
                self._store.create(_PRIORITIES, _unborn(obj))
            except (StatusError, *MALFORMED_ERRORS) as error:
                raise CaseError(f"PriorityClass {name}: {error}; correct it") from error

    def expand(self, document: Document) -> tuple[list[Json], dict[str, Json]]:
        """Return the pods of a workload, and their owners by uid.

        Raises:
            CaseError: an API server would refuse the workload.
        """
        self._made.clear()
        owners: dict[str, Json] = {}
        try:
            if document.kind == JOBSET:
                owners, jobs = _jobs_of(document)
                for job_obj in jobs:
                    self._create(TABLES["Job"], job_obj, document)
            else:
                self._create(TABLES[document.kind], document.obj, document)
            self._settle()
            pods = [self._store.get("pods", *key.address).obj for key in self._made]
            for pod in pods:
                self._add_owners(pod, owners)
        except CaseError:
            raise
        except (StatusError, *MALFORMED_ERRORS) as error:
            raise document.error(f"it would be refused: {error}", "correct it") from error
        return pods, owners

    def _create(self, table: str, manifest: Mapping[str, Any], document: Document) -> None:
        obj = _unborn(manifest)
        spec = obj.get("spec")
        if isinstance(spec, dict):
            for name in _COUNTS:
                _check_count(document, name, spec.get(name))
            if table == TABLES["StatefulSet"]:
                spec["podManagementPolicy"] = (
                    "Parallel"  # otherwise each pod is created only after the pod before it is ready
                )
            if table == TABLES["Job"]:
                spec["suspend"] = False  # the simulation decides when the Job starts
        namespace = str(obj["metadata"].get("namespace") or "default")
        if self._store.find("namespaces", namespace) is None:
            self._store.create("namespaces", {"metadata": {"name": namespace}})
        self._store.create(table, obj)

    def _notice(self, table: str, event: StoreEvent) -> None:
        if table == "pods" and event.before is None:
            self._made.append(event.key)
        for number, controller in enumerate(_CONTROLLERS):
            for key in controller.concerns(self._store, table, event):
                self._due[number, key] = None

    def _settle(self) -> None:
        while self._due:
            number, key = entry = next(iter(self._due))
            del self._due[entry]
            _CONTROLLERS[number].reconcile(self._store, key)

    def _add_owners(self, obj: Json, owners: dict[str, Json]) -> None:
        reference = controller_of(obj)
        owner_entry = self._store.by_uid(reference["uid"]) if reference else None
        if owner_entry is not None and owner_entry[1]["metadata"]["uid"] not in owners:
            owners[owner_entry[1]["metadata"]["uid"]] = owner_entry[1].obj
            self._add_owners(owner_entry[1].obj, owners)


def _unborn(manifest: Mapping[str, Any]) -> Json:
    """Return a copy of a manifest without status and without fields that only the API server sets."""
    obj: Json = deepcopy(dict(manifest))
    metadata = obj.get("metadata")
    metadata_fields = metadata if isinstance(metadata, dict) else {}
    obj["metadata"] = {name: value for name, value in metadata_fields.items() if name not in _SERVER_FIELDS}
    obj.pop("status", None)
    return obj


def _check_count(document: Document, name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_GANG_PODS:
        raise document.error(f"spec.{name} is {value!r}", f"write a whole number from 0 to {MAX_GANG_PODS}")


# ---------------------------------------------------------------- JobSets


def _jobs_of(document: Document) -> tuple[dict[str, Json], list[Json]]:
    """Return a JobSet by its uid, and its Jobs with the names and labels that the JobSet controller sets."""
    name, namespace = str(document.metadata["name"]), str(document.metadata.get("namespace") or "default")
    uid = f"jobset/{namespace}/{name}"
    metadata = {**document.metadata, "namespace": namespace, "uid": uid}
    reference = {"apiVersion": document.api_version, "kind": JOBSET, "name": name, "uid": uid, "controller": True}
    jobs: list[Json] = []
    for replicated in document.spec["replicatedJobs"]:
        count = replicated.get("replicas", 1)
        _check_count(document, "replicatedJobs[].replicas", count)
        for index in range(count):
            jobset_labels = {
                JOBSET_NAME: name,
                f"{_JOBSET}replicatedjob-name": str(replicated["name"]),
                f"{_JOBSET}replicatedjob-replicas": str(count),
                f"{_JOBSET}job-index": str(index),
                JOBSET_JOB_INDEX: str(len(jobs)),
            }
            jobs.append(
                _job_of(replicated["template"], f"{name}-{replicated['name']}-{index}", namespace, jobset_labels)
            )
            jobs[-1]["metadata"]["ownerReferences"] = [reference]
    return {uid: {**document.obj, "metadata": metadata}}, jobs


def _job_of(job_template: Json, name: str, namespace: str, jobset_labels: Json) -> Json:
    template = deepcopy(job_template)
    metadata = {**_marked(template.get("metadata"), jobset_labels), "name": name, "namespace": namespace}
    pod = template["spec"]["template"]
    pod["metadata"] = _marked(pod.get("metadata"), jobset_labels)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": template["spec"]}


def _marked(metadata: Json | None, jobset_labels: Json) -> Json:
    original = metadata or {}
    return original | {
        section: {**(original.get(section) or {}), **jobset_labels} for section in ("labels", "annotations")
    }
