"""What a replica says that it holds, by the generation of the log that it has applied."""

from __future__ import annotations

import contextvars
import random

from clusters.reference.node import declarations
from clusters.reference.node.declarations import CONTENT_EVERY, Content
from clusters.reference.node.groups.group import Group
from clusters.reference.node.metastorage.metastorage import Metastorage
from clusters.reference.node.raft import (
    Append,
    Configuration,
    Entry,
    Generation,
    HardState,
    Mark,
    Raft,
)
from clusters.reference.node.raft.settings import RaftConfig

VOTERS = ("n1", "n2", "n3")


def told(raft: Raft) -> list[object]:
    """What is declared as the last entry of ``raft``, all of which is committed, is applied."""
    found: list[object] = []
    group = Group(name="p0", partition=0, raft=raft, machine=Metastorage(), opened_tick=0)
    context = contextvars.copy_context()
    context.run(declarations.listen, found.append)
    context.run(group.apply, [Entry(1, CONTENT_EVERY, b"")])
    return [(each.generation, each.index) for each in found if isinstance(each, Content)]


def test_what_was_committed_is_told_as_of_its_generation_once_a_later_one_has_begun() -> None:
    mark = Mark(CONTENT_EVERY, 1, Configuration(VOTERS))
    raft = Raft(
        config=RaftConfig(node="n2", voters=VOTERS),
        hard_state=HardState(1),
        entries=(),
        random=random.Random(1),
        base=mark,
        snapshot=mark,
    )
    assert told(raft) == [(0, CONTENT_EVERY)]

    # The generation was begun behind the entry before: this copy has diverged, and is not erased
    # before what it has committed is applied.
    begun = Generation(1, 0, CONTENT_EVERY - 1, 1)
    raft.step(Append("n1", 2, CONTENT_EVERY - 1, 1, 0, 1, (), (begun,)))

    assert (raft.generation, raft.diverged) == (1, True)
    assert told(raft) == [(0, CONTENT_EVERY)]
