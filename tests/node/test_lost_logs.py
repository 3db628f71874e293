"""A leader tells whose log has lost what it had acknowledged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from clusters.reference.node import events
from clusters.reference.node.metastorage.metastorage import METASTORAGE
from clusters.reference.node.topology.reconfigurer import EVERY_TICKS, Reconfigurer


def test_a_lost_log_is_told_once_and_names_its_node() -> None:
    raft = SimpleNamespace(term=3, followers_with_lost_log=lambda: ("n4@5e1f", "n2@77aa"))
    group = SimpleNamespace(name=METASTORAGE, partition=None, serving=False, raft=raft)
    log = events.EventLog(boot="b", wall_ns=lambda: 7)
    reconfigurer = Reconfigurer(
        host=cast(Any, SimpleNamespace(groups={METASTORAGE: group})),
        replicas=cast(Any, SimpleNamespace(replicas={})),
        assignments={},
        lives=dict,
        event_log=log,
    )

    for _ in range(3 * EVERY_TICKS):
        reconfigurer.tick()

    told = log.since("b", 0).events
    assert [(event.kind, event.about) for event in told] == [
        (events.LOST_LOG, "n4"),
        (events.LOST_LOG, "n2"),
    ]
