"""An API server in this process: real lists, watches, bindings, patches and deletions, and faults on demand.

``EmbeddedAPIServer`` serves HTTP; its ``store`` is the same cluster without HTTP, for whoever lives in this process.

What it does is what ``tests/contract`` checks on real servers. What it leaves out: fields that a kind does not have
are kept instead of dropped; objects are validated only where a scheduler could notice; server-side apply merges and
keeps no record of owners; custom resources are not checked against their schema and are served at once; there are
no webhooks, no quotas, no aggregation, and no TLS; tokens don't expire; protobuf is read for a few kinds only.
"""

from .deletion import DeleteOptions
from .errors import APIError
from .faults import BreakWatch, Delay, Disconnect, Faults, Refuse, Truncate
from .log import ObjectVersion, StoreEvent, Watch
from .objects import Json, Key
from .rbac import ADMIN, ANONYMOUS, User
from .requests import RequestInfo
from .selectors import Selection, select
from .server import EmbeddedAPIServer
from .store import Store

__all__ = [
    "ADMIN",
    "ANONYMOUS",
    "APIError",
    "BreakWatch",
    "Delay",
    "DeleteOptions",
    "Disconnect",
    "EmbeddedAPIServer",
    "Faults",
    "Json",
    "Key",
    "ObjectVersion",
    "Refuse",
    "RequestInfo",
    "Selection",
    "Store",
    "StoreEvent",
    "Truncate",
    "User",
    "Watch",
    "select",
]
