"""Loads the plugins that the configuration names, by their entry points.

If a configured plugin can't be loaded, the process does not start. A scheduler that runs without a required filter
would silently place pods on nodes that the filter excludes.
"""

import logging
from importlib.metadata import EntryPoint, entry_points

from topo_scheduler.api.config import ConfigError
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.scheduling.extensions.extension import GROUP, Plugin, PluginGuard, error_text
from topo_scheduler.scheduling.extensions.registry import Extensions

log = logging.getLogger(__name__)


def load_extensions(
    config: SchedulerConfig, guard: PluginGuard | None = None, *, remedy: str = "Install it beside the scheduler"
) -> Extensions:
    """Return the built-in plugin and those that the configuration names, in the order of the configuration.

    Args:
        config: names the plugins.
        guard: calls the plugins; by default without limits.
        remedy: advice in the error message if a plugin is not installed.

    Raises:
        ConfigError: a plugin can't be loaded. The message names it and the reason.
    """
    extensions = Extensions(guard)
    by_name: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        by_name.setdefault(point.name, []).append(point)
    for position, wanted in enumerate(config.plugins):
        where = f"SchedulerConfig: plugins.{position}: plugin {wanted.name}"
        points = by_name.pop(wanted.name, [])
        if not points:
            available = ", ".join(sorted(point.name for point in entry_points(group=GROUP))) or "none"
            raise ConfigError(f"{where} is not installed; installed are {available}. {remedy}")
        if len({(point.value, _package(point)) for point in points}) > 1:
            packages = " and ".join(sorted({_package(point) for point in points}))
            raise ConfigError(f"{where} is installed by {packages}; remove one of them")
        _register(extensions, points[0], dict(wanted.arguments), where)
        log.info("plugin loaded", extra={"plugin": wanted.name, "package": _package(points[0])})
    if by_name:
        log.info("plugins are installed but not named in the configuration", extra={"plugins": sorted(by_name)})
    return extensions


def _register(extensions: Extensions, point: EntryPoint, arguments: dict[str, object], where: str) -> None:
    # Catch every error of an import, SystemExit included, because the message must name the plugin.
    try:
        factory = point.load()
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where}: {point.value} can't be imported: {error_text(error)}") from error
    if not callable(factory):
        raise ConfigError(f"{where}: {point.value} is not a function that takes arguments and returns a Plugin")
    try:
        plugin = factory(arguments)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where}: it does not take its arguments {arguments}: {error_text(error)}") from error
    if not isinstance(plugin, Plugin):
        raise ConfigError(f"{where}: {point.value} returned {type(plugin).__name__}; a Plugin is expected")
    if plugin.name and plugin.name != point.name:
        raise ConfigError(f"{where}: it calls itself {plugin.name}; its entry point's name counts, leave its own empty")
    try:
        extensions.register(plugin.named(point.name))
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown package"
