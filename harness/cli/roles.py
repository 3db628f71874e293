"""The roles that a campaign's table of faults has columns for."""

from __future__ import annotations

from collections.abc import Iterable

PRIMARY, VOTER, METASTORAGE, NOBODY = (
    "primary of a partition",
    "other voter",
    "metastorage leader",
    "no role",
)
ROLES = (PRIMARY, VOTER, METASTORAGE)
_ROLE_OF = (
    ("leader of partition", PRIMARY),
    ("follower of partition", VOTER),
    ("metastorage leader", METASTORAGE),
)


def role_classes(roles: Iterable[str]) -> tuple[str, ...]:
    """The kinds of roles among ``roles`` as a fault recorded them; ``NOBODY`` where there is
    none.
    """
    held = tuple(roles)
    found = (name for start, name in _ROLE_OF if any(role.startswith(start) for role in held))
    return tuple(found) or (NOBODY,)
