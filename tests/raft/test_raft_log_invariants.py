"""The invariants of a log: what of it must fit together."""

from __future__ import annotations

from clusters.reference.node.raft.configuration import Configuration
from clusters.reference.node.raft.raft_log import Log
from clusters.reference.node.raft.types import Entry, Mark

FOUNDERS, OTHERS = Configuration(("a", "b", "c")), Configuration(("a", "b"))


def log() -> Log:
    made = Log([Entry(1, 1, b"x")], Mark(0, 0, FOUNDERS))
    made.append_configuration(1, OTHERS)
    return made


def test_a_configuration_counts_as_long_as_its_entry_is_there() -> None:
    held = log()
    assert held.broken() is None

    held.merge([Entry(2, 2, b"y")], commit_index=0)

    assert held.configuration == FOUNDERS
    assert held.broken() is None


def test_a_configuration_that_outlives_its_entry_is_a_broken_invariant() -> None:
    held = log()
    held._entries[-1] = Entry(2, 2, b"y")
    assert held.broken() == "(a b) counts from 2 on, and the entry there does not say so"

    held._entries.pop()
    held._handed = held._durable = 1
    assert held.broken() == "(a b) counts from 2 on, and the entry there does not say so"
