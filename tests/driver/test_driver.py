"""The driver against a small real store: every way an operation can end, and what follows."""

from __future__ import annotations

import asyncio
import random
import re
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import attrs
import pytest
from driver_store import (
    BUG,
    HANG,
    SHIELDED,
    STUBBORN,
    JumpingLoop,
    MemoryStore,
    Trouble,
    cluster,
    no_trouble,
)

from harness.clock import NS_PER_S, RunClock
from harness.driving.driver import MAX_STUCK, ROLLBACK_LIMIT_S, Driver
from harness.driving.process_slots import BACKOFF_FIRST_S
from harness.errors import BrokenPlugin, HarnessBug, HarnessError
from harness.generators import (
    Context,
    Generator,
    Limit,
    Operation,
    Repeat,
    Stagger,
    UntilOk,
    Wait,
)
from harness.history.records import Complete, Invoke, MicroOp, Note, OpType, Record
from harness.protocols.client import Tx
from harness.protocols.workload import Workload, WorkloadSetting, whole
from harness.run.stop import Stop
from workloads.list_append import build

DEADLINE_S = 2.0
READ_7 = (MicroOp("r", 7),)
APPEND_7 = (MicroOp("append", 7, 1),)
made: list[MemoryStore] = []  # by the test that runs


def workload(store: MemoryStore, concurrency: int, seed: int = 5) -> Workload:
    setting = WorkloadSetting(
        seed=seed,
        concurrency=concurrency,
        transaction_scope="partition",
        partitions=store.partitions,
        partition_of=store.partition_of,
    )
    return build({"key_count": 3}, setting)


@attrs.define
class Rig:
    """A driver, its store, and everything that it wrote."""

    store: MemoryStore
    driver: Driver
    clock: RunClock
    workload: Workload
    records: list[Record]

    def of(self, kind: type) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]

    @property
    def endings(self) -> list[tuple[str, str | None, str | None]]:
        return [(c.type.value, c.error, c.phase) for c in self.of(Complete)]

    async def drive(self, generator: Generator, for_s: float = 60.0) -> None:
        until_ns = self.clock.now_ns() + int(for_s * NS_PER_S)
        await self.driver.drive(generator, until_ns)


@attrs.frozen(kw_only=True)
class Executing:
    """A workload with an ``execute`` of its own, and the operations ``of`` another."""

    name: str
    checkers: tuple[str, ...]
    of: Workload
    execute: Callable[..., Any]

    def first(self) -> Generator:
        return self.of.first()

    def main(self) -> Generator:
        return self.of.main()

    def final(self, keys: tuple[int, ...]) -> Generator:
        return self.of.final(keys)


def rig(
    *,
    trouble: Trouble = no_trouble,
    concurrency: int = 1,
    latency_s: float | None = 0.01,
    nodes: int = 3,
    write: Callable[[Sequence[Record]], None] | None = None,
    execute: Callable[..., Any] | None = None,
) -> Rig:
    store = MemoryStore(trouble=trouble, latency_s=latency_s)
    made.append(store)
    records: list[Record] = []
    clock = RunClock(asyncio.get_running_loop(), wall_ns=lambda: 1_000)
    work = workload(store, concurrency)
    if execute is not None:
        work = Executing(name="own", checkers=(), of=work, execute=execute)
    driver = Driver(
        clock=clock,
        system=store,
        cluster=cluster(nodes),
        workload=work,
        write=write or records.extend,
        concurrency=concurrency,
        op_deadline_s=DEADLINE_S,
    )
    return Rig(store, driver, clock, work, records)


def run(main: Coroutine[Any, Any, None]) -> None:
    async def whole() -> None:
        try:
            await main
        finally:
            for store in made:
                store.release.set()  # a loop can't be closed while a task ignores its cancellation
            made.clear()

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(whole())


def trouble_at(phase: str, what: str, *, times: int = 1) -> Trouble:
    left = [times]

    def trouble(at: str, process: int, count: int) -> str | None:
        if at != phase or not left[0]:
            return None
        left[0] -= 1
        return what

    return trouble


