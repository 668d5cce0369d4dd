"""A plugin guard without isolation, for tests and one-shot commands."""

from collections.abc import Callable
from typing import TypeVar

from topo_scheduler.scheduling.extensions.extension import PluginError, error_text

T = TypeVar("T")


class DirectGuard:
    """Calls plugins directly: it reports exceptions, but has no time limit. For tests and one-shot commands."""

    def call(self, plugin: str, point: str, work: Callable[[], T]) -> T:
        """Call the function in this thread."""
        try:
            return work()
        except PluginError:
            raise
        except Exception as error:
            raise PluginError(plugin, point, "raised", error_text(error)) from error

    def begin(self) -> None:
        """Do nothing: there is no time limit."""

    def pardon(self) -> None:
        """Do nothing: there is no record of failures."""
