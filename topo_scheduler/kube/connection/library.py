"""The part of kubernetes_asyncio that is used: kubeconfigs, credentials and connections.

Its package imports 800 modules of models and API groups, none of which is used here: three quarters of the CPU time of
its import, and 33 MiB. So only the modules for connections are imported, below packages that stand in for its own, and
these are taken away again. A plugin that imports the library afterwards gets a whole one of its own.
"""

import importlib
import importlib.util
import logging
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient, Configuration

log = logging.getLogger(__name__)

NAME: Final = "kubernetes_asyncio"
PACKAGES: Final = {NAME: "", f"{NAME}.client": "client", f"{NAME}.client.models": "client/models"}
"""The packages whose own code would import everything, and their folders."""


@dataclass(frozen=True, slots=True)
class Library:
    """What is used of kubernetes_asyncio."""

    ApiClient: "type[ApiClient]"
    Configuration: "type[Configuration]"
    load_kube_config: Any
    load_incluster_config: Any


@cache
def library() -> Library:
    """Import what is used of kubernetes_asyncio; if its modules are not where they were, all of it."""
    # It reads the home folder when it is imported, which a random uid in a container lacks.
    os.environ.setdefault("HOME", "/")
    if NAME not in sys.modules:
        try:
            return _part()
        except (ImportError, AttributeError) as error:
            log.debug("importing all of %s: %s", NAME, error)
    return _used(importlib.import_module(f"{NAME}.client"), importlib.import_module(f"{NAME}.config"))


def _part() -> Library:
    spec = importlib.util.find_spec(NAME)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"no package {NAME}")
    root = Path(spec.submodule_search_locations[0])
    try:
        for name, folder in PACKAGES.items():
            package = sys.modules[name] = ModuleType(name)
            package.__path__ = [str(root / folder)]
        client = sys.modules[f"{NAME}.client"]
        for module, attribute in (("configuration", "Configuration"), ("api_client", "ApiClient")):
            setattr(client, attribute, getattr(importlib.import_module(f"{NAME}.client.{module}"), attribute))
        return _used(client, importlib.import_module(f"{NAME}.config"))
    finally:
        for name in [name for name in sys.modules if name == NAME or name.startswith(f"{NAME}.")]:
            del sys.modules[name]


def _used(client: ModuleType, config: ModuleType) -> Library:
    return Library(client.ApiClient, client.Configuration, config.load_kube_config, config.load_incluster_config)
