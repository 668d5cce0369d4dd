"""Container images on nodes."""

from collections.abc import Sequence

from topo_scheduler.api.objects import ContainerImage


class Images:
    """Images by name. A heartbeat with the same images changes nothing."""

    def __init__(self) -> None:
        self.sizes: dict[str, dict[int, int]] = {}
        """By name of an image, the rows of the nodes that have it, with its size in bytes there."""
        self.changes = 0
        """Number of changes to the images of any node."""
        self._of_row: dict[int, Sequence[ContainerImage]] = {}

    def put(self, row: int, images: Sequence[ContainerImage]) -> None:
        """Store the images of a row, none for a deleted node."""
        previous = self._of_row.get(row, [])
        if previous == images:
            return
        self.changes += 1
        # Each name once: on some nodes all untagged images have the name <none>:<none>.
        for name in {name for image in previous for name in image.names}:
            size_by_row = self.sizes[name]
            del size_by_row[row]
            if not size_by_row:
                del self.sizes[name]
        for image in images:
            for name in image.names:
                self.sizes.setdefault(name, {})[row] = image.size_bytes
        if images:
            self._of_row[row] = images
        else:
            self._of_row.pop(row, None)