def check_shape(records: list[Record]) -> None:
    """What holds in every history: pairs, indices, one open operation a process, one order."""
    events = [r for r in records if isinstance(r, Invoke | Complete)]
    assert [event.index for event in events] == list(range(len(events)))
    order = sorted(events, key=lambda e: (e.at_ns, isinstance(e, Complete), e.index))
    assert order == events
    open_by_process: dict[int, int] = {}
    ended: dict[int, OpType] = {}
    for event in events:
        if isinstance(event, Invoke):
            assert event.process not in open_by_process
            assert ended.get(event.process) is not OpType.INFO
            assert event.intended_ns <= event.at_ns
            open_by_process[event.process] = event.index
        else:
            assert open_by_process.pop(event.process) == event.invoke
            ended[event.process] = event.type
    assert open_by_process == {}


def test_what_is_acknowledged_is_in_the_store_and_every_invoke_ends_once() -> None:
    async def main() -> None:
        r = rig(concurrency=8)
        await r.drive(whole(r.workload), for_s=5.0)
        await r.drive(r.workload.final(r.driver.touched_keys()))

        check_shape(r.records)
        oks = [c for c in r.of(Complete) if c.type is OpType.OK]
        acked = {o.value for c in oks for o in c.ops if o.f == "append"}
        stored = [element for elements in r.store.lists.values() for element in elements]
        assert len(acked) > 100
        assert sorted(stored) == sorted(acked)
        read = {o.key: o.value for c in oks for o in c.ops if o.f == "r"}
        assert {k: read[k] for k in r.store.lists} == r.store.lists
        assert {c.error for c in r.of(Complete) if c.type is OpType.FAIL} == {"CONFLICT"}

    run(main())


def test_the_invoke_is_written_before_anything_is_sent() -> None:
    async def main() -> None:
        sent: list[int] = []

        def write(records: Sequence[Record]) -> None:
            sent.extend(len(r.store.connections) for told in records if isinstance(told, Invoke))

        r = rig(write=write)
        await r.drive(Limit(1, Repeat(READ_7)))

        assert sent == [0]
        assert len(r.store.connections) == 1

    run(main())


@pytest.mark.parametrize("what", [HANG, STUBBORN])
@pytest.mark.parametrize("phase", ["connect", "begin", "step"])
def test_a_deadline_before_commit_is_a_fail_and_keeps_the_process(phase: str, what: str) -> None:
    async def main() -> None:
        r = rig(trouble=trouble_at(phase, what))
        await r.drive(Limit(2, Repeat(APPEND_7)))

        assert r.endings == [("fail", "deadline", phase), ("ok", None, None)]
        first, second = r.of(Invoke)
        assert (first.process, first.node) == (second.process, second.node)
        assert r.of(Complete)[0].at_ns - first.at_ns == pytest.approx(DEADLINE_S * NS_PER_S)
        assert r.store.lists == {7: (1,)}
        assert len(r.store.connections) == 2
        check_shape(r.records)

    run(main())


@pytest.mark.parametrize("what", [HANG, STUBBORN])
def test_a_deadline_after_commit_was_sent_is_an_info_and_ends_the_process(what: str) -> None:
    async def main() -> None:
        r = rig(trouble=trouble_at("commit", what))
        await r.drive(Limit(2, Repeat(APPEND_7)))

        assert r.endings == [("info", "deadline", "commit"), ("ok", None, None)]
        assert [i.process for i in r.of(Invoke)] == [0, 1]
        assert [i.node for i in r.of(Invoke)] == ["n1", "n2"]
        check_shape(r.records)

    run(main())


def test_a_reply_lost_after_the_commit_is_an_info_although_it_happened() -> None:
    async def main() -> None:
        r = rig(trouble=trouble_at("committed", "CONNECTION-LOST"))
        await r.drive(Limit(1, Repeat(APPEND_7)))

        assert r.endings == [("info", "CONNECTION-LOST", "commit")]
        assert r.store.lists == {7: (1,)}

    run(main())


