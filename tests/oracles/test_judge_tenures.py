"""How long locks may be held: by what a primary goes on doing after a transaction's end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clusters.providers.sim.oracles.tenures import APART_S, TURNS, Tenures
from clusters.reference.claims.claims_reader import ReferenceClaims
from clusters.reference.node.declarations import PrimaryAnswer
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import (
    NO_ANSWER,
    Ack,
    Begin,
    ClientBody,
    ClientReply,
    ClientRequest,
    Commit,
    Failed,
    Finish,
    Get,
    Ok,
    Put,
    ReplyBody,
    Rollback,
    Started,
    TxnId,
    Value,
    encode,
)
from harness.protocols.claims import EndRefused, LockGrant, TransactionOver

KEY, NODE, LIMIT_S = b"k", "n1", 2.0
TXN = TxnId(7, "n1~1", 1)


def grant(txn: str, *, epoch: int = 1, limit_s: float = LIMIT_S) -> LockGrant:
    return LockGrant("q", epoch, txn, KEY, True, limit_s)


def others(tenures: Tenures, since_s: float, *, every_s: float, count: int) -> Iterator[str]:
    """What is said as the primary goes on with transactions that end at once."""
    for number in range(count):
        yield tenures.granted(since_s + number * every_s, NODE, grant(f"other-{number}"))
        tenures.ended("q", f"other-{number}")


def test_a_lock_beyond_its_time_is_named_once_its_primary_had_its_turns() -> None:
    tenures = Tenures()
    tenures.granted(0.0, NODE, grant("a"))

    said = list(others(tenures, LIMIT_S, every_s=APART_S, count=TURNS + 3))

    assert [bool(text) for text in said] == [*[False] * TURNS, True, False, False]
    assert "a holds locks of q still: its time was over at 2.000 s" in said[TURNS]


def test_a_lock_goes_once_the_log_has_decided_as_its_primary_knows() -> None:
    def said(*, leader: str, released: bool) -> list[str]:
        tenures = Tenures()
        tenures.granted(0.0, NODE, grant("a"))
        tenures.logged("q", "a")
        # Prepared means promised, however long its outcome takes.
        assert not any(others(tenures, LIMIT_S, every_s=APART_S, count=TURNS + 3))
        tenures.decided(9.0, leader, "q", "a")
        if released:
            tenures.ended("q", "a")
        return [text for text in others(tenures, 9.0, every_s=APART_S, count=TURNS + 3) if text]

    assert said(leader=NODE, released=True) == []
    assert said(leader="n2", released=False) == []
    (text,) = said(leader=NODE, released=False)
    assert "a holds locks of q still: its end in the log is committed since 9.000 s" in text


def test_a_primary_that_grants_nothing_any_more_is_not_accused() -> None:
    tenures = Tenures()
    tenures.granted(0.0, NODE, grant("a"))

    assert not any(others(tenures, LIMIT_S, every_s=0.01, count=20))
    assert not any(others(tenures, 60.0, every_s=0.01, count=20))


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_transaction_that_ended_or_is_in_a_log_or_of_an_earlier_epoch_holds_nothing(
    epoch: int,
) -> None:
    tenures = Tenures()
    tenures.granted(0.0, NODE, grant("a"))
    if epoch == 1:
        tenures.ended("q", "a")
    for number in range(40):
        later = tenures.granted(3.0 + number, NODE, grant(f"b{number}", epoch=epoch))
        tenures.ended("q", f"b{number}")
        assert not later


def test_locks_of_a_transaction_that_its_coordinator_ended_go_at_once_on_the_same_node() -> None:
    def said(ended_by: str) -> list[str]:
        tenures = Tenures()
        tenures.granted(0.0, NODE, grant("a"))
        tenures.over(0.1, ended_by, TransactionOver("a"))
        return [text for text in others(tenures, 0.15, every_s=0.1, count=5) if text]

    assert said(NODE) == ["a holds locks of q still: n1 has ended it at 0.100 s"]
    assert said("n2") == []  # its message to n1 may be lost


def test_a_primary_whose_lease_is_over_keeps_the_locks_until_their_time_is_over() -> None:
    refused = Failed(codes.NOT_PRIMARY, "its lease has run out")
    told = ReferenceClaims().declared(NODE, PrimaryAnswer(Finish(3, TXN, 0), refused))

    assert EndRefused("p3", str(TXN)) in [fact for _, fact in told]
    done = ReferenceClaims().declared(NODE, PrimaryAnswer(Finish(3, TXN, 0), Ack()))
    assert not any(isinstance(fact, EndRefused) for _, fact in done)


class Client:
    """A connection to ``NODE``."""

    def __init__(self) -> None:
        self.claims, self.number = ReferenceClaims(), 0

    def asks(self, body: ClientBody, *, blind: bool = False) -> None:
        self.number += not blind
        number = NO_ANSWER if blind else self.number
        self.claims.asked(NODE, 7, encode(ClientRequest(number, body)))

    def hears(self, body: ReplyBody) -> list[str]:
        facts = self.claims.answered(NODE, 7, encode(ClientReply(self.number, body)))
        return [fact.txn for _, fact in facts if isinstance(fact, TransactionOver)]

    def goes(self) -> list[str]:
        facts = self.claims.ended(NODE, 7)
        return [fact.txn for _, fact in facts if isinstance(fact, TransactionOver)]

    def begins(self) -> Client:
        self.asks(Begin("read-write", 1000, 0))
        assert self.hears(Started("t")) == []
        return self


def test_a_transaction_is_over_where_its_client_says_so_or_a_step_failed() -> None:
    client = Client().begins()
    client.asks(Get(KEY))
    assert client.hears(Value(None)) == []
    client.asks(Rollback())
    assert client.hears(Ok()) == ["t"]

    client = Client().begins()
    client.asks(Get(KEY))
    assert client.hears(Failed(codes.CONFLICT, "older")) == ["t"]
    assert client.goes() == []


def test_a_transaction_is_over_with_the_connection_of_a_client_that_waits_for_nothing() -> None:
    assert Client().begins().goes() == ["t"]
    assert Client().goes() == []

    asking = Client().begins()
    asking.asks(Get(KEY))
    assert asking.goes() == []

    putting = Client().begins()
    putting.asks(Put(KEY, b"v"), blind=True)
    assert putting.goes() == []

    committing = Client().begins()
    committing.asks(Commit())
    committing.hears(Failed(codes.COMMIT_TIMEOUT, "in doubt"))
    assert committing.goes() == []
