"""The kinds of roles that coverage counts, from the roles that a fault recorded of its target."""

from __future__ import annotations

from collections.abc import Iterable

PRIMARY, VOTER, METASTORAGE = "primary of a partition", "other voter", "metastorage leader"
ROLES = (PRIMARY, VOTER, METASTORAGE)
_ROLE_OF = (
    (("leader of partition", "primary of partition"), PRIMARY),
    (("follower of partition", "other voter of partition"), VOTER),
    (("metastorage leader",), METASTORAGE),
)


def role_kinds(roles: Iterable[str]) -> tuple[str, ...]:
    """The kinds among ``roles`` (``leader of partition 3`` ...), in the order of ``ROLES``."""
    held = tuple(roles)
    return tuple(kind for starts, kind in _ROLE_OF if any(role.startswith(starts) for role in held))