@pytest.mark.parametrize("phase", ["connect", "begin", "step"])
def test_a_client_that_ignores_cancellation_never_goes_on_to_commit(phase: str) -> None:
    async def main() -> None:
        r = rig(trouble=trouble_at(phase, SHIELDED))
        await r.drive(Limit(1, Repeat(APPEND_7)))
        r.store.release.set()
        await asyncio.sleep(1.0)

        assert r.endings == [("fail", "deadline", phase)]
        assert r.store.commit_calls == []
        await r.driver.close()
        assert r.store.open_connections == 0

        untroubled = rig()
        await untroubled.drive(Limit(1, Repeat(APPEND_7)))
        assert len(untroubled.store.commit_calls) == 1

    run(main())


def test_an_outcome_after_the_deadline_is_a_note_and_no_second_completion() -> None:
    async def main() -> None:
        r = rig(trouble=trouble_at("commit", SHIELDED))
        await r.drive(Limit(1, Repeat(APPEND_7)))
        r.store.release.set()
        await asyncio.sleep(0.1)

        assert r.endings == [("info", "deadline", "commit")]
        assert [n.text for n in r.of(Note)] == ["late ok (commit_ts=1) of invoke 0, process 0"]

    run(main())


def test_a_slot_whose_calls_never_end_is_taken_out_of_service_until_one_does() -> None:
    async def main() -> None:
        r = rig(trouble=trouble_at("begin", STUBBORN, times=MAX_STUCK + 1))
        await r.drive(Limit(MAX_STUCK + 3, Repeat(APPEND_7)), for_s=100.0)
        assert [ending[0] for ending in r.endings] == ["fail"] * (MAX_STUCK + 1)
        assert "out of service" in r.of(Note)[-1].text

        r.store.release.set()
        await asyncio.sleep(0.1)
        await r.drive(Limit(1, Repeat(APPEND_7)))
        assert r.endings[-1] == ("ok", None, None)

    run(main())


@pytest.mark.parametrize(
    ("phase", "code", "ending"),
    [
        ("connect", "REFUSED", "fail"),
        ("begin", "REFUSED", "fail"),
        ("step", "WHATEVER", "fail"),
        ("commit", "CONFLICT", "fail"),
        ("commit", "WHATEVER", "info"),
    ],
)
def test_an_error_is_classified_by_code_and_phase(phase: str, code: str, ending: str) -> None:
    async def main() -> None:
        r = rig(trouble=trouble_at(phase, code))
        await r.drive(Limit(2, Repeat(READ_7)))

        assert r.endings == [(ending, code, phase), ("ok", None, None)]
        after = r.of(Invoke)[1]
        assert (after.process, after.node) == ((1, "n2") if ending == "info" else (0, "n1"))
        check_shape(r.records)

    run(main())


def test_a_lost_connection_is_dialled_again_after_a_recorded_pause_that_grows() -> None:
    async def main() -> None:
        r = rig(trouble=trouble_at("connect", "REFUSED", times=3))
        await r.drive(Limit(4, Repeat(READ_7)))

        ends = [c.at_ns for c in r.of(Complete)][:3]
        starts = [i.at_ns for i in r.of(Invoke)][1:]
        gaps_s = [(b - a) / NS_PER_S for a, b in zip(ends, starts, strict=True)]
        assert gaps_s == pytest.approx([BACKOFF_FIRST_S * 2**n for n in range(3)], abs=1e-6)
        assert next(n.text for n in r.of(Note)) == (
            "connects to n1 again in 0.05 s, after REFUSED: in connect"
        )
        assert r.endings[-1][0] == "ok"

    run(main())


def test_a_failed_step_is_rolled_back_on_the_connection_it_has() -> None:
    async def main() -> None:
        r = rig(trouble=trouble_at("step", "LOCKED"))
        await r.drive(Limit(2, Repeat(APPEND_7)))

        assert r.store.rollbacks == 1
        assert len(r.store.connections) == 1
        assert r.of(Note) == []

    run(main())


