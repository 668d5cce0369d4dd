"""Affinity of running pods that applies to a pod, as its class has it, and the sets of such terms that are cached.

Caches have thousands of classes, and any number of terms may apply to each. If classes had their terms, caches would
take memory for classes × terms, and keep terms of deleted pods. So a class has only a digest of its terms.
"""

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final, Generic, TypeVar

MAX_CACHED_TERMS: Final = 8_192
"""Terms in all cached sets; the least recently used sets are dropped first. A larger set is not cached."""
_DIGEST_BYTES: Final = 16

Entry = TypeVar("Entry", bound=Hashable)


@dataclass(frozen=True, slots=True)
class AppliedTerms(Generic[Entry]):
    """At least one term of other pods that applies to pods with some labels. Equal for equal terms.

    ``digest`` is that of the terms of running pods, ``beside`` has terms of pods that a search has seated.
    """

    digest: bytes
    namespace: str = field(default="", compare=False)
    labels: Mapping[str, str] = field(default_factory=dict, compare=False)
    beside: frozenset[Entry] = frozenset()


def with_further(applied: AppliedTerms[Entry] | None, further: frozenset[Entry]) -> AppliedTerms[Entry] | None:
    """Return applied terms with those of further pods."""
    if not further:
        return applied
    return AppliedTerms(b"", beside=further) if applied is None else replace(applied, beside=applied.beside | further)


def digest_of(terms: frozenset[Any]) -> bytes:
    """Return the digest of a set of terms, the same for equal sets of this process."""
    return blake2b(array("q", sorted(map(_hash, terms))).tobytes(), digest_size=_DIGEST_BYTES).digest()


def _hash(term: Any) -> int:
    # In Python the numbers -1 and -2, which are weights of terms, have the same hash.
    return hash((str(term[0]), term[1])) if isinstance(term, tuple) else hash(term)


class TermSets:
    """Cached sets of terms by digest."""

    def __init__(self) -> None:
        self._sets: OrderedDict[bytes, frozenset[Any]] = OrderedDict()
        self._terms = 0
        """Terms in all sets."""

    def get(self, digest: bytes) -> frozenset[Any] | None:
        """Return the set with a digest, None if it is not cached."""
        terms = self._sets.get(digest)
        if terms is not None:
            self._sets.move_to_end(digest)
        return terms

    def put(self, terms: frozenset[Any]) -> bytes:
        """Cache a set unless it is too large; return its digest."""
        digest = digest_of(terms)
        if digest in self._sets:
            self._sets.move_to_end(digest)
        elif len(terms) <= MAX_CACHED_TERMS:
            self._sets[digest] = terms
            self._terms += len(terms)
            while self._terms > MAX_CACHED_TERMS:
                self._terms -= len(self._sets.popitem(last=False)[1])
        return digest

    def clear(self) -> None:
        """Drop all sets."""
        self._sets.clear()
        self._terms = 0
