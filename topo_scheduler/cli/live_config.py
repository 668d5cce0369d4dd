"""The configuration of a cluster's scheduler, read from the ConfigMap that its Deployment mounts.

Any user can label a Deployment in a namespace of their own. So what `NAMESPACE` holds comes first: a Deployment, then
the ConfigMap of the manifests. Deployments elsewhere count only if both are missing.

Importing the configuration models takes 0.2 s, so they are imported only once the ConfigMap is known.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import msgspec

from topo_scheduler.api.text import few_of
from topo_scheduler.cli.common import USAGE, CommandFailure, say
from topo_scheduler.kube.connection.client import Client, decode
from topo_scheduler.kube.connection.errors import ApiError, KubeError, NotFound
from topo_scheduler.kube.connection.resources import segment

if TYPE_CHECKING:
    from topo_scheduler.api.config import Configuration

NAMESPACE: Final = "kube-system"
"""Namespace of the manifests, in which only administrators create objects."""
CONFIG_MAP: Final = (NAMESPACE, "topology-scheduler-config")
"""Namespace and name in the manifests."""
SELECTOR: Final = "app=topology-scheduler"
"""Label of the Deployment in the manifests."""
LISTED_DEPLOYMENTS: Final = 64
"""Maximum Deployments that are read: users may label any number."""
TIMEOUT_SECONDS: Final = 10.0
KEPT: Final = "a scheduler that runs keeps the configuration that it had: --config FILE names that"
"""What follows from a configuration that is refused."""

_object: Final = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class LiveConfiguration:
    """A configuration and its source. ``assumed``: it could not be read, so it has the defaults."""

    configuration: "Configuration"
    origin: str
    assumed: bool = False


@dataclass(frozen=True, slots=True)
class _Mounted:
    """Configuration of a Deployment: the ConfigMap behind ``--config``, if any, and the flags that override it."""

    namespace: str
    deployment: str
    config_map: tuple[str, str] | None
    scheduler_name: str | None


async def live_configuration(
    client: Client, config_path: Path | None, config_map: str | None, scheduler_name: str | None = None
) -> LiveConfiguration:
    """Return the configuration of the scheduler that runs in a cluster; warn on standard error if it is assumed.

    Args:
        client: connection to the cluster.
        config_path: a file or folder to read instead.
        config_map: ``NAMESPACE/NAME`` of the ConfigMap to read.
        scheduler_name: replaces the name in the configuration.

    Raises:
        CommandFailure: the named source can't be read, its configuration is invalid, or several Deployments may be the
            scheduler's.
        KubeError: no answer from the API server.
    """
    if config_path is not None and config_map:
        raise CommandFailure("--config and --config-map exclude each other; give one of them", USAGE)
    mounted = None if config_path or config_map else _only(await _deployed(client, NAMESPACE))
    from topo_scheduler.api.config import ConfigError

    try:
        live = await _read(client, config_path, config_map, mounted)
        return _named(live, scheduler_name)
    except ConfigError as error:
        hint = (
            ""
            if config_path is not None
            else "\n--config FILE or --config-map NAMESPACE/NAME names another configuration"
        )
        raise CommandFailure(f"{error}{hint}", USAGE) from error


def _named(live: LiveConfiguration, scheduler_name: str | None) -> LiveConfiguration:
    from topo_scheduler.cli.run import with_flags

    return replace(live, configuration=with_flags(live.configuration, {"scheduler_name": scheduler_name}))


async def _read(
    client: Client, config_path: Path | None, config_map: str | None, mounted: _Mounted | None
) -> LiveConfiguration:
    from topo_scheduler.runtime.config_files import read_configuration

    if config_path is not None:
        return LiveConfiguration(read_configuration(config_path), str(config_path))
    if config_map:
        namespace, slash, name = config_map.partition("/")
        if not (slash and namespace and name) or "/" in name:
            raise CommandFailure(f"--config-map {config_map}: write NAMESPACE/NAME", USAGE)
        try:
            _path(namespace, name)
        except ValueError as error:
            raise CommandFailure(f"--config-map {config_map}: {error}", USAGE) from error
        try:
            return await _from_map(client, namespace, name)
        except ApiError as error:
            raise CommandFailure(f"ConfigMap {config_map} can't be read: {error.message}") from error
    return await (_by_default(client) if mounted is None else _from_deployment(client, mounted))


async def _by_default(client: Client) -> LiveConfiguration:
    """Return the configuration of a scheduler that has no Deployment in `NAMESPACE`."""
    try:
        live = await _from_map(client, *CONFIG_MAP)
    except NotFound as error:
        mounted = _only(await _deployed(client))
        if mounted is None:
            return _assumed(CONFIG_MAP, error)
        say(
            f"warning: namespace {NAMESPACE} has neither a Deployment with the label {SELECTOR} nor the ConfigMap"
            f" {CONFIG_MAP[1]}: the configuration of {mounted.deployment} is read, in namespace {mounted.namespace};"
            " --config-map NAMESPACE/NAME or --config FILE names another",
            err=True,
        )
        return await _from_deployment(client, mounted)
    except ApiError as error:
        return _assumed(CONFIG_MAP, error)
    with suppress(KubeError):  # users decide how long the answer is
        if elsewhere := await _deployed(client):
            names = few_of([deployment.deployment for deployment in elsewhere])
            say(
                f"warning: {live.origin} is read, not the configuration of {names}: namespace {NAMESPACE} comes first;"
                " --config-map NAMESPACE/NAME names another",
                err=True,
            )
    return live


async def _from_deployment(client: Client, mounted: _Mounted) -> LiveConfiguration:
    from topo_scheduler.api.config import Configuration

    if mounted.config_map is None:
        live = LiveConfiguration(Configuration(), f"{mounted.deployment}, which mounts no ConfigMap")
    else:
        try:
            live = await _from_map(client, *mounted.config_map)
        except ApiError as error:
            return _assumed(mounted.config_map, error)
    return _named(live, mounted.scheduler_name)


def _assumed(config_map: tuple[str, str], error: ApiError) -> LiveConfiguration:
    from topo_scheduler.api.config import Configuration

    problem = "does not exist" if isinstance(error, NotFound) else f"can't be read ({error.message})"
    say(
        f"warning: ConfigMap {'/'.join(config_map)} {problem}: defaults are assumed;"
        " --config-map NAMESPACE/NAME or --config FILE names the scheduler's own",
        err=True,
    )
    return LiveConfiguration(Configuration(), "defaults", assumed=True)


def _path(namespace: str, name: str) -> str:
    """Return the path of a ConfigMap; raises ``ValueError`` for names that no object has."""
    return f"/api/v1/namespaces/{segment(namespace)}/configmaps/{segment(name)}"


async def _from_map(client: Client, namespace: str, name: str) -> LiveConfiguration:
    from topo_scheduler.api.config import ConfigError
    from topo_scheduler.runtime.config_files import load_filled

    config_map = decode(_object, await client.request("GET", _path(namespace, name), timeout=TIMEOUT_SECONDS))
    origin = f"ConfigMap {namespace}/{name}"
    files = {
        f"{origin}: {key}": text
        for key, text in sorted((config_map.get("data") or {}).items())
        if key.endswith((".yaml", ".yml"))
    }
    if not files:
        raise ConfigError(f"{origin}: no key ends in .yaml; the scheduler reads such keys only")
    try:
        return LiveConfiguration(load_filled(origin, files), origin)
    except ConfigError as error:
        raise ConfigError(f"{error}; {KEPT}") from error


async def _deployed(client: Client, namespace: str = "") -> list[_Mounted]:
    """Return the configuration sources of Deployments with the scheduler's label; none without permission to list.

    Args:
        client: connection to the cluster.
        namespace: their namespace; by default all.
    """
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments" if namespace else "/apis/apps/v1/deployments"
    query = {"labelSelector": SELECTOR, "limit": str(LISTED_DEPLOYMENTS)}
    try:
        answer = await client.request("GET", path, query=query, timeout=TIMEOUT_SECONDS)
    except ApiError:
        return []
    return [_mounted(deployment) for deployment in decode(_object, answer)["items"]]


def _only(mounted: Sequence[_Mounted]) -> _Mounted | None:
    """Return the configuration source that Deployments share; None without Deployments.

    Raises:
        CommandFailure: they mount different ConfigMaps, are of different namespaces, or may not be all.
    """
    sources = {(deployment.namespace, deployment.config_map) for deployment in mounted}
    if len(sources) > 1 or len(mounted) >= LISTED_DEPLOYMENTS:
        names = ", ".join(
            f"{deployment.deployment} mounts {'/'.join(deployment.config_map) if deployment.config_map else 'none'}"
            for deployment in mounted[:4]
        )
        raise CommandFailure(f"several schedulers run here: {names}; choose by --config-map NAMESPACE/NAME", USAGE)
    return mounted[0] if mounted else None


def _mounted(deployment: dict[str, Any]) -> _Mounted:
    namespace, spec = deployment["metadata"]["namespace"], deployment["spec"]["template"]["spec"]
    described = f"Deployment {namespace}/{deployment['metadata']['name']}"
    scheduler_names = []
    for container in spec["containers"]:
        arguments = [*container.get("command", ()), *container.get("args", ())]
        config, scheduler_name = _flag(arguments, "--config"), _flag(arguments, "--scheduler-name")
        scheduler_names.append(scheduler_name)
        if config is None:
            continue
        maps = {
            volume["name"]: volume["configMap"]["name"] for volume in spec.get("volumes", ()) if "configMap" in volume
        }
        matching_mounts = [
            mount
            for mount in container.get("volumeMounts", ())
            if PurePosixPath(config).is_relative_to(mount["mountPath"])
        ]
        mount = max(matching_mounts, key=lambda mount: len(mount["mountPath"]), default=None)
        name = maps.get(mount["name"]) if mount is not None else None
        return _Mounted(namespace, described, (namespace, name) if name else None, scheduler_name)
    return _Mounted(namespace, described, None, next(filter(None, scheduler_names), None))


def _flag(arguments: Sequence[str], name: str) -> str | None:
    """Return the value of a flag, written ``--flag=value`` or as two arguments."""
    for number, argument in enumerate(arguments):
        if argument.startswith(f"{name}="):
            return argument.removeprefix(f"{name}=")
        if argument == name and number + 1 < len(arguments):
            return arguments[number + 1]
    return None
