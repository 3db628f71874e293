"""Final reads go on with snapshots where locks were left behind, and only there and then."""

from __future__ import annotations

from pathlib import Path

import msgspec

from cli.cells import simulate
from cli.selftest import plan_of
from harness.campaigns.cell import Cell
from harness.clock import NS_PER_S
from harness.driving.final_reads import OrSnapshots, final_reads
from harness.generators import (
    HASTY_REPEATS,
    REPEAT_PAUSE_NS,
    Context,
    Generator,
    Operation,
    Repeat,
    UntilOk,
    Wait,
)
from harness.history.records import Complete, MicroOp, OpType
from harness.history.run_directory import RunDirectory
from harness.protocols.promise import Declaration, Promise
from harness.protocols.verdict import Verdict, read_verdict
from harness.protocols.workload import Workload

S = NS_PER_S
READ_7 = (MicroOp("r", 7),)
READ_8 = (MicroOp("r", 8),)


def snapshots(inner: Generator) -> Generator:
    return OrSnapshots(inner=inner, kind="snapshot", staleness_ns=S)


def tried(
    generator: Generator, locked: set[tuple[MicroOp, ...]], *, every_ns: int, least: int = 30
) -> list[tuple[int, str, tuple[MicroOp, ...]]]:
    """What one process tries: (time, kind, operations). Reads of what is ``locked`` are refused
    unless they are of snapshots.
    """
    found = []
    for number in range(least):
        context = Context(now_ns=number * every_ns, free=(0,), concurrency=1)
        answer, generator = generator.op(context)
        if not isinstance(answer, Operation):
            assert answer is Wait.EXHAUSTED
            break
        found.append((context.now_ns, answer.kind, answer.ops))
        refused = answer.ops in locked and answer.kind != "snapshot"
        ended = Complete(
            index=2 * number + 1,
            invoke=2 * number,
            process=0,
            type=OpType.FAIL if refused else OpType.OK,
            at_ns=context.now_ns + 1,
            ops=answer.ops,
        )
        generator = generator.update(context, ended)
    return found


def test_what_is_refused_for_ever_is_repeated_at_once_and_then_with_pauses() -> None:
    generator: Generator = UntilOk((READ_7,))
    now_ns, begun = 0, []
    for number in range(HASTY_REPEATS + 11):
        answer, generator = generator.op(Context(now_ns=now_ns, free=(0,), concurrency=1))
        assert isinstance(answer, Operation)
        begun.append(answer.at_ns)
        now_ns = answer.at_ns + 1
        ended = Complete(
            index=2 * number + 1,
            invoke=2 * number,
            process=0,
            type=OpType.FAIL,
            at_ns=now_ns,
            ops=answer.ops,
        )
        generator = generator.update(Context(now_ns=now_ns, free=(0,), concurrency=1), ended)
    assert begun[HASTY_REPEATS] == HASTY_REPEATS
    assert begun[-1] == HASTY_REPEATS + 10 * REPEAT_PAUSE_NS


def test_a_key_that_is_refused_again_and_again_is_read_by_a_snapshot() -> None:
    found = tried(snapshots(UntilOk((READ_7, READ_8))), {READ_7}, every_ns=S)

    assert [(kind, ops) for _, kind, ops in found] == [
        ("read-write", READ_7),
        ("read-write", READ_8),
        ("read-write", READ_7),
        ("snapshot", READ_7),
    ]


def test_no_snapshot_is_read_before_its_staleness_has_passed() -> None:
    found = tried(snapshots(UntilOk((READ_7,))), {READ_7}, every_ns=S // 10)

    *before, last = found
    assert {kind for _, kind, _ in before} == {"read-write"}
    assert (last[1], last[0] > S) == ("snapshot", True)


def test_reads_with_locks_are_tried_between_snapshots() -> None:
    class Refused(OrSnapshots):
        """Whose snapshots are refused, too: told by a kind that ``tried`` does not know."""

    generator = Refused(inner=UntilOk((READ_7,)), kind="stale", staleness_ns=0)
    kinds = [kind for _, kind, _ in tried(generator, {READ_7}, every_ns=S, least=9)]

    assert kinds == ["read-write", "read-write", "stale"] * 3


def test_what_writes_never_becomes_a_snapshot() -> None:
    both = (MicroOp("r", 7), MicroOp("append", 7, 1))

    found = tried(snapshots(Repeat(both)), {both}, every_ns=S, least=9)

    assert {kind for _, kind, _ in found} == {"read-write"}


class Seven:
    """A workload as far as its final reads go."""

    name = "seven"

    def final(self, keys: tuple[int, ...]) -> Generator:
        return UntilOk(tuple((MicroOp("r", key),) for key in keys))


def test_a_store_without_snapshots_is_read_as_the_workload_says() -> None:
    plain = Declaration(system="s", mode="SC", promises=(Promise(kind="read-write"),))
    stale = Promise(kind="old", staleness_s=0.5)
    workload: Workload = Seven()  # type: ignore[assignment]

    assert isinstance(final_reads(workload, (7,), plain), UntilOk)
    more = msgspec.structs.replace(plain, promises=(*plain.promises, stale))
    chosen = final_reads(workload, (7,), more)
    assert isinstance(chosen, OrSnapshots)
    assert (chosen.kind, chosen.staleness_ns) == ("old", S // 2)


def judged(into: Path, seed: int) -> Verdict:
    plan = plan_of("dead-coordinator-kept", seed, on=True)
    result = simulate(Cell(plan=plan), lambda _run: None, runs_dir=into, keep=True)
    found = read_verdict(RunDirectory(Path(result.run)))
    assert found is not None
    return found


def test_locks_that_a_store_leaves_behind_leave_no_key_unread(tmp_path: Path) -> None:
    # The first seed in which a coordinator dies with locks held that final reads meet.
    for seed in (6, *range(7, 14)):
        found = judged(tmp_path, seed)
        if any("are of snapshots" in reason for reason in found.reasons):
            break

    assert any("are of snapshots" in reason for reason in found.reasons)
    assert "lock-left" in found.anomalies
    assert not any("not every key" in reason for reason in found.reasons)
    assert found.statistics["lost_writes"]["unverified"] == 0
