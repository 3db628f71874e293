"""Leases and grants as values: the old holder has stopped before the new one may begin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference_kit import restore

from clusters.providers.sim.loop import simulate
from clusters.reference.node.events import EventLog
from clusters.reference.node.metastorage.metastorage import (
    Invoke,
    Metastorage,
    Operation,
    encode_invoke,
)
from clusters.reference.node.metastorage.metastorage_client import (
    INVOKE_TIMEOUT_S,
    LEADER_POLL_S,
    MetastorageClient,
)
from clusters.reference.node.metastorage.metastorage_service import MetastorageService
from clusters.reference.node.placement.lease_expiry import (
    CEILING_S,
    DRIFT,
    LEASE,
    LEASE_S,
    PRIMARY,
    Grant,
    Lease,
    LeaseTable,
    encode,
    origin_of,
    released,
)
from clusters.reference.node.placement.lease_manager import LeaseManager
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.runtime.hybrid_clock import Hlc
from clusters.reference.node.tx.outcome_sender import OutcomeSender
from clusters.reference.node.tx.partition_state_machine import Partition
from clusters.reference.node.tx.primary import Primary
from clusters.reference.node.tx.primary_client import PrimaryClient
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import (
    Failed,
    InvokeReply,
    PeerAnswer,
    PeerBody,
    Renew,
)


class Observer:
    """A node's view: a monotonic clock of its own rate, and a metastorage replica."""

    def __init__(self, node: str, boot: str = "00000001", rate: float = 1.0) -> None:
        self.node, self.rate, self.now_s = node, rate, 50.0
        self.origin = origin_of(node, boot)
        self.store = Metastorage()
        self.clock = Hlc(wall_ns=lambda: 10**18, monotonic_s=lambda: self.now_s)
        self.leases = LeaseTable(
            node=node,
            origin=self.origin,
            clock=self.clock,
            monotonic_s=lambda: self.now_s,
            held=self.store.get,
        )
        self.store.observe("", self.leases.changed)
        self.index = 0

    def apply(self, key: str, value: bytes) -> None:
        self.index += 1
        data = encode_invoke(Invoke((), (Operation(key, value),)))
        self.store.apply(Entry(1, self.index, data))

    def renewed(self, node: str, lease: Lease) -> None:
        self.apply(f"{LEASE}{node}", encode(lease))

    def granted(self, partition: int, grant: Grant) -> None:
        self.apply(f"{PRIMARY}{partition}", encode(grant))

    def pass_s(self, true_s: float) -> None:
        self.now_s += true_s * self.rate


def test_a_lease_counts_from_when_it_was_sent_and_only_once_it_is_applied() -> None:
    node = Observer("n1")
    lease = node.leases.next_renewal()
    assert not node.leases.holds()

    node.pass_s(0.4)
    node.renewed("n1", lease)

    assert node.leases.holds()
    node.pass_s(LEASE_S - 0.41)
    assert node.leases.holds()
    node.pass_s(0.02)
    assert not node.leases.holds()


def test_a_renewal_of_another_start_or_that_we_never_sent_gives_nothing() -> None:
    node = Observer("n1")

    node.renewed("n1", Lease(origin_of("n1", "another!"), 1, 0))
    node.renewed("n1", Lease(node.origin, 99, 0))

    assert not node.leases.holds()


def test_an_earlier_start_is_over_as_soon_as_a_later_one_has_a_lease() -> None:
    old, new, other = Observer("n1"), Observer("n1", "00000002"), Observer("n2")
    other.renewed("n1", old.leases.next_renewal())
    assert not other.leases.expired("n1", old.origin)

    other.renewed("n1", new.leases.next_renewal())

    assert other.leases.expired("n1", old.origin)
    assert not other.leases.expired("n1", new.origin)
    other.pass_s(LEASE_S * (1 + DRIFT) + 0.01)
    assert other.leases.expired("n1", new.origin)


