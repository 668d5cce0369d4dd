"""Authentication and RBAC: tokens identify users, and stored roles and bindings decide, as on a real server.

Rules only allow. ``system:masters`` may do everything; all authenticated users may read the discovery.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from .errors import StatusError, forbidden
from .objects import Json
from .requests import RequestInfo
from .store import Store

_ROLES: Final = "roles.rbac.authorization.k8s.io"
_CLUSTER_ROLES: Final = "clusterroles.rbac.authorization.k8s.io"
_ROLE_BINDINGS: Final = "rolebindings.rbac.authorization.k8s.io"
_CLUSTER_ROLE_BINDINGS: Final = "clusterrolebindings.rbac.authorization.k8s.io"
_OPEN_PATHS: Final = ("/api", "/apis", "/openapi", "/version", "/healthz", "/livez", "/readyz")
_OPEN_GROUPS: Final = frozenset({"authorization.k8s.io", "authentication.k8s.io"})
"""API groups open to all authenticated users, for reviews of their own permissions."""


@dataclass(frozen=True, slots=True)
class User:
    """The user of a request."""

    name: str
    groups: tuple[str, ...] = ()


ADMIN: Final = User("admin", ("system:masters", "system:authenticated"))
ANONYMOUS: Final = User("system:anonymous", ("system:unauthenticated",))


def service_account(namespace: str, name: str) -> User:
    """Return the user of a ServiceAccount."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return User(f"system:serviceaccount:{namespace}:{name}", groups)


def impersonated(user: User, name: str | None) -> User:
    """Return the user that an administrator impersonates; other users stay themselves."""
    if not name or "system:masters" not in user.groups:
        return user
    match name.split(":"):
        case ["system", "serviceaccount", namespace, account]:
            return service_account(namespace, account)
    return User(name, ("system:authenticated",))


@dataclass(slots=True)
class Tokens:
    """Issued tokens. They do not expire."""

    anonymous: User = ANONYMOUS
    """The user of requests without a token."""
    users: dict[str, User] = field(default_factory=dict)

    def issue(self, user: User) -> str:
        """Return a new token for a user."""
        token = secrets.token_urlsafe(24)
        self.users[token] = user
        return token

    def user(self, authorization: str | None) -> User:
        """Return the user of the token in an Authorization header; raises 401 for an unknown token."""
        if not authorization:
            return self.anonymous
        user = self.users.get(authorization.removeprefix("Bearer ").strip())
        if user is None:
            raise StatusError(401, "Unauthorized", "Unauthorized")
        return user


def authorize(store: Store, user: User, info: RequestInfo) -> None:
    """Raise 403 unless a rule allows the request."""
    if not allowed(store, user, info):
        raise _denied(user, info)


def allowed(store: Store, user: User, info: RequestInfo) -> bool:
    """Whether a rule allows the request."""
    if "system:masters" in user.groups:
        return True
    if not info.resource:
        authenticated = "system:authenticated" in user.groups
        return (info.verb == "get" and authenticated and info.path.startswith(_OPEN_PATHS)) or any(
            _allows_path(rule, info) for rule in _rules(store, user, "")
        )
    if info.group in _OPEN_GROUPS:
        return "system:authenticated" in user.groups
    return any(_allows(rule, info) for rule in _rules(store, user, info.namespace))


def _rules(store: Store, user: User, namespace: str) -> Iterator[Json]:
    """Yield all rules for a user in a namespace, including cluster-wide ones."""
    for binding in store.list(_CLUSTER_ROLE_BINDINGS):
        if _binds(binding, user):
            yield from _role_rules(store, binding["roleRef"], "")
    if namespace:
        for binding in store.list(_ROLE_BINDINGS):
            if binding.key.namespace == namespace and _binds(binding, user):
                yield from _role_rules(store, binding["roleRef"], namespace)


def _role_rules(store: Store, ref: Json, namespace: str) -> Iterable[Json]:
    if ref.get("kind") == "Role":
        role = store.find(_ROLES, ref["name"], namespace)
    else:
        role = store.find(_CLUSTER_ROLES, ref["name"])
    return (role.get("rules") or ()) if role else ()


def _binds(binding: Any, user: User) -> bool:
    for subject in binding.get("subjects") or ():
        name, kind = subject.get("name"), subject.get("kind")
        if kind == "ServiceAccount":
            name = f"system:serviceaccount:{subject.get('namespace')}:{name}"
        if name in user.groups if kind == "Group" else name == user.name:
            return True
    return False


def _allows(rule: Json, info: RequestInfo) -> bool:
    return (
        _listed(rule.get("verbs"), info.verb)
        and _listed(rule.get("apiGroups"), info.group)
        and _lists_resource(rule.get("resources") or (), info)
        and (not rule.get("resourceNames") or info.name in rule["resourceNames"])
    )


def _lists_resource(resources: Iterable[str], info: RequestInfo) -> bool:
    accepted = {"*", info.full_resource}
    if info.subresource:
        accepted.add(f"*/{info.subresource}")
    return not accepted.isdisjoint(resources)


def _allows_path(rule: Json, info: RequestInfo) -> bool:
    patterns = rule.get("nonResourceURLs") or ()
    matching = any(
        pattern == info.path or (pattern.endswith("*") and info.path.startswith(pattern[:-1])) for pattern in patterns
    )
    return matching and _listed(rule.get("verbs"), info.verb)


def _listed(values: Iterable[str] | None, value: str) -> bool:
    return values is not None and ("*" in values or value in values)


def _denied(user: User, info: RequestInfo) -> StatusError:
    if not info.resource:
        return StatusError(403, "Forbidden", f'forbidden: User "{user.name}" cannot {info.verb} path "{info.path}"')
    scope = f'in the namespace "{info.namespace}"' if info.namespace else "at the cluster scope"
    reason = (
        f'User "{user.name}" cannot {info.verb} resource "{info.full_resource}" in API group "{info.group}" {scope}'
    )
    qualified = f"{info.resource}.{info.group}" if info.group else info.resource
    return forbidden(qualified, info.name, reason, group=info.group, kind=info.resource)