@pytest.mark.parametrize("what", ["CONNECTION-LOST", HANG, STUBBORN, BUG])
def test_a_rollback_that_fails_costs_the_connection_and_no_more(what: str) -> None:
    async def main() -> None:
        def trouble(phase: str, process: int, count: int) -> str | None:
            bad = {"step": "LOCKED", "rollback": what}
            return bad.get(phase) if count == 1 else None

        r = rig(trouble=trouble)
        await r.drive(Limit(2, Repeat(APPEND_7)))

        assert r.endings == [("fail", "LOCKED", "step"), ("ok", None, None)]
        assert len(r.store.connections) == 2
        first, second = r.of(Invoke)
        assert second.at_ns - first.at_ns < (ROLLBACK_LIMIT_S + 0.5) * NS_PER_S
        check_shape(r.records)

    run(main())


@pytest.mark.parametrize("phase", ["connect", "begin", "step", "commit"])
def test_a_bug_of_the_client_is_an_info_and_a_note_and_the_run_goes_on(phase: str) -> None:
    async def main() -> None:
        r = rig(trouble=trouble_at(phase, BUG))
        await r.drive(Limit(2, Repeat(READ_7)))

        (told, fine) = r.endings
        assert (told[0], told[2], fine) == ("info", phase, ("ok", None, None))
        assert re.fullmatch(r"client-bug:KeyError at \w+\.py:\d+", told[1])
        assert "not a store's error" in r.of(Note)[0].text
        assert [i.process for i in r.of(Invoke)] == [0, 1]

    run(main())


@pytest.mark.parametrize(
    "given",
    [
        None,
        (),
        "ok",
        ("r", 7, 1),
        (MicroOp("r", 7, True),),
        (MicroOp("r", 7, 1 << 63),),
        (MicroOp("r", 7, (1, None)),),
        (MicroOp("r", 8, 1),),
    ],
)
def test_what_no_history_can_hold_is_a_bug_of_the_workload(given: Any) -> None:
    async def main() -> None:
        async def execute(tx: Tx, ops: tuple[MicroOp, ...]) -> Any:
            return given

        r = rig(execute=execute)
        await r.drive(Limit(1, Repeat(READ_7)))

        ((type_, error, phase),) = r.endings
        assert (type_, phase) == ("info", "step")
        assert re.fullmatch(r"client-bug:WrongAnswer at \w*/?test_driver\.py:\d+", error)
        assert "execute: expected" in r.of(Note)[0].text

    run(main())


def test_a_workload_that_leaves_ends_no_run() -> None:
    async def main() -> None:
        async def execute(tx: Tx, ops: tuple[MicroOp, ...]) -> Any:
            sys.exit(0)

        r = rig(execute=execute)
        await r.drive(Limit(1, Repeat(READ_7)))

        ((type_, error, _),) = r.endings
        assert (type_, error.partition(" ")[0]) == ("info", "client-bug:SystemExit")

    run(main())


@pytest.mark.parametrize("op", [MicroOp("r", 1 << 63), MicroOp("r", "a"), MicroOp(3, 1), ("r", 1)])
def test_a_generator_that_gives_no_operation_is_named(op: Any) -> None:
    async def main() -> None:
        r = rig()
        with pytest.raises(BrokenPlugin, match="the generator of workload 'list-append': "):
            await r.drive(Limit(1, Repeat((op,))))

    run(main())


@pytest.mark.parametrize("answer", [None, Wait.PENDING, (APPEND_7, None), (Wait.EXHAUSTED,)])
def test_a_generator_that_gives_no_answer_is_named(answer: Any) -> None:
    class Odd(Repeat):
        def op(self, context: Context) -> Any:
            return answer

    async def main() -> None:
        with pytest.raises(BrokenPlugin, match="'list-append': op: expected an Operation"):
            await rig().drive(Odd(READ_7))

    run(main())


