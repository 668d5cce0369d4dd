"""The configuration that the scheduler of a cluster runs with, read from the ConfigMap that its Deployment mounts.

The models of the configuration take 0.2 s to import: they are, once it is known which ConfigMap to read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

import msgspec

from topo_scheduler.api.base import Base
from topo_scheduler.api.objects import ObjectMeta
from topo_scheduler.cli.common import USAGE, CommandFailure, say
from topo_scheduler.kube.client import Client, decode
from topo_scheduler.kube.errors import ApiError, NotFound
from topo_scheduler.kube.resources import segment

if TYPE_CHECKING:
    from topo_scheduler.api.config import Configuration

CONFIG_MAP: Final = ("kube-system", "topology-scheduler-config")
"""Namespace and name in the manifests."""
SELECTOR: Final = "app=topology-scheduler"
"""Label of the Deployment in the manifests."""
TIMEOUT_SECONDS: Final = 10.0


class _ConfigMap(Base):
    data: dict[str, str] = {}  # noqa: RUF012 - msgspec copies defaults


class _Mount(Base):
    name: str = ""
    mount_path: str = ""


class _Container(Base):
    command: list[str] = []  # noqa: RUF012
    args: list[str] = []  # noqa: RUF012
    volume_mounts: list[_Mount] = []  # noqa: RUF012


class _MapVolume(Base):
    name: str = ""


class _Volume(Base):
    name: str = ""
    config_map: _MapVolume | None = None


class _PodSpec(Base):
    containers: list[_Container] = []  # noqa: RUF012
    volumes: list[_Volume] = []  # noqa: RUF012


class _Template(Base):
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)


class _DeploymentSpec(Base):
    template: _Template = msgspec.field(default_factory=_Template)


class _Deployment(Base):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: _DeploymentSpec = msgspec.field(default_factory=_DeploymentSpec)


class _Deployments(Base):
    items: list[_Deployment] = []  # noqa: RUF012


_deployments: Final = msgspec.json.Decoder(_Deployments)
_config_map: Final = msgspec.json.Decoder(_ConfigMap)


@dataclass(frozen=True, slots=True)
class LiveConfiguration:
    """A configuration and where it comes from. ``assumed``: it could not be read, and defaults stand in for it."""

    configuration: "Configuration"
    origin: str
    assumed: bool = False


@dataclass(frozen=True, slots=True)
class _Mounted:
    """What a Deployment runs with: the ConfigMap behind ``--config``, if any, and the flags that override it."""

    deployment: str
    config_map: tuple[str, str] | None
    scheduler_name: str | None


async def live_configuration(
    client: Client, config_path: Path | None, config_map: str | None, scheduler_name: str | None = None
) -> LiveConfiguration:
    """Return the configuration of the scheduler that runs in a cluster; warn on standard error where it is assumed.

    Args:
        client: connection to the cluster.
        config_path: a file or folder that replaces it.
        config_map: ``NAMESPACE/NAME`` of the ConfigMap to read.
        scheduler_name: replaces the name that the configuration gives.

    Raises:
        Failure: what was named can't be read, or its text can't be used.
        KubeError: no answer from the API server.
    """
    if config_path is not None and config_map:
        raise CommandFailure("--config and --config-map exclude each other; give one of them", USAGE)
    mounted = None if config_path or config_map else await _deployed(client)
    from topo_scheduler.api.config import ConfigError

    try:
        live = await _read(client, config_path, config_map, mounted)
        return _named(live, scheduler_name)
    except ConfigError as error:
        other = (
            ""
            if config_path is not None
            else "\n--config FILE or --config-map NAMESPACE/NAME names another configuration"
        )
        raise CommandFailure(f"{error}{other}", USAGE) from error


def _named(live: LiveConfiguration, scheduler_name: str | None) -> LiveConfiguration:
    from topo_scheduler.cli.run import with_flags

    return replace(live, configuration=with_flags(live.configuration, {"scheduler_name": scheduler_name}))


async def _read(
    client: Client, config_path: Path | None, config_map: str | None, mounted: _Mounted | None
) -> LiveConfiguration:
    from topo_scheduler.api.config import Configuration
    from topo_scheduler.config_files import read_configuration

    if config_path is not None:
        return LiveConfiguration(read_configuration(config_path), str(config_path))
    if config_map:
        namespace, slash, name = config_map.partition("/")
        if not (slash and namespace and name) or "/" in name:
            raise CommandFailure(f"--config-map {config_map}: write NAMESPACE/NAME", USAGE)
        try:
            return await _from_map(client, namespace, name)
        except ApiError as error:
            raise CommandFailure(f"ConfigMap {config_map} can't be read: {error.message}") from error
    if mounted is not None and mounted.config_map is None:
        return _named(
            LiveConfiguration(Configuration(), f"{mounted.deployment}, which mounts no ConfigMap"),
            mounted.scheduler_name,
        )
    namespace, name = mounted.config_map if mounted is not None and mounted.config_map else CONFIG_MAP
    try:
        live = await _from_map(client, namespace, name)
    except ApiError as error:
        why = "does not exist" if isinstance(error, NotFound) else f"can't be read ({error.message})"
        say(
            f"warning: ConfigMap {namespace}/{name} {why}: defaults are assumed;"
            " --config-map NAMESPACE/NAME or --config FILE names the scheduler's own",
            err=True,
        )
        return LiveConfiguration(Configuration(), "defaults", assumed=True)
    return _named(live, mounted.scheduler_name if mounted is not None else None)


async def _from_map(client: Client, namespace: str, name: str) -> LiveConfiguration:
    from topo_scheduler.api.config import ConfigError, load_configuration

    path = f"/api/v1/namespaces/{segment(namespace)}/configmaps/{segment(name)}"
    found = decode(_config_map, await client.request("GET", path, timeout=TIMEOUT_SECONDS))
    origin = f"ConfigMap {namespace}/{name}"
    files = {f"{origin}: {key}": text for key, text in sorted(found.data.items()) if key.endswith((".yaml", ".yml"))}
    if not files:
        raise ConfigError(f"{origin}: no key ends in .yaml; the scheduler reads such keys only")
    return LiveConfiguration(load_configuration(files), origin)


async def _deployed(client: Client) -> _Mounted | None:
    """Return what the scheduler's Deployment runs with; None where there is none, or it may not be listed.

    Raises:
        Failure: several Deployments run with different ConfigMaps.
    """
    query = {"labelSelector": SELECTOR}
    try:
        answer = await client.request("GET", "/apis/apps/v1/deployments", query=query, timeout=TIMEOUT_SECONDS)
    except ApiError:
        return None
    found = [_mounted(one) for one in decode(_deployments, answer).items]
    if len({one.config_map for one in found}) > 1:
        names = ", ".join(
            f"{one.deployment} mounts {'/'.join(one.config_map) if one.config_map else 'none'}" for one in found[:4]
        )
        raise CommandFailure(f"several schedulers run here: {names}; choose by --config-map NAMESPACE/NAME", USAGE)
    return found[0] if found else None


def _mounted(deployment: _Deployment) -> _Mounted:
    namespace = deployment.metadata.namespace
    described = f"Deployment {namespace}/{deployment.metadata.name}"
    spec = deployment.spec.template.spec
    for container in spec.containers:
        said = [*container.command, *container.args]
        config = _flag(said, "--config")
        if config is None:
            continue
        maps = {volume.name: volume.config_map.name for volume in spec.volumes if volume.config_map is not None}
        below = [mount for mount in container.volume_mounts if PurePosixPath(config).is_relative_to(mount.mount_path)]
        mount = max(below, key=lambda mount: len(mount.mount_path), default=None)
        name = maps.get(mount.name) if mount is not None else None
        return _Mounted(described, (namespace, name) if name else None, _flag(said, "--scheduler-name"))
    names = [_flag([*one.command, *one.args], "--scheduler-name") for one in spec.containers]
    return _Mounted(described, None, next(filter(None, names), None))


def _flag(said: Sequence[str], name: str) -> str | None:
    """Return the value of a flag, written ``--flag=value`` or as two arguments."""
    for number, argument in enumerate(said):
        if argument.startswith(f"{name}="):
            return argument.removeprefix(f"{name}=")
        if argument == name and number + 1 < len(said):
            return said[number + 1]
    return None
