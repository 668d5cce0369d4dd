"""The guard that guards nothing, for tests and one-shot commands."""

from collections.abc import Callable
from typing import TypeVar

from topo_scheduler.scheduling.extensions.extension import PluginError, told

T = TypeVar("T")


class Direct:
    """Calls plugins as they are: what raises is told, what loops is waited for. For tests and one-shot commands."""

    def call(self, plugin: str, point: str, work: Callable[[], T]) -> T:
        """Call it here and now."""
        try:
            return work()
        except PluginError:
            raise
        except Exception as error:
            raise PluginError(plugin, point, "raised", told(error)) from error

    def begin(self) -> None:
        """Nothing is measured."""

    def pardon(self) -> None:
        """Nothing is remembered."""