def test_what_is_open_when_the_user_interrupts_is_recorded_as_info() -> None:
    async def main() -> None:
        r = rig(trouble=lambda *_: HANG, concurrency=3)
        driving = asyncio.ensure_future(r.drive(Repeat(READ_7)))
        await asyncio.sleep(0.5)
        assert [i.process for i in r.of(Invoke)] == [0, 1, 2]
        assert r.endings == []
        driving.cancel()
        await asyncio.wait({driving})

        assert driving.cancelled()
        assert [(e[0], e[1]) for e in r.endings] == [("info", "interrupted")] * 3
        check_shape(r.records)

    run(main())


def test_a_second_drive_goes_on_with_processes_and_indices() -> None:
    async def main() -> None:
        r = rig(trouble=trouble_at("commit", "WHATEVER"), concurrency=2)
        await r.drive(Limit(2, Repeat(APPEND_7)))
        await r.drive(UntilOk((READ_7, READ_7)))

        assert [i.process for i in r.of(Invoke)] == [0, 1, 2, 1]
        check_shape(r.records)

    run(main())


def test_a_history_that_cannot_be_written_ends_the_drive_and_nothing_more_is_sent() -> None:
    async def main() -> None:
        written: list[Record] = []

        def write(records: Sequence[Record]) -> None:
            if len(written) == 4:
                raise HarnessError("chunk 0: no space left")
            written.extend(records)

        r = rig(write=write)
        with pytest.raises(HarnessError, match="no space left"):
            await r.drive(Repeat(READ_7))

        assert len(written) == 4
        assert r.store.commits == 2

    run(main())


def test_a_disk_that_refuses_the_last_records_of_a_drive_that_is_ended_is_not_passed_over() -> None:
    async def main() -> None:
        def write(records: Sequence[Record]) -> None:
            if any(isinstance(record, Complete) for record in records):
                raise HarnessError("chunk 0: no space left")

        r = rig(write=write, latency_s=1.0)
        stop = Stop()
        asyncio.get_running_loop().call_later(0.5, stop.ask)
        with pytest.raises(HarnessError, match="no space left"):
            await stop.unless(r.drive(Repeat(READ_7)))

    run(main())


def test_the_store_may_be_slow_but_intended_starts_go_on() -> None:
    async def main() -> None:
        r = rig(latency_s=0.5, concurrency=2)
        await r.drive(Limit(20, Stagger(100.0, 3, Repeat(READ_7))))

        intended = [i.intended_ns for i in r.of(Invoke)]
        assert intended == sorted(intended)
        assert intended[-1] < 1 * NS_PER_S
        assert r.of(Invoke)[-1].at_ns > 10 * NS_PER_S
        check_shape(r.records)

    run(main())


def test_a_drive_that_is_prolonged_goes_on_with_the_same_operations() -> None:
    async def begun(prolonged: bool) -> list[int]:
        r = rig(concurrency=20)
        driving = asyncio.ensure_future(r.drive(Stagger(100.0, 3, Repeat(READ_7)), for_s=1.0))
        await r.clock.sleep_until(int(0.9 * NS_PER_S))
        if prolonged:
            r.driver.prolong(3 * NS_PER_S)
            r.driver.prolong(2 * NS_PER_S)  # an end is never brought forward
        await driving
        check_shape(r.records)
        return [i.intended_ns for i in r.of(Invoke)]

    async def main() -> None:
        usual, prolonged = await begun(False), await begun(True)

        assert usual[-1] < NS_PER_S
        assert prolonged[: len(usual)] == usual
        assert 2.8 * NS_PER_S < prolonged[-1] < 3 * NS_PER_S

    run(main())


def test_an_open_loop_starts_each_operation_when_it_is_meant_to() -> None:
    async def main() -> None:
        r = rig(concurrency=20)
        await r.drive(Limit(200, Stagger(100.0, 3, Repeat(READ_7))))

        late_ns = [i.at_ns - i.intended_ns for i in r.of(Invoke)]
        assert max(late_ns) < 1_000
        assert r.of(Invoke)[-1].at_ns == pytest.approx(2 * NS_PER_S, rel=0.3)

    run(main())