def test_a_late_renewal_of_an_earlier_start_ends_the_lease_of_the_later_no_sooner() -> None:
    old, new, other = Observer("n1"), Observer("n1", "00000002"), Observer("n2")
    other.renewed("n1", old.leases.next_renewal())
    late = old.leases.next_renewal()
    other.renewed("n1", new.leases.next_renewal())

    other.renewed("n1", late)

    assert other.leases.superseded("n1", old.origin)
    assert other.leases.expired("n1", old.origin)
    assert not other.leases.superseded("n1", new.origin)
    assert not other.leases.expired("n1", new.origin)
    other.pass_s(LEASE_S * (1 + DRIFT) + 0.01)
    assert other.leases.expired("n1", new.origin)


def test_of_two_starts_seen_in_no_order_neither_is_over_before_its_time() -> None:
    """A node that was restored from a snapshot has seen the last renewal only."""
    current, other = Observer("n1"), Observer("n2")
    other.renewed("n1", current.leases.next_renewal())
    unknown = origin_of("n1", "00000009")

    assert not other.leases.expired("n1", unknown)
    for _ in range(5):
        other.pass_s(LEASE_S / 4)
        other.renewed("n1", current.leases.next_renewal())
    assert other.leases.expired("n1", unknown)
    assert not other.leases.expired("n1", current.origin)


def test_whose_grant_was_taken_knows_it_before_its_next_renewal_counts() -> None:
    holder = Observer("n1")
    mine = Grant("n1", holder.origin, 4)
    holder.renewed("n1", holder.leases.next_renewal())
    holder.granted(0, mine)
    assert holder.leases.mine(0) == mine
    late = holder.leases.next_renewal()

    holder.granted(0, Grant("n2", "n2~00000001", 5))
    holder.renewed("n1", late)

    assert holder.leases.holds()
    assert holder.leases.mine(0) is None
    assert holder.leases.primary(0) == "n2"


def test_a_released_grant_is_nobodys() -> None:
    node = Observer("n1")
    node.granted(0, Grant("n1", node.origin, 4, released=True))

    assert node.leases.mine(0) is None
    assert node.leases.primary(0) is None


def test_a_restored_snapshot_keeps_the_revision_that_wrote_a_lease() -> None:
    one, other = Observer("n1"), Observer("n2")
    one.renewed("n3", Lease("n3~1", 1, 7))
    for _ in range(5):
        one.apply("something", b"else")

    restore(other.store, one.store.snapshot())

    assert other.leases.seen["n3"].revision == one.leases.seen["n3"].revision == 1
    assert not other.leases.expired("n3", "n3~1")


def test_a_new_start_begins_above_what_the_earlier_one_may_have_promised() -> None:
    old, new = Observer("n1"), Observer("n1", "00000002")
    lease = old.leases.next_renewal()
    assert lease.ceiling > old.clock.now()

    new.renewed("n1", lease)

    assert new.clock.now() > lease.ceiling


def test_a_grant_that_was_given_up_says_how_far_its_promises_reach() -> None:
    old, new = Observer("n1"), Observer("n2")
    new.renewed("n1", old.leases.next_renewal())
    grant = Grant("n1", old.origin, 3)
    promised = old.clock.now()

    new.leases.observe_predecessor(old.leases.given_up(grant))
    assert promised < new.clock.now() < old.leases.next_renewal().ceiling
    # A reset has ended it: only the lease tells.
    new.leases.observe_predecessor(released(grant))
    assert new.clock.now() > new.leases.seen["n1"].lease.ceiling


def test_clocks_do_not_run_away_over_many_quick_restarts() -> None:
    ceiling = 0
    for start in range(50):
        node = Observer("n1", f"{start:08d}")
        if ceiling:
            node.renewed("n1", Lease("n1~before", 1, ceiling))
        ceiling = node.leases.next_renewal().ceiling

    ahead_s = ((ceiling >> 16) - (Observer("n1").clock.physical() >> 16)) / 1000
    assert ahead_s < CEILING_S + 50 * 0.11


