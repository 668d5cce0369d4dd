"""Numbers that are given out once in a process."""


class Numbering:
    """Gives out 0, 1, 2 and so on. ``first_free`` may be raised above numbers that are in use already."""

    __slots__ = ("first_free",)

    def __init__(self) -> None:
        self.first_free = 0

    def take(self) -> int:
        """Return a number that was not given out before."""
        number = self.first_free
        self.first_free = number + 1
        return number
