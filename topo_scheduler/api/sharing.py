"""Configuration of how namespaces share a cluster: quotas, access to domains, and fair share."""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final

from pydantic import Field, field_validator

from topo_scheduler.api.models import Model, Seconds
from topo_scheduler.api.names import QUALIFIED_NAME, RULES, Domain, NamespacePattern
from topo_scheduler.api.quantity import QuantityError, parse_exact
from topo_scheduler.api.text import did_you_mean, quoted

GPUS: Final = "gpus"
"""Name of GPUs of any vendor in a quota, including GPUs requested by annotation."""
_PLAIN: Final = (GPUS, "cpu", "memory", "ephemeral-storage", "pods")

Names = Annotated[tuple[NamespacePattern, ...], Field(min_length=1)]


class Fairness(Model):
    """Fair share: the order of pending workloads of one priority."""

    overdue_after: Seconds = 600.0
    """A workload that has been pending longer goes before the others of its priority, whatever its namespace holds."""
    decisions_per_second: Annotated[float, Field(ge=0.1, le=100_000)] | None = None
    """Maximum average of decisions per second for one namespace; no limit by default."""
    decision_burst: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    """Maximum burst of decisions for a namespace that was idle, if ``decisionsPerSecond`` is set."""


class Quota(Model):
    """Maximum resources that a namespace may hold."""

    namespaces: Names
    """Names of namespaces, or patterns such as `team-*`. The quota applies to each of them separately."""
    domain: Domain | None = None
    """Path or name of the domain in which the quota counts; the whole cluster by default."""
    hard: Annotated[dict[str, str], Field(min_length=1)]
    """Quantity by resource: `gpus` (of any vendor, by claims too), `cpu`, `memory`, `pods`, or any other resource."""

    @field_validator("hard", mode="before")
    @classmethod
    def _quantities(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        for name, quantity in value.items():
            if name not in _PLAIN and "/" not in str(name) and not str(name).startswith("hugepages-"):
                hint = did_you_mean(str(name), _PLAIN, f"write one of {', '.join(_PLAIN)}, or a full name")
                raise ValueError(f"no resource is called {quoted(name)}; {hint}")
            if re.fullmatch(QUALIFIED_NAME, str(name)) is None:
                raise ValueError(f"{quoted(name)} is no name of a resource: write {RULES[QUALIFIED_NAME]}")
            if isinstance(quantity, bool) or not isinstance(quantity, str | int | float):
                raise ValueError(f"{name}: {quoted(quantity)} is not a quantity such as 500m, 2, 1.5 or 16Gi")
            try:
                parse_exact(quantity, 1000 if name == "cpu" else 1)
            except QuantityError as error:
                raise ValueError(f"{name}: {error}") from None
        return {name: str(quantity) for name, quantity in value.items()}


class GpusByAnnotation(Model):
    """Access to GPUs that only annotations request, which no ResourceQuota of Kubernetes counts."""

    namespaces: tuple[NamespacePattern, ...] = ()
    """Names of namespaces, or patterns such as `team-*`, whose pods may get GPUs without GPU limits: by `gpu-count`
    alone, or by `gpu-fraction`. Pods without GPUs may also reserve network bandwidth there. By default no namespace
    may."""


class DomainAccess(Model):
    """A domain that only some namespaces may use."""

    domain: Domain
    """Path or name of the domain."""
    namespaces: Names
    """Names of namespaces, or patterns such as `team-*`, whose pods may run there. Pods of other namespaces may not."""


def matches(namespace: str, patterns: Sequence[str]) -> bool:
    """Return whether a namespace matches one of the names or patterns."""
    return any(fnmatchcase(namespace, pattern) for pattern in patterns)