@given(
    rates=st.tuples(*(st.floats(1 - DRIFT / 2.1, 1 + DRIFT / 2.1) for _ in range(2))),
    gaps_s=st.lists(st.tuples(st.floats(0, 0.4), st.floats(0, 0.4)), min_size=1, max_size=6),
    late_s=st.floats(0, 0.5),
)
def test_the_holder_has_stopped_when_another_may_take_over(
    rates: tuple[float, float], gaps_s: list[tuple[float, float]], late_s: float
) -> None:
    """Renewals are sent, applied by the holder, and by the other later; clocks drift apart."""
    holder, other = Observer("n1", rate=rates[0]), Observer("n2", rate=rates[1])

    def pass_s(seconds: float) -> None:
        holder.pass_s(seconds)
        other.pass_s(seconds)

    for before_s, underway_s in gaps_s:
        pass_s(before_s)
        lease = holder.leases.next_renewal()
        pass_s(underway_s)
        holder.renewed("n1", lease)
    pass_s(late_s)
    other.renewed("n1", lease)

    for _ in range(200):
        assert not (other.leases.expired("n1", holder.origin) and holder.leases.holds())
        pass_s(0.01)
    assert other.leases.expired("n1", holder.origin)


@given(
    log=st.lists(st.sampled_from(("old", "new")), max_size=12),
    gaps_s=st.lists(st.floats(0, 0.4), min_size=13, max_size=13),
    lag_s=st.floats(0, 2.0),
)
def test_nobody_else_takes_the_lease_of_the_later_of_two_starts_while_it_holds(
    log: list[str], gaps_s: list[float], lag_s: float
) -> None:
    """What the earlier start sent comes in any order behind the later one's first renewal, and all
    of it later at another node: which hears of a grant to a start only behind its first renewal.
    """
    old, new, other = Observer("n1"), Observer("n1", "00000002"), Observer("n2")
    late = [old.leases.next_renewal() for _ in range(1 + log.count("old"))]
    applied: list[tuple[float, Lease]] = []

    def pass_s(seconds: float) -> None:
        for each in (new, other):
            each.pass_s(seconds)
        while applied and applied[0][0] <= other.now_s:
            other.renewed("n1", applied.pop(0)[1])
        if other.leases.superseded("n1", old.origin):
            assert not other.leases.superseded("n1", new.origin)
            # A grant is taken on condition that the renewal that was seen last is the last one.
            if not applied:
                assert not (other.leases.expired("n1", new.origin) and new.leases.holds())

    for gap_s, start in zip(gaps_s, ("old", "new", *log), strict=False):
        lease = new.leases.next_renewal() if start == "new" else late.pop(0)
        pass_s(gap_s)
        new.renewed("n1", lease)
        applied.append((other.now_s + lag_s, lease))
        pass_s(0.0)
    while applied:
        pass_s(0.05)
    assert other.leases.superseded("n1", old.origin)
    for _ in range(60):
        pass_s(0.02)
    assert other.leases.expired("n1", new.origin)


