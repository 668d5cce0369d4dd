"""MIG geometry: which instances a GPU can be split into, and where on it each can start.

A GPU has memory slices and compute slices. An instance takes consecutive memory slices, from one of its possible starts
on, and a number of compute slices anywhere. What a driver reports wins over these tables.

Instances with media extensions (``+me``) of one size share a limit; that one excludes another size is not said here.

Source: NVIDIA's MIG user guide; placements that driver 580 reports for an H100 and an H200, which the tests compare.
"""

import re
from dataclasses import dataclass
from typing import Final

GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A kind of instance.

    Attributes:
        name: such as ``1g.10gb``.
        compute_slices: compute slices that it takes.
        memory_slices: consecutive memory slices that it takes.
        starts: memory slices where it can start, in order.
        max_count: instances of it on one GPU at once.
    """

    name: str
    compute_slices: int
    memory_slices: int
    starts: tuple[int, ...]
    max_count: int


@dataclass(frozen=True, slots=True)
class MigGeometry:
    """All that a GPU can be split into. ``profiles`` have unique names."""

    compute_slices: int
    memory_slices: int
    profiles: tuple[MigProfile, ...]

    def profile(self, name: str) -> MigProfile | None:
        """Return a profile by name, or None."""
        return next((profile for profile in self.profiles if profile.name == name), None)


def _seven(*memory: str) -> MigGeometry:
    """Return the geometry of GPUs with seven compute slices, from the memory of one, two, four and eight slices."""
    one_slice, two_slices, four_slices, eight_slices = memory
    ones = tuple(range(7))
    return MigGeometry(
        7,
        8,
        (
            MigProfile(f"1g.{one_slice}", 1, 1, ones, 7),
            MigProfile(f"1g.{one_slice}+me", 1, 1, ones, 1),
            MigProfile(f"1g.{two_slices}", 1, 2, (0, 2, 4, 6), 4),
            MigProfile(f"2g.{two_slices}", 2, 2, (0, 2, 4), 3),
            MigProfile(f"3g.{four_slices}", 3, 4, (0, 4), 2),
            MigProfile(f"4g.{four_slices}", 4, 4, (0,), 1),
            MigProfile(f"7g.{eight_slices}", 7, 8, (0,), 1),
        ),
    )


_A30: Final = MigGeometry(
    4,
    4,
    (
        MigProfile("1g.6gb", 1, 1, (0, 1, 2, 3), 4),
        MigProfile("1g.6gb+me", 1, 1, (0, 1, 2, 3), 1),
        MigProfile("2g.12gb", 2, 2, (0, 2), 2),
        MigProfile("2g.12gb+me", 2, 2, (0, 2), 1),
        MigProfile("4g.24gb", 4, 4, (0,), 1),
    ),
)
_80_GB: Final = _seven("10gb", "20gb", "40gb", "80gb")
_96_GB: Final = _seven("12gb", "24gb", "48gb", "96gb")

_TABLES: Final = (
    ("A30", 24, _A30),
    ("A100", 40, _seven("5gb", "10gb", "20gb", "40gb")),
    ("A100", 80, _80_GB),
    ("H100", 80, _80_GB),
    ("H100", 94, _seven("12gb", "24gb", "47gb", "94gb")),
    ("H100", 96, _96_GB),
    ("H20", 96, _96_GB),
    ("H200", 141, _seven("18gb", "35gb", "71gb", "141gb")),
    ("GH200", 96, _96_GB),
    ("GH200", 144, _seven("18gb", "36gb", "72gb", "144gb")),
    ("B200", 180, _seven("23gb", "45gb", "90gb", "180gb")),
    ("GB200", 186, _seven("23gb", "47gb", "93gb", "186gb")),
    ("B300", 269, _seven("34gb", "67gb", "135gb", "269gb")),
)
"""Product, GiB of its memory, and geometry."""
_TOLERANCE: Final = 0.03
"""Share by which the memory that a driver reports may differ, such as 79.6 GiB of 80."""
_WORDS: Final = re.compile(r"[A-Z]+\d+", re.IGNORECASE)


def geometry_of(model: str, memory_bytes: int) -> MigGeometry | None:
    """Return the geometry of a product, or None if the tables have none.

    Args:
        model: product name, such as ``NVIDIA H100 80GB HBM3`` or ``NVIDIA-A100-SXM4-40GB``.
        memory_bytes: size of its memory. Products of one name with other memory have other profiles.
    """
    words = {word.upper() for word in _WORDS.findall(model)}
    sizes = [
        (abs(size * GIB - memory_bytes), size, geometry) for product, size, geometry in _TABLES if product in words
    ]
    difference, size, geometry = min(sizes, key=lambda entry: entry[:2], default=(0, 0, None))
    return geometry if difference <= _TOLERANCE * size * GIB else None
