"""A client of metastorage: which refusals it waits out, and which answers it passes on."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from clusters.providers.sim.loop import simulate
from clusters.reference.node.metastorage.metastorage import (
    Invoke,
    Metastorage,
    Operation,
    encode_invoke,
)
from clusters.reference.node.metastorage.metastorage_client import (
    INVOKE_TIMEOUT_S,
    LeaderHint,
    MetastorageClient,
)
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.tx.primary_client import Ask, Notify
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import (
    Ack,
    Failed,
    InvokeReply,
    PeerAnswer,
    PeerBody,
    Renew,
)

DONE = InvokeReply(success=True, revision=7)


async def unasked(node: str, body: PeerBody, limit_s: float) -> PeerAnswer:
    raise AssertionError(f"nothing is asked of {node}: {body}")


def client_of(
    group: SimpleNamespace,
    *,
    store: Metastorage | None = None,
    ask: Ask = unasked,
    notify: Notify = lambda node, body: None,
) -> MetastorageClient:
    return MetastorageClient(store=store or Metastorage(), group=group, ask=ask, notify=notify)


def invoked(*answers: PeerAnswer, leader: str | None = "a") -> tuple[object, int, float]:
    """What an invoke comes to where the leader gives ``answers``, the last for ever: the result,
    how often it was asked, and the seconds that it took.
    """
    asked = []

    async def ask(node: str, body: PeerBody, limit_s: float) -> PeerAnswer:
        asked.append(node)
        return answers[min(len(asked), len(answers)) - 1]

    async def scenario() -> tuple[object, int, float]:
        client = client_of(SimpleNamespace(leader=leader), ask=ask)
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        answer = await client.invoke(Invoke((), ()))
        return answer, len(asked), loop.time() - begun_s

    return simulate(scenario())


@pytest.mark.parametrize("code", [codes.NOT_LEADER, codes.UNREACHABLE])
def test_what_certainly_was_not_done_is_asked_again(code: str) -> None:
    answer, asked, took_s = invoked(Failed(code), Failed(code), DONE)
    assert answer == DONE
    assert asked == 3
    assert took_s < INVOKE_TIMEOUT_S


@pytest.mark.parametrize("code", [codes.PEER_LOST, codes.OVERLOADED])
def test_what_may_have_been_done_is_not_asked_again(code: str) -> None:
    answer, asked, _ = invoked(Failed(code), DONE)
    assert answer == Failed(code)
    assert asked == 1


def test_a_refusal_that_goes_on_is_passed_on_in_time() -> None:
    answer, asked, took_s = invoked(Failed(codes.NOT_LEADER))
    assert answer == Failed(codes.NOT_LEADER)
    assert asked > 10
    assert INVOKE_TIMEOUT_S - 0.1 <= took_s <= INVOKE_TIMEOUT_S


def test_without_a_leader_no_node_is_asked() -> None:
    answer, asked, took_s = invoked(DONE, leader=None)
    assert isinstance(answer, Failed)
    assert answer.code == codes.NOT_LEADER
    assert asked == 0
    assert took_s <= INVOKE_TIMEOUT_S


def test_an_answer_of_another_kind_leaves_it_open() -> None:
    answer, _, _ = invoked(Ack())
    assert answer == Failed(codes.LOST)


def test_a_renewal_goes_to_the_leader_and_nowhere_without_one() -> None:
    group, sent = SimpleNamespace(leader="a"), list[tuple[str, PeerBody]]()
    client = client_of(group, notify=lambda node, body: sent.append((node, body)))
    renewal = Renew("n1", b"lease")
    client.renew(renewal)
    group.leader = None
    client.renew(renewal)

    assert sent == [("a", renewal)]


def test_a_watch_of_a_client_is_told_of_what_is_applied_here_until_it_is_ended() -> None:
    store, seen = Metastorage(), list[int]()
    watcher = SimpleNamespace(changed=lambda change: seen.append(change.revision))
    client = client_of(SimpleNamespace(leader=None), store=store)
    watch = client.watch("a/", 0, watcher)
    for revision in (1, 2):
        invoke = Invoke((), (Operation("a/1", b"%d" % revision),))
        store.apply(Entry(1, revision, encode_invoke(invoke)))
        client.unwatch(watch)

    assert seen == [1]


def test_a_hint_is_followed_once_and_then_what_this_node_knows() -> None:
    hint = LeaderHint(lambda: "a")
    assert hint.next() == "a"
    hint.failed(Failed(codes.NOT_LEADER, leader="b"))
    assert hint.next() == "b"
    hint.failed(Failed(codes.NOT_LEADER, leader="c"))
    assert hint.next() == "c"
    # It was lost itself, and names who can't say so.
    hint.failed(Failed(codes.NOT_LEADER, leader="c"))
    assert hint.next() == "a"
    hint.failed(Failed(codes.NOT_LEADER))
    assert hint.next() == "a"