class Leader:
    """Metastorage, done at once."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.done: list[object] = []

    async def invoke(self, invoke: Invoke) -> InvokeReply | Failed:
        self.observer.index += 1
        data = encode_invoke(invoke)
        done = self.observer.store.apply(Entry(1, self.observer.index, data))
        self.done.append(done.success)
        return InvokeReply(done.success)

    def renew(self, body: Renew) -> None:
        raise AssertionError("nobody renews here")


@attrs.frozen
class Led:
    leases: LeaseTable
    serving = leading = True
    generation = 0
    leader = "n1"

    async def propose(self, command: object, limit_s: float) -> object:
        assert self.leases.mine(0) is not None, f"the grant comes first: {command}"
        return Failed(codes.LEADER_LOST)


async def unasked(node: str, body: PeerBody, limit_s: float) -> PeerAnswer:
    raise AssertionError(f"nothing is asked of {node}: {body}")


def unnotified(node: str, body: PeerBody) -> None:
    raise AssertionError(f"nothing is sent to {node}: {body}")


@attrs.frozen
class Replicated:
    """The group of metastorage, all of which is the replica of ``observer``."""

    observer: Observer
    serving: bool = True

    async def leads_now(self, limit_s: float) -> bool:
        return self.serving

    async def propose(self, data: bytes, limit_s: float) -> object:
        self.observer.index += 1
        return self.observer.store.apply(Entry(1, self.observer.index, data))


def manager_of(
    observer: Observer, leader: Leader, work: list[asyncio.Task[None]] | None = None
) -> LeaseManager:
    """The manager of ``observer``, whose steps go to ``work``."""
    steps = [] if work is None else work
    return LeaseManager(
        node="n1",
        origin=observer.origin,
        leases=observer.leases,
        metastorage=leader,
        event_log=EventLog(boot="boot", wall_ns=lambda: 7),
        spawn=lambda step: steps.append(asyncio.ensure_future(step)),
    )


def primary_of(observer: Observer) -> Primary:
    """Partition 0 at ``observer``."""
    partition = Partition()
    return Primary(
        number=0,
        partition=partition,
        replication=Led(observer.leases),
        outcomes=OutcomeSender(
            partition=partition,
            primaries=PrimaryClient(route=lambda _: None, ask=unasked, notify=unnotified),
            spawn=asyncio.ensure_future,
        ),
        clock=observer.clock,
        leases=observer.leases,
    )


async def taken_over(
    observer: Observer, meanwhile: Callable[[], None] = lambda: None
) -> list[object]:
    """What metastorage's leader did for n1, which would take partition 0 over; ``meanwhile``
    happens between its decision and its request.
    """
    leader, work = Leader(observer), list[asyncio.Task[None]]()
    manager = manager_of(observer, leader, work)
    manager.reconcile(primary_of(observer), Led(observer.leases))
    meanwhile()
    for task in work:
        await task
    return leader.done


def test_a_grant_of_a_node_that_never_had_a_lease_can_be_taken_over() -> None:
    observer = Observer("n1")
    observer.granted(0, Grant("n2", origin_of("n2", "00000009"), 4))

    assert asyncio.run(taken_over(observer)) == [True]
    assert observer.leases.grants[0] == Grant("n1", observer.origin, 5)


def test_a_renewal_that_comes_after_the_decision_refuses_the_grant() -> None:
    observer, other = Observer("n1"), Observer("n2")
    held = Grant("n2", other.origin, 4)
    observer.granted(0, held)
    observer.renewed("n2", other.leases.next_renewal())
    late = other.leases.next_renewal()
    observer.pass_s(LEASE_S * (1 + DRIFT) + 0.01)

    done = asyncio.run(taken_over(observer, lambda: observer.renewed("n2", late)))

    assert done == [False]
    assert observer.leases.grants[0] == held


class Interrupted(Leader):
    """A leader of metastorage whose first answers are lost; ``lost``: whether requests are, too."""

    def __init__(self, observer: Observer, lost: list[bool]) -> None:
        super().__init__(observer)
        self.lost = lost

    async def invoke(self, invoke: Invoke) -> InvokeReply | Failed:
        if not self.lost:
            return await super().invoke(invoke)
        if not self.lost.pop(0):
            await super().invoke(invoke)
        return Failed(codes.PEER_LOST)


@pytest.mark.parametrize("lost", [[], [True, True], [False]])
def test_a_node_that_stops_releases_its_grants_whatever_is_lost_on_the_way(
    lost: list[bool],
) -> None:
    observer = Observer("n1")
    observer.granted(0, Grant("n1", observer.origin, 4))
    leader = Interrupted(observer, list(lost))
    manager, primary = manager_of(observer, leader), primary_of(observer)

    async def story() -> None:
        async with asyncio.timeout(5.0):
            await manager.release_all((primary,))

    simulate(story())
    assert observer.leases.grants[0].released
    assert leader.done in ([True], [True, False])


async def asked_for(answers: list[PeerAnswer], leaders: list[str | None]) -> tuple[object, int]:
    """What an invoke comes to, and how often it was sent, where leaders of metastorage are known,
    and answer, in turn.
    """
    group, sent = SimpleNamespace(leader=leaders[0]), list[str]()

    async def ask(node: str, body: PeerBody, limit_s: float) -> PeerAnswer:
        sent.append(node)
        group.leader = leaders[min(len(sent), len(leaders) - 1)]
        return answers[min(len(sent), len(answers)) - 1]

    client = MetastorageClient(store=Metastorage(), group=group, ask=ask, notify=unnotified)
    return await client.invoke(Invoke((), ())), len(sent)


def test_an_invoke_follows_the_leadership_of_metastorage_while_it_certainly_was_not_done() -> None:
    refused, done = Failed(codes.NOT_LEADER, "n1 does not lead metastorage"), InvokeReply(True)
    in_doubt = Failed(codes.PEER_LOST, "n1 did not answer")

    assert simulate(asked_for([refused, refused, done], ["n1", "n1", "n2"])) == (done, 3)
    # What may have been done is not done again, and a leader that does not come is not waited for.
    assert simulate(asked_for([in_doubt, done], ["n1"])) == (in_doubt, 1)
    answer, sent = simulate(asked_for([refused], ["n1"]))
    assert answer == refused
    assert 10 < sent <= INVOKE_TIMEOUT_S / LEADER_POLL_S
    assert simulate(asked_for([done], [None]))[1] == 0


def service_of(observer: Observer, work: list[asyncio.Task[None]]) -> MetastorageService:
    """Metastorage at its leader, all of which is ``observer``'s replica."""
    return MetastorageService(
        node="n1",
        group=Replicated(observer),
        get=observer.store.get,
        read=observer.store.read,
        spawn=lambda step: work.append(asyncio.ensure_future(step)),
    )


