"""An API server in this process, with lists, watches, bindings, patches and deletions, and with fault injection.

``EmbeddedAPIServer`` serves HTTP. Its ``store`` gives code in this process access to the same cluster without HTTP.

``tests/contract`` checks its behaviour, and runs against real servers too. It differs from a real server as follows.
Unknown fields are kept instead of dropped. Objects are validated only where a scheduler could notice. Server-side apply
merges without field ownership. Custom resources are not validated against their schema and are served at once. There
are no webhooks, no quotas, no aggregation and no TLS. Tokens do not expire. Protobuf is supported for a few kinds only.

Imported by: `cli`, `simulation`.
"""

from .deletion import DeleteOptions
from .errors import StatusError
from .faults import BreakWatch, Delay, Disconnect, Refuse, Stray, Truncate
from .log import ObjectVersion, StoreEvent, Watch
from .objects import Json, Key
from .rbac import ADMIN
from .requests import RequestInfo
from .selectors import Selection, select
from .server import EmbeddedAPIServer
from .store import Store

__all__ = [
    "ADMIN",
    "BreakWatch",
    "Delay",
    "DeleteOptions",
    "Disconnect",
    "EmbeddedAPIServer",
    "Json",
    "Key",
    "ObjectVersion",
    "Refuse",
    "RequestInfo",
    "Selection",
    "StatusError",
    "Store",
    "StoreEvent",
    "Stray",
    "Truncate",
    "Watch",
    "select",
]
