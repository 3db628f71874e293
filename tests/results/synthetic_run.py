"""Runs that never happened, written by the real writers: a store under faults, told by a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import attrs
import msgspec

from harness.exit_codes import Outcome
from harness.history.chunks import ChunkWriter
from harness.history.durable_files import write_atomically
from harness.history.manifest import write_manifest
from harness.history.records import (
    Complete,
    EventKind,
    FaultState,
    FaultTransition,
    Invoke,
    MicroOp,
    OpType,
    PhaseMark,
    Record,
    StoreEvent,
)
from harness.history.run_directory import SCHEMA_VERSION, Manifest, RunDirectory
from harness.history.seal import seal
from harness.protocols.finding import Dependency, Explanation, Finding
from harness.protocols.promise import Declaration, Promise
from harness.protocols.verdict import (
    Anomaly,
    Availability,
    FaultWindow,
    Verdict,
    Window,
    encode,
    fitted,
)

NS = 1_000_000_000
WALL_NS = 1_780_000_000 * NS
PARTITIONS = 8
PLAN = """\
name = "drill"
seed = 4711

[cluster]
provider = "docker"
nodes = 5

[system]
name = "reference"

[workload]
name = "list-append"

[drive]
duration_s = 40.0
concurrency = 10

[[nemesis.schedule]]
at_s = 6.0
kind = "kill"
target = "leader of partition 3"
hold_s = 6.0
"""


@attrs.frozen(kw_only=True)
class Break:
    """A fault of the synthetic run, in seconds on its axis."""

    kind: str
    target: str
    nodes: tuple[str, ...]
    start_s: float
    end_s: float
    proven: bool = True
    roles: tuple[str, ...] = ()


BREAKS = (
    Break(
        kind="kill",
        target="leader of partition 3",
        nodes=("n3",),
        start_s=9.0,
        end_s=15.0,
        roles=("leader of partition 3", "metastorage leader"),
    ),
    Break(kind="partition", target="minority", nodes=("n1", "n4"), start_s=20.0, end_s=27.0),
    Break(kind="kill", target="n5", nodes=("n5",), start_s=24.0, end_s=29.5),
    Break(kind="partition", target="half", nodes=("n2", "n3"), start_s=34.0, end_s=39.0),
)


def new_run(root: Path) -> RunDirectory:
    """A run that has begun: manifest, plan and logs."""
    root.mkdir(parents=True)
    run = RunDirectory(root)
    run.plan.write_text(PLAN)
    write_manifest(
        run,
        Manifest(
            schema_version=SCHEMA_VERSION,
            run_id=root.name,
            state="running",
            versions={"firedrill": "0.1.0", "reference": "0.1.0+3f9c2a", "pyspark": "4.3.0"},
            machine={"cores": 2, "kernel": "6.1.0", "memory_mib": 24105},
            declaration=Declaration(
                system="reference", mode="sc", promises=(Promise(kind="read-write"),)
            ),
            workload="list-append",
            checkers=("list-append", "lost-write", "statistics", "availability", "evidence"),
        ),
    )
    for node in ("n1", "n2", "n3", "n4", "n5"):
        run.node(node).mkdir(parents=True)
        (run.node(node) / "node.log").write_text("started\n" * 200)
    return run


def build(
    root: Path,
    *,
    seed: int = 1,
    duration_s: float = 40.0,
    rate_per_s: float = 300.0,
    breaks: Sequence[Break] = BREAKS,
    close: bool = True,
) -> RunDirectory:
    """A sealed run of ``duration_s``; with ``close`` false it is left as a killed controller
    leaves it.
    """
    run = new_run(root)
    writer = ChunkWriter(run.chunks)
    for record in records(seed, duration_s, rate_per_s, breaks):
        writer.append(record)
    writer.close()
    if close:
        seal(run, partition_of=lambda key: key % PARTITIONS)
    return run


def records(
    seed: int, duration_s: float, rate_per_s: float, breaks: Sequence[Break]
) -> list[Record]:
    """Every record of the run, in order of time."""
    start_s = 3.0
    found: list[tuple[float, Record]] = [
        (at_s, PhaseMark(name=name, at_ns=int(at_s * NS)))
        for at_s, name in (
            (0.0, "provision"),
            (1.4, "set-up"),
            (start_s, "drive"),
            (start_s + duration_s, "heal"),
            (start_s + duration_s + 0.3, "quiesce"),
            (start_s + duration_s + 1.5, "final-reads"),
        )
    ]
    for number, fault in enumerate(breaks):
        found += _fault(number, fault, start_s)
    stream = random.Random(seed)
    found += _operations(stream, start_s, duration_s, rate_per_s, breaks)
    found += _events(stream, breaks)
    return [record for _, record in sorted(found, key=lambda item: item[0])]


def write_verdict(run: RunDirectory, verdict: Verdict) -> None:
    run.analysis.mkdir(exist_ok=True)
    write_atomically(run.verdict, encode(fitted(verdict)))


def valid() -> Verdict:
    """What the checkers say of a run in which every promise held."""
    return Verdict(
        outcome=Outcome.VALID,
        model="strict-serializable",
        statistics={
            "transactions": {"ok": 6929, "fail": 127, "info": 24},
            "f": {
                "append": {"ok": 6929, "fail": 127, "info": 24},
                "r": {"ok": 6929, "fail": 0, "info": 0},
            },
            "error": {
                "LEADER-LOST": {"ok": 0, "fail": 90, "info": 0},
                "TIMEOUT": {"ok": 0, "fail": 0, "info": 24},
                "TX-CONFLICT": {"ok": 0, "fail": 37, "info": 0},
            },
        },
        availability=Availability(
            drive=Window(
                start_ns=3 * NS,
                end_ns=43 * NS,
                ok=6929,
                longest_gap_ns=1_834_000_000,
                longest_gap_at_ns=9_066_000_000,
            ),
            windows=tuple(
                FaultWindow(
                    fault=number,
                    kind=fault.kind,
                    target=fault.target,
                    nodes=fault.nodes,
                    roles=fault.roles,
                    start_ns=int(fault.start_s * NS),
                    end_ns=int(fault.end_s * NS),
                    ok=700 + number,
                    longest_gap_ns=1_834_000_000,
                    longest_gap_at_ns=int(fault.start_s * NS) + 40_000_000,
                    first_ok_after_inject_ns=1_102_000,
                    first_ok_after_heal_ns=3_400_000 if fault.proven else None,
                )
                for number, fault in enumerate(BREAKS)
            ),
        ),
    )


def violation(txns: Sequence[int] = (100, 160, 900)) -> Verdict:
    """What the checkers say of a run that lost a write."""
    lost = Finding(
        text="lost write: an acknowledged append to key 7 (value 31) is in no later read",
        txns=tuple(txns),
        keys=(7,),
        explained_by=Explanation(
            fault=0, text="fault 0, kill of n3 (leader of partition 3), 0.4 s before"
        ),
    )
    cycle = Finding(
        text="G1c: three transactions read from each other in a circle",
        txns=(txns[0], txns[1]),
        keys=(7, 15),
        cycle=(
            Dependency(kind="wr", source=txns[0], target=txns[1], key=7, element=31),
            Dependency(kind="ww", source=txns[1], target=txns[0], key=15, element=8),
        ),
    )
    return msgspec.structs.replace(
        valid(),
        outcome=Outcome.VIOLATION,
        reasons=("lost-write: 3 acknowledged appends are in no later read of their key",),
        anomalies={"lost-write": Anomaly(count=3, examples=(lost,))},
        observed={"G1c": Anomaly(count=1, examples=(cycle,))},
        not_=("read-committed",),
        also_not=("snapshot-isolation", "strict-serializable"),
    )


def _fault(number: int, fault: Break, start_s: float) -> list[tuple[float, Record]]:
    states = [
        (0.0, FaultState.PLANNED, ""),
        (fault.start_s, FaultState.INJECTING, ""),
        (fault.start_s + 0.05, FaultState.INJECTED, ""),
        (fault.start_s + 0.2, FaultState.EFFECTIVE, "no process 4711 on n3 any more"),
        (fault.end_s, FaultState.HEALING, ""),
        (fault.end_s + 0.3, FaultState.HEALED, "boot 2 answers, pid 4811"),
    ]
    if not fault.proven:
        states[3:] = [(fault.start_s + 1.0, FaultState.UNPROVEN, "every link still carried bytes")]
    return [
        (
            at_s,
            FaultTransition(
                fault=number,
                kind=fault.kind,
                target=fault.target,
                state=state,
                at_ns=int((at_s or start_s) * NS),
                nodes=fault.nodes if at_s else (),
                roles=fault.roles if at_s else (),
                text=text,
            ),
        )
        for at_s, state, text in states
    ]


def _operations(
    stream: random.Random,
    start_s: float,
    duration_s: float,
    rate_per_s: float,
    breaks: Sequence[Break],
) -> list[tuple[float, Record]]:
    """A closed loop of ten processes whose latency and errors follow the faults."""
    events: list[tuple[float, int, str, dict[str, object]]] = []
    think_s = 10 / rate_per_s
    lists: dict[int, list[int]] = {}
    for slot in range(10):
        now_s, process, value = start_s + stream.random() * think_s, slot, slot
        while now_s < start_s + duration_s:
            shaken = sum(b.start_s <= now_s <= b.start_s + 1.8 for b in breaks)
            weak = any(b.start_s <= now_s <= b.end_s for b in breaks)
            latency_s = stream.lognormvariate(-5.2, 0.5) * (1 + 2 * weak)
            kind, error = OpType.OK, None
            if shaken and stream.random() < 0.7:
                latency_s = stream.uniform(0.3, 2.0)
                kind = OpType.FAIL if stream.random() < 0.7 else OpType.INFO
                error = "LEADER-LOST" if kind is OpType.FAIL else "TIMEOUT"
            elif stream.random() < 0.01:
                kind, error = OpType.FAIL, "TX-CONFLICT"
            value += 10
            op = {
                "slot": slot,
                "process": process,
                "node": f"n{slot % 5 + 1}",
                "key": stream.randrange(16),
                "value": value,
                "kind": kind,
                "error": error,
                "end_s": now_s + latency_s,
            }
            events += [(now_s, slot, "invoke", op), (now_s + latency_s, slot, "complete", op)]
            process += 10 if kind is OpType.INFO else 0
            now_s += latency_s + stream.expovariate(1 / think_s)
    found: list[tuple[float, Record]] = []
    for index, (at_s, _, what, op) in enumerate(sorted(events, key=lambda e: e[:3])):
        key, element = op["key"], op["value"]
        at_ns = int(at_s * NS)
        if what == "invoke":
            op["index"] = index
            ops = (MicroOp("r", key), MicroOp("append", key, element))
            record: Record = Invoke(
                index=index,
                process=op["process"],
                kind="read-write",
                node=op["node"],
                intended_ns=at_ns,
                at_ns=at_ns,
                wall_ns=WALL_NS + at_ns,
                ops=ops,
            )
        else:
            seen = lists.setdefault(key, [])
            ops = (MicroOp("r", key, tuple(seen)), MicroOp("append", key, element))
            if op["kind"] is OpType.OK:
                seen.append(element)
            record = Complete(
                index=index,
                invoke=op["index"],
                process=op["process"],
                type=op["kind"],
                at_ns=at_ns,
                ops=ops if op["kind"] is OpType.OK else (MicroOp("r", key), ops[1]),
                error=op["error"],
                phase="commit" if op["kind"] is OpType.INFO else None,
            )
        found.append((at_s, record))
    return found


def _events(stream: random.Random, breaks: Sequence[Break]) -> list[tuple[float, Record]]:
    found: list[tuple[float, Record]] = []
    for term, fault in enumerate(breaks, start=2):
        told = [(0.9 + 0.08 * p, EventKind.LEADER_ELECTED, p) for p in range(PARTITIONS)]
        told += [(0.1, EventKind.LEADER_LOST, 3), (6.1, EventKind.NODE_STARTED, None)]
        for after_s, kind, partition in told:
            at_ns = int((fault.start_s + after_s) * NS)
            node = f"n{stream.randrange(5) + 1}"
            event = StoreEvent(
                kind=kind,
                node=node,
                wall_ns=WALL_NS + at_ns,
                boot="b1",
                at_ns=at_ns,
                uncertainty_ns=400_000,
                partition=partition,
                term=None if partition is None else term,
                text="elected by n1, n2, n4" if kind is EventKind.LEADER_ELECTED else "",
            )
            found.append((fault.start_s + after_s, event))
    return found