def test_a_renewal_of_an_earlier_start_does_not_end_the_lease_of_the_later() -> None:
    old, new = origin_of("n2", "00000001"), origin_of("n2", "00000002")

    async def scenario() -> list[Lease]:
        observer, work = Observer("n1"), list[asyncio.Task[None]]()
        service = service_of(observer, work)
        held = list[Lease]()

        async def renew(*leases: Lease) -> None:
            for lease in leases:
                await service.serve(Renew("n2", encode(lease)))
            while work:
                await work.pop()
            held.append(observer.leases.seen["n2"].lease)

        observer.renewed("n2", Lease(old, 1, 10))
        await renew(Lease(old, 2, 20))
        first = Lease(new, 1, 30)
        waiting = asyncio.ensure_future(renew(Lease(old, 3, 40)))
        await asyncio.sleep(0)
        observer.renewed("n2", first)  # while the last of the old start waits for its batch
        await waiting
        await renew(Lease(old, 4, 50))
        await renew(Lease(new, 2, 60), Lease(old, 5, 70))
        return held

    assert simulate(scenario()) == [
        Lease(old, 2, 20),
        Lease(new, 1, 30),
        Lease(new, 1, 30),
        Lease(new, 2, 60),
    ]


def test_a_renewal_that_comes_late_or_twice_takes_no_ceiling_back() -> None:
    start = origin_of("n2", "00000001")

    async def scenario() -> list[Lease]:
        observer, work = Observer("n1"), list[asyncio.Task[None]]()
        service = service_of(observer, work)
        observer.renewed("n2", Lease(start, 1, 10))
        held = list[Lease]()
        for batch in ((3, 2), (2, 3), (4, 1)):
            for number in batch:
                await service.serve(Renew("n2", encode(Lease(start, number, 10 * number))))
            while work:
                await work.pop()
            held.append(observer.leases.seen["n2"].lease)
        return held

    assert simulate(scenario()) == [Lease(start, n, 10 * n) for n in (3, 3, 4)]
