"""The verbs that change objects, and subresources with special behaviour."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from . import pods, scale
from .admission import default
from .call import Call, ServerResponse
from .deletion import DeleteOptions, delete_options
from .discovery import UNSTORED
from .encoding import decode, encode
from .errors import StatusError, bad_request, method_not_allowed, success
from .log import ObjectVersion
from .objects import Json, changed, meta, timestamp
from .patch import APPLY_PATCH, apply_patch, decode_patch
from .rbac import User, allowed, service_account
from .requests import RequestInfo


def create(call: Call) -> ServerResponse:
    """Create an object, or execute a POST to a subresource."""
    info, subresource = call.info, call.info.subresource
    if (info.group, info.resource) in UNSTORED:
        return ServerResponse(encode(_bind(call) if info.resource == "bindings" else _review(call)), 201)
    kind = call.kind()
    if not subresource and not info.name:
        record = call.store.create(kind, call.object(), info.namespace, dry_run=call.dry_run)
        return call.answer(kind, record, 201)
    action = _POSTS.get(subresource)
    if action is None:
        raise method_not_allowed("create", kind.id)
    return ServerResponse(encode(action(call)), 201)


def _bind(call: Call) -> Json:
    """Bind a pod; the older path has its name in the body only."""
    body = call.object()
    name = call.info.name if call.info.subresource else meta(body).get("name") or ""
    return pods.bind(call.store, call.info.namespace, name, body, dry_run=call.dry_run)


def _evict(call: Call) -> Json:
    return pods.evict(call.store, call.info.namespace, call.info.name, call.object(), dry_run=call.dry_run)


def _issue_token(call: Call) -> Json:
    """Answer a TokenRequest; the token is valid as long as the server runs."""
    info, request = call.info, call.object()
    call.store.get("serviceaccounts", info.name, info.namespace)
    token = call.tokens.issue(service_account(info.namespace, info.name))
    status = {"token": token, "expirationTimestamp": "2100-01-01T00:00:00Z"}
    metadata = {"name": info.name, "namespace": info.namespace, "creationTimestamp": timestamp(call.store.clock())}
    return {
        "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": metadata,
        "spec": request.get("spec") or {}, "status": status,
    }  # fmt: skip


_POSTS: Final[Mapping[str, Callable[[Call], Json]]] = {"binding": _bind, "eviction": _evict, "token": _issue_token}


def _review(call: Call) -> Json:
    """Answer an access review."""
    body = call.object()
    review_spec, path = body.get("spec") or {}, (body.get("spec") or {}).get("nonResourceAttributes") or {}
    resource = review_spec.get("resourceAttributes") or {}
    user = call.user
    if call.info.resource == "subjectaccessreviews":
        user = User(review_spec.get("user", ""), tuple(review_spec.get("groups") or ()))
    info = RequestInfo(
        resource.get("verb") or path.get("verb") or "", path.get("path", ""), resource.get("group", ""), "",
        resource.get("resource", ""), resource.get("subresource", ""), resource.get("namespace", ""),
        resource.get("name", ""),
    )  # fmt: skip
    return {**body, "status": {"allowed": allowed(call.store, user, info)}}


def update(call: Call) -> ServerResponse:
    """Replace a whole object."""
    kind, info, body = call.kind(), call.info, call.object()
    name = meta(body).get("name")
    if name != info.name:
        raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({info.name})")
    if kind.namespaced and meta(body).get("namespace") not in (None, "", info.namespace):
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    body = changed(body, "metadata", namespace=call.place(kind)[1] or None)
    if info.subresource == "finalize":
        return call.answer(kind, _finalize(call, body))
    if info.subresource == "scale":
        return _rescale(call, lambda _: body)
    record, created = call.store.replace(kind, body, subresource=info.subresource, dry_run=call.dry_run)
    return call.answer(kind, record, 201 if created else 200)


def _rescale(call: Call, change: Callable[[Json], Json]) -> ServerResponse:
    """Change a workload through its scale."""

    def rescaled(obj: Json) -> Json:
        return scale.scaled(obj, change(scale.scale_of(obj)))

    kind = call.kind()
    record = call.store.modify(kind, *call.place(kind), rescaled, dry_run=call.dry_run)
    return ServerResponse(encode(scale.scale_of(record.obj)))


def _finalize(call: Call, body: Json) -> ObjectVersion:
    """Set the finalizers of a namespace; remove it if it is terminating and has none left."""
    store, kind = call.store, call.store.kind("namespaces")
    old = store.get(kind, call.info.name)
    new = changed(old.obj, "spec", finalizers=(body.get("spec") or {}).get("finalizers") or None)
    if "finalizers" not in new["spec"] and "deletionTimestamp" in new["metadata"]:
        return store.remove(kind, old, dry_run=call.dry_run)
    return store.write(kind, old, new, dry_run=call.dry_run)


def patch(call: Call) -> ServerResponse:
    """Patch an object; server-side apply creates it if it does not exist."""
    kind, info, store = call.kind(), call.info, call.store
    media_type = call.content_type.partition(";")[0].strip()
    change = decode_patch(kind, media_type, call.body, decode)
    if media_type == APPLY_PATCH:
        if not call.query.get("fieldManager"):
            message = "fieldManager: Required value: is required for apply patch"
            raise StatusError(422, "Invalid", f'PatchOptions.meta.k8s.io "" is invalid: {message}')
        if store.find(kind, *call.place(kind)) is None and not info.subresource:
            new_obj = {**change, "metadata": {**meta(change), "name": info.name}}
            return call.answer(kind, store.create(kind, new_obj, info.namespace, dry_run=call.dry_run), 201)

    if info.subresource == "scale":
        return _rescale(call, lambda obj: apply_patch(kind, media_type, change, obj))

    def patched(obj: Json) -> Json:
        result = apply_patch(kind, media_type, change, obj)
        if (meta(result).get("name"), meta(result).get("namespace", "")) != call.place(kind):
            raise bad_request("the name and namespace of an object cannot be changed by a patch")
        return default(kind, result) if "template" in (result.get("spec") or {}) else result

    name_and_namespace, dry_run = call.place(kind), call.dry_run
    return call.answer(
        kind, store.modify(kind, *name_and_namespace, patched, subresource=info.subresource, dry_run=dry_run)
    )


def delete(call: Call) -> ServerResponse:
    """Request deletion of an object."""
    kind, info = call.kind(), call.info
    record, removed = call.store.delete(kind, *call.place(kind), _delete_options(call))
    if not removed or kind.returns_deleted:
        return call.answer(kind, record)
    details = {"name": info.name, "group": kind.group, "kind": kind.plural, "uid": record["metadata"]["uid"]}
    return ServerResponse(encode(success(**{name: value for name, value in details.items() if value})))


def delete_collection(call: Call) -> ServerResponse:
    """Request deletion of all selected objects."""
    kind, options = call.kind(), _delete_options(call)
    records = call.store.list(kind, call.selection(kind))
    for record in records:
        call.store.delete(kind, record.key.name, record.key.namespace, options)
    return ServerResponse(call.encoder(kind).encode_list(records, {"resourceVersion": str(call.store.revision)}))


def _delete_options(call: Call) -> DeleteOptions:
    return delete_options(call.object(), call.query)