@attrs.frozen
class AlwaysProcessZero:
    """A generator that breaks its promise."""

    def op(self, context: Context) -> tuple[Operation | Wait, Generator]:
        return Operation(process=0, ops=READ_7, at_ns=context.now_ns), self

    def update(self, context: Context, event: Invoke | Complete) -> Generator:
        return self


def test_a_generator_that_takes_a_busy_process_is_a_bug_with_a_name() -> None:
    async def main() -> None:
        r = rig(concurrency=2)
        with pytest.raises(HarnessBug, match="process 0, which is not idle"):
            await r.drive(AlwaysProcessZero())
        check_shape(r.records)

    run(main())


def test_nothing_starts_once_the_time_is_over_and_what_runs_may_end() -> None:
    async def main() -> None:
        r = rig(latency_s=0.3, concurrency=4)
        await r.drive(Repeat(READ_7), for_s=1.0)

        assert max(i.at_ns for i in r.of(Invoke)) < 1 * NS_PER_S
        assert max(c.at_ns for c in r.of(Complete)) > 1 * NS_PER_S
        assert {e[0] for e in r.endings} == {"ok"}

    run(main())


def test_rollbacks_that_never_end_do_not_hold_the_drive() -> None:
    async def main() -> None:
        r = rig(trouble=lambda phase, *_: {"step": "LOCKED", "rollback": STUBBORN}.get(phase))
        await r.drive(Repeat(READ_7), for_s=100.0)

        assert [e[0] for e in r.endings] == ["fail"] * (MAX_STUCK + 1)

    run(main())


@pytest.mark.parametrize("seed", range(12))
def test_whatever_goes_wrong_ok_happened_and_fail_did_not(seed: int) -> None:
    """The two certain outcomes against the store's own truth, under random trouble anywhere."""
    draw = random.Random(seed)
    kinds = ["CONFLICT", "WHATEVER", HANG, STUBBORN, SHIELDED, BUG]
    share = draw.choice([0.01, 0.05, 0.2])

    def trouble(phase: str, process: int, count: int) -> str | None:
        honest = kinds[1:] if phase == "committed" else kinds
        return draw.choice(honest) if draw.random() < share else None

    async def main() -> None:
        r = rig(trouble=trouble, concurrency=6, latency_s=0.02)
        driving = asyncio.ensure_future(r.drive(whole(r.workload), for_s=10.0))
        await asyncio.wait({driving}, timeout=draw.uniform(1.0, 15.0))
        driving.cancel()
        await asyncio.wait({driving})
        r.store.trouble = no_trouble
        r.store.release.set()
        await asyncio.sleep(5.0)

        check_shape(r.records)
        stored = {element for elements in r.store.lists.values() for element in elements}
        by_type: dict[OpType, set[Any]] = {type_: set() for type_ in OpType}
        for complete in r.of(Complete):
            by_type[complete.type] |= {o.value for o in complete.ops if o.f == "append"}
        assert by_type[OpType.OK] <= stored
        assert not by_type[OpType.FAIL] & stored
        assert by_type[OpType.OK]
        await r.driver.close()
        assert r.store.open_connections == 0

    run(main())


def test_the_same_seed_on_a_virtual_clock_gives_the_same_records() -> None:
    histories: list[list[Record]] = []

    async def main() -> None:
        r = rig(trouble=trouble_at("commit", "WHATEVER", times=5), concurrency=5)
        await r.drive(whole(r.workload), for_s=3.0)
        histories.append(r.records)

    run(main())
    run(main())

    assert len(histories[0]) > 100
    assert histories[0] == histories[1]


def test_it_drives_on_a_real_loop_too() -> None:
    async def main() -> None:
        r = rig(concurrency=4, latency_s=0.0005)
        await r.drive(whole(r.workload), for_s=0.2)
        await r.drive(r.workload.final(r.driver.touched_keys()))
        await r.driver.close()

        check_shape(r.records)
        assert r.store.open_connections == 0
        assert len(r.records) >= 2 * 4, "each slot did something, however busy the machine"

    asyncio.run(main())
