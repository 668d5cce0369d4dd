"""Which container images are on which nodes."""

from collections.abc import Sequence

from topo_scheduler.api.objects import ContainerImage


class Images:
    """Images by name. A heartbeat that tells the same again changes nothing."""

    def __init__(self) -> None:
        self.sizes: dict[str, dict[int, int]] = {}
        """By name of an image, the rows that have it, and its bytes there."""
        self.changes = 0
        """How often the images of any node became others."""
        self._of_row: dict[int, Sequence[ContainerImage]] = {}

    def put(self, row: int, images: Sequence[ContainerImage]) -> None:
        """Take over the images of a row, none where the node is gone."""
        known = self._of_row.get(row, [])
        if known == images:
            return
        self.changes += 1
        # Each name once: images that lost their tags are all called <none>:<none> on some nodes.
        for name in {name for image in known for name in image.names}:
            there = self.sizes[name]
            del there[row]
            if not there:
                del self.sizes[name]
        for image in images:
            for name in image.names:
                self.sizes.setdefault(name, {})[row] = image.size_bytes
        if images:
            self._of_row[row] = images
        else:
            self._of_row.pop(row, None)
