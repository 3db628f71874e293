"""Records the states of replicas: samples while a run lives, whole states at its end.

``states.parquet`` has one row per replica and request, ``logs.parquet`` one row per entry of a log
at the end. A state requested at ``asked_ns`` and answered at ``answered_ns`` was true at some
moment between.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pyarrow as pa

from harness import plugins
from harness.clock import RunClock
from harness.errors import HarnessError
from harness.history.parquet import SideTable, read_summed, write_side_table
from harness.history.run_directory import RunDirectory
from harness.history.schema import with_later
from harness.protocols.cluster import Cluster
from harness.protocols.replica_states import ReplicaState, TellsStates
from harness.tasks import together

SAMPLE_S = 1.0
PIECE_ROWS = 4096  # kept in memory before they are written
QUIET_POLL_S = 0.25
QUIET_LIMIT_S = 15.0  # for locks and transactions in doubt to go once no client drives any more

STATES_FILE = "states.parquet"
LOGS_FILE = "logs.parquet"
STATES = pa.schema(
    [
        ("asked_ns", pa.int64()),
        ("answered_ns", pa.int64()),
        ("final", pa.bool_()),
        ("node", pa.string()),
        ("life", pa.string()),
        ("boot", pa.string()),
        ("group", pa.string()),
        ("partition", pa.int32()),
        ("leading", pa.bool_()),
        ("voter", pa.bool_()),
        ("voters", pa.int32()),
        ("term", pa.int64()),
        ("vote", pa.string()),
        ("applied_index", pa.int64()),
        ("applied_term", pa.int64()),
        ("commit_index", pa.int64()),
        ("last_index", pa.int64()),
        ("recovered_term", pa.int64()),
        ("recovered_vote", pa.string()),
        ("recovered_index", pa.int64()),
        ("epoch", pa.int64()),
        ("acting", pa.bool_()),
        ("locks", pa.int64()),
        ("prepared", pa.int64()),
        ("content", pa.int64()),
        ("generation", pa.int64()),
    ]
)
LOGS = pa.schema(
    [
        ("node", pa.string()),
        ("life", pa.string()),
        ("group", pa.string()),
        ("partition", pa.int32()),
        ("index", pa.int64()),
        ("term", pa.int64()),
        ("digest", pa.int64()),
        ("generation", pa.int64()),  # of the replica
    ]
)


@attrs.frozen(kw_only=True)
class StateAnswer:
    """One node's answer, and the interval within which it was true."""

    node: str
    asked_ns: int
    answered_ns: int
    replicas: tuple[ReplicaState, ...]


