"""Why pods with claims wait as long as the kinds that they depend on are not listed."""

from collections.abc import Mapping


def unlisted_problem(unlisted: Mapping[str, bool], remedy: str) -> str:
    """Return what pods wait for, empty if all kinds are listed.

    Args:
        unlisted: kinds without a complete list, each with whether the API server has refused to list it.
        remedy: what helps if it refuses.
    """
    if refused := [kind for kind, is_refused in unlisted.items() if is_refused]:
        return f"{', '.join(refused)} can't be listed yet: {remedy}"
    return f"{', '.join(unlisted)} are still being listed" if unlisted else ""
