"""The classes by which the adversary chooses messages."""

from __future__ import annotations

from typing import get_args

from clusters.providers.sim.message_classes import CLASSES, joined, parts_of
from clusters.reference.node.raft.types import Message, TimeoutNow
from clusters.reference.node.wire.messages import RaftBatch, encode
from harness.protocols.crash_points import MessageClass


def test_a_request_to_lead_is_of_the_class_of_votes() -> None:
    frame = encode(RaftBatch((("p1", TimeoutNow("n1", 2, 0)),)))

    (part,) = parts_of(frame)

    assert (part.kind, part.partition) == (MessageClass.VOTES, 1)
    assert joined([part]) == frame


def test_every_message_of_raft_is_of_a_class() -> None:
    assert set(get_args(Message)) <= set(CLASSES)
