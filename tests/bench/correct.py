"""What must never be in a run, however fast: wrong placements, pods that were not bound, rules that were broken."""

from collections.abc import Iterator, Mapping
from typing import Any

from .objects import Json


def wrong(parts: Mapping[str, Json]) -> list[str]:
    """Return where the verifiers of a run complain, of whichever scheduler: no race that was won so counts."""
    return [text for name, part in parts.items() for text in _below(name, part.get("figures"))]


def _below(path: str, figures: Any) -> Iterator[str]:
    if not isinstance(figures, dict):
        return
    verifier = figures.get("verifier")
    if isinstance(verifier, dict) and verifier["wrong"]:
        yield (
            f"{path}: {verifier['correct_percent']} % of {verifier['checked']} placements are correct, "
            f"100 % are wanted: {'; '.join(verifier['first'])}"
        )
    if "wanted" in figures and figures["bound"] != figures["wanted"]:
        yield f"{path}: {figures['bound']} of {figures['wanted']} pods were bound"
    if figures.get("broken_rules"):
        yield f"{path}: {figures['broken_rules']} rules were broken: {'; '.join(figures['first_broken_rules'])}"
    if figures.get("settled") is False:
        yield f"{path}: gangs neither became whole nor were reported to wait for room"
    for key, value in figures.items():
        yield from _below(f"{path}.{key}", value)
