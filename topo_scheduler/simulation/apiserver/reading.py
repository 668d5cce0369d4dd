"""The verbs get, list and watch."""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping
from typing import Final

from .call import Call, ServerResponse
from .encoding import decode, encode
from .errors import StatusError, bad_request, expired, too_large_version
from .log import ObjectVersion
from .objects import Json, Key
from .requests import is_true
from .scale import scale_of
from .watching import Stream

_EXPIRED_TOKEN: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results."
)
_DEFAULT_WATCH_SECONDS: Final = 1800.0
_LAST_BOOKMARK_SECONDS: Final = 2.0
"""Seconds before the end of a stream at which a bookmark is sent, as on a real server."""


def get(call: Call) -> ServerResponse:
    """Return one object."""
    kind = call.kind()
    record = call.store.get(kind, *call.place(kind))
    if call.info.subresource == "log":
        return ServerResponse(_log_of(record), media_type="text/plain")
    if call.info.subresource == "scale":
        return ServerResponse(encode(scale_of(record.obj)))
    return call.answer(kind, record)


def _log_of(pod: ObjectVersion) -> bytes:
    node = pod["spec"].get("nodeName") or "no node"
    return f"{pod.key} is simulated on {node}: {(pod.get('status') or {}).get('phase')}\n".encode()


# Lists


def list_objects(call: Call) -> ServerResponse:
    """Return all objects, or a page of them, at one revision."""
    kind, query = call.kind(), call.query
    selection, limit = call.selection(kind), _number(query, "limit") or 0
    after, revision = None, _exact_revision(query, limit)
    if token := query.get("continue"):
        revision, after = _read_token(token)
    elif revision is None and (newest := _revision(query) or 0) > call.store.revision:
        raise too_large_version(newest, call.store.revision)
    try:
        page = call.store.page(kind, selection, limit=limit, after=after, revision=revision)
    except StatusError as error:
        if error.code == 410 and token:
            raise expired(_EXPIRED_TOKEN) from error
        raise
    metadata: Json = {"resourceVersion": str(page.revision)}
    if page.last is not None:
        metadata["continue"] = _token(page.revision, page.last)
        if page.remaining is not None:
            metadata["remainingItemCount"] = page.remaining
    return ServerResponse(call.encoder(kind).encode_list(page.records, metadata))


def _exact_revision(query: Mapping[str, str], limit: int) -> int | None:
    """Return the exact revision that a list request demands, or None."""
    requested, match = _revision(query), query.get("resourceVersionMatch")
    if match and requested is None:
        raise StatusError(
            422, "Invalid", 'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: '
            "resourceVersionMatch is forbidden unless resourceVersion is provided",
        )  # fmt: skip
    exact = match == "Exact" or (not match and limit and requested)
    return requested if exact else None


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if not text:
        return None
    try:
        return int(text)
    except ValueError as error:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from error


def _revision(query: Mapping[str, str]) -> int | None:
    text = query.get("resourceVersion")
    if not text:
        return None
    try:
        return int(text)
    except ValueError as error:
        message = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        # As on a real server, an invalid version gives 500 for a watch and 400 for a list.
        watching = is_true(query.get("watch"))
        raise (
            StatusError(500, "", message) if watching else bad_request(f"invalid resource version: {message}")
        ) from error


def _token(revision: int, last: Key) -> str:
    return base64.urlsafe_b64encode(encode([revision, *last])).decode()


def _read_token(token: str) -> tuple[int, Key]:
    try:
        revision, namespace, name = decode(base64.urlsafe_b64decode(token))
        return int(revision), Key(namespace, name)
    except (ValueError, TypeError) as error:
        raise bad_request(f"continue key is not valid: {error}") from error


# Watches


def open_stream(call: Call) -> Stream:
    """Return the watch of a request. For a version that is too old, the first event of the watch is an error."""
    kind, query, store = call.kind(), call.query, call.store
    selection, since = call.selection(kind), _revision(query)
    bookmarks, initial = is_true(query.get("allowWatchBookmarks")), query.get("sendInitialEvents")
    if initial is not None and query.get("resourceVersionMatch") != "NotOlderThan":
        raise StatusError(
            422, "Invalid", 'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: '
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        )  # fmt: skip
    from_scratch = is_true(initial) or (initial is None and not since)
    seconds = float(_number(query, "timeoutSeconds") or _DEFAULT_WATCH_SECONDS * random.uniform(1, 2))
    bookmark_after = min(call.bookmark_seconds, max(seconds - _LAST_BOOKMARK_SECONDS, 0.1))
    error: StatusError | None = None
    try:
        watch = store.watch(kind, None if from_scratch or not since else since, selection)
    except StatusError as too_old:
        watch, error = store.watch(kind), too_old
    return Stream(
        watch=watch,
        error=error,
        encoder=call.encoder(kind),
        seconds=seconds,
        revision=lambda: store.revision,
        bookmark_seconds=bookmark_after if bookmarks else float("inf"),
        initial=store.list(kind, selection) if from_scratch else (),
        initial_end=store.revision if is_true(initial) and bookmarks else None,
    )
