"""Numbers that are unique within a process."""


class Numbering:
    """Returns 0, 1, 2 and so on. ``first_free`` may be raised above numbers that are already in use."""

    __slots__ = ("first_free",)

    def __init__(self) -> None:
        self.first_free = 0

    def take(self) -> int:
        """Return the next unused number."""
        number = self.first_free
        self.first_free = number + 1
        return number