class StateLog:
    """The state files of a run that lives. ``close`` is called once, on every path."""

    def __init__(self, run: RunDirectory, system: TellsStates, clock: RunClock) -> None:
        self._run, self._system, self._clock = run, system, clock
        self._states: SideTable | None = None
        self._logs: dict[str, str] = {}
        self._pieces: list[pa.Table] = []
        self._due_ns = 0

    async def sample(self, cluster: Cluster) -> None:
        """Ask every node, if the last sample is ``SAMPLE_S`` old. Raises ``HarnessError``, also for
        an answer that no table takes: the others are recorded.
        """
        if self._clock.now_ns() < self._due_ns:
            return
        self._due_ns = self._clock.now_ns() + int(SAMPLE_S * 1e9)
        self._keep(await self._ask(cluster, whole=False), final=False)

    async def finish(self, cluster: Cluster, limit_s: float) -> None:
        """Record the whole states at the end: once every node answers, no transaction holds a lock
        and all replicas have applied the same, or at the latest after ``limit_s``. Raises
        ``HarnessError``, also for nodes that did not answer until then: what the others told is
        recorded.

        Locks may be held in the whole states that were not in the answers before: then those are
        asked for again.
        """
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + limit_s
        while True:
            late = loop.time() >= give_up_s
            if late or _quiet(cluster, await self._ask(cluster, whole=False)):
                told = await self._ask(cluster, whole=True)
                if late or not (_absent(cluster, told) or _holding(told)):
                    break
            await asyncio.sleep(QUIET_POLL_S)
        missing = "logs were not compared"
        try:
            self._keep(told, final=True)
        finally:
            self._logs = write_side_table(self._run.root, LOGS_FILE, _logs(told), missing)
        if absent := _absent(cluster, told):
            raise HarnessError(f"no answer at the end from {', '.join(absent)}: {missing}")

    def close(self) -> dict[str, str]:
        """Write the remaining rows; returns the checksums of the files. Raises ``HarnessError``."""
        self._flush()
        # A run that was cut short may have come to neither.
        return self._logs | (self._states.publish() if self._states is not None else {})

    async def _ask(self, cluster: Cluster, *, whole: bool) -> tuple[StateAnswer, ...]:
        async def one(node: str) -> StateAnswer | None:
            asked_ns = self._clock.now_ns()
            replicas = await self._system.states(cluster, node, whole=whole)
            if replicas is None:
                return None
            return StateAnswer(
                node=node,
                asked_ns=asked_ns,
                answered_ns=self._clock.now_ns(),
                replicas=replicas,
            )

        answers = await together(one(node) for node in cluster.nodes)
        return tuple(answer for answer in answers if answer is not None)

    def _keep(self, told: tuple[StateAnswer, ...], *, final: bool) -> None:
        refused = list[str]()
        for answer in told:
            try:
                # Each by itself: what one adapter's node tells must not cost the others' states.
                rows = [_row(answer, state, final) for state in answer.replicas]
                self._pieces.append(pa.Table.from_pylist(rows, schema=STATES))
            except (pa.ArrowException, TypeError, ValueError, AttributeError) as error:
                refused.append(f"{answer.node}: its states fit no table: {plugins.told(error)}")
        if sum(piece.num_rows for piece in self._pieces) >= PIECE_ROWS:
            self._flush()
        if refused:
            raise HarnessError("; ".join(refused))

    def _flush(self) -> None:
        if not any(piece.num_rows for piece in self._pieces):
            return
        rows = pa.concat_tables(self._pieces).combine_chunks()
        self._pieces.clear()
        if self._states is None:
            missing = "states were not compared"
            self._states = SideTable(self._run.root, STATES_FILE, STATES, missing)
        self._states.add(rows)


def read_states(root: Path, checksums: dict[str, str]) -> dict[str, pa.Table]:
    """``states`` and ``logs`` of the run in ``root``; empty where its manifest names none.

    Raises ``MalformedHistory`` for a file that the manifest names and that is missing or differs.
    """
    found = read_summed(root, checksums, {STATES_FILE: STATES, LOGS_FILE: LOGS})
    like = {"states": STATES, "logs": LOGS}
    return {name: with_later(name, table, like[name]) for name, table in found.items()}


def _holding(told: tuple[StateAnswer, ...]) -> bool:
    return any(state.locks or state.prepared for answer in told for state in answer.replicas)


def _absent(cluster: Cluster, told: tuple[StateAnswer, ...]) -> list[str]:
    answered = {answer.node for answer in told}
    return [node for node in cluster.nodes if node not in answered]


def _quiet(cluster: Cluster, told: tuple[StateAnswer, ...]) -> bool:
    """Every node answered, no transaction holds a lock, and every replica of a partition has
    applied the same.
    """
    if _absent(cluster, told) or _holding(told):
        return False
    applied: dict[str, set[int]] = {}
    for state in (state for answer in told for state in answer.replicas):
        # The metastorage never rests: nodes renew their leases in it.
        if state.partition is not None:
            applied.setdefault(state.group, set()).update((state.applied_index, state.commit_index))
    return all(len(indices) == 1 for indices in applied.values())


def _row(told: StateAnswer, state: ReplicaState, final: bool) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.structs.asdict(state)
    recovered: dict[str, Any] = msgspec.structs.asdict(state.recovered)
    recovered["index"] = recovered["last_index"]
    return row | {
        "asked_ns": told.asked_ns,
        "answered_ns": told.answered_ns,
        "final": final,
        **{f"recovered_{name}": recovered[name] for name in ("term", "vote", "index")},
    }


def _logs(told: tuple[StateAnswer, ...]) -> pa.Table:
    states = [state for answer in told for state in answer.replicas]
    rows = [
        {
            "node": state.node,
            "life": state.life,
            "group": state.group,
            "partition": state.partition,
            "generation": state.generation,
            **msgspec.structs.asdict(mark),
        }
        for state in states
        for mark in state.log
    ]
    return pa.Table.from_pylist(rows, schema=LOGS)
