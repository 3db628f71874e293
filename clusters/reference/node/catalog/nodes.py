"""A node as zones see it: its name, its configured attributes, the storage profiles that it has."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

AttributeText = Annotated[str, Meta(max_length=256)]
# ``None``: an attribute without a value, as the seed's tags are.
AttributeValue = AttributeText | bool | int | float | None
MAX_ATTRIBUTES = 64  # with the length of a text what bounds the cost of a filter
DEFAULT_PROFILE = "default"


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """Two nodes are equal if all of it is: a node that comes back with other attributes is another
    one for its zones (IEP-101, "Node Attributes"; the start of a process does not count).
    """

    name: AttributeText
    attributes: Annotated[dict[AttributeText, AttributeValue], Meta(max_length=MAX_ATTRIBUTES)] = {}
    profiles: tuple[AttributeText, ...] = (DEFAULT_PROFILE,)

    @property
    def words(self) -> tuple[str, ...]:
        """The texts that the words of a filter are compared with: the node's name, attributes
        without a value, the values of the others.
        """
        tags = (name for name, value in self.attributes.items() if value is None)
        values = (text(value) for value in self.attributes.values() if value is not None)
        return (self.name, *tags, *values)


def text(value: str | bool | int | float) -> str:
    """An attribute's value as a filter's word writes it: ``true``, ``10``, ``SSD``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
