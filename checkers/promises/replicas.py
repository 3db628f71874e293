"""Promises of every store of replicated logs about its replicas, from the states they reported.

=================== ==============================================================================
``diverged-logs``   two replicas have applied different entries at one place of their log
``diverged-replicas`` two replicas have applied the same entries and hold different contents
``two-leaders``     two nodes led one group in one term
``forgotten-state`` a node lost, with a restart, durable state: term, vote or entries; or another
                    says that it has lost entries, before any fault that destroys data
``went-back``       term of a replica fell while its node ran, or commit or applied index while the
                    replica did
``lost-entries``    an entry that a replica had applied is in the logs of no majority at the end
``stale-primary``   a node would acknowledge after another had taken over from it
``lock-left``       transactions hold locks at the end, though the deadline of each is over
=================== ==============================================================================

A forced reset begins a new generation of a partition (``harness.protocols.generations``), in which
terms, indices and contents are others. What the first five compare is of one generation. Within one
nothing is forgiven, and a primary of an older generation is as stale as any. A copy that has heard
of a later generation and waits for its log tells of the log that it has, and of the term that it is
in: terms of a copy are compared while no later generation had begun.

``diverged-logs`` compares generations, too. The log that a reset goes on with ended at its base,
and need not have been committed: the majority before may have committed other entries at or below
the base. What both generations must have alike (``_shared``) follows from raft: the log of a term's
leader has all that was committed in that term or before, and logs with one entry of one term in
common are equal up to it. An entry itself, of one place and term, is the same in both.

Times prove an order only between a question and an earlier answer: a question that was sent after
another replica's answer had arrived is the later one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.engine.arrays import Bools, Ints, ints
from checkers.explain.words import of_texts
from harness.clock import NS_PER_S
from harness.history.records import EventKind
from harness.history.store_events import rows_of
from harness.protocols.checker import Kernel, Lookup, Part, Tables
from harness.protocols.fault_kinds import by_name
from harness.protocols.fault_spans import fault_spans
from harness.protocols.generations import FIRST, Reset
from harness.protocols.setting import Setting
from harness.run.state_log import QUIET_LIMIT_S
from harness.text import seconds

Row = dict[str, Any]
# The name and the sentence of each anomaly.
Found = Iterator[tuple[str, str]]


@attrs.frozen
class Replicas:
    """Compares replicas; gives no anomalies for a run without states."""

    name: str = "replicas"
    kernels: tuple[Kernel, ...] = ()

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """Return every anomaly between and within replicas."""
        states, logs, events = tables["states"], tables["logs"], tables["events"]
        last = states.filter(states.column("final"))
        texts: dict[str, list[str]] = {}
        for found in (
            diverged_logs(states, logs, setting.resets),
            diverged_replicas(last),
            two_leaders(states, events),
            forgotten(states, setting.resets),
            lost_logs(events, tables["faults"], setting),
            went_back(states, events, setting.resets),
            lost_entries(states, last),
            stale_primaries(states),
            locks_left(last, lookup, setting),
        ):
            for name, text in found:
                texts.setdefault(name, []).append(text)
        return Part(
            anomalies={name: of_texts(found) for name, found in texts.items()},
            statistics={"replicas": {"told": states.num_rows, "at_the_end": last.num_rows}},
        )


def diverged_logs(states: pa.Table, logs: pa.Table, resets: Sequence[Reset] = ()) -> Found:
    """Yield one sentence for each place of a log where replicas have applied different entries."""
    applied = states.filter(pc.greater(states.column("applied_term"), 0))
    names = ["group", "index", "term", "partition", "generation"]
    ends = ["group", "applied_index", "applied_term", "partition", "generation"]
    places = pa.concat_tables([logs.select(names), applied.select(ends).rename_columns(names)])
    places = pa.concat_tables([places, _bases_told(places, resets)])
    told = [reset for reset in resets if reset.base_index is not None]
    bases = {(r.partition, r.generation): (r.previous, r.base_index or 0) for r in told}
    logs = _by_entry(logs, bases)
    keys = ["group", "generation", "index"]
    order = [(name, "ascending") for name in keys]
    terms = _spread(places, keys, "term").to_pylist()
    within = {(row["group"], row["index"]) for row in terms}
    across = _spread(_by_entry(places, _shared(told, states, places)), keys, "term").to_pylist()
    terms += [row for row in across if (row["group"], row["index"]) not in within]
    digests = _spread(logs, ["group", "generation", "index", "term"], "digest")
    for row in sorted(terms, key=itemgetter(*keys)):
        yield (
            "diverged-logs",
            f"diverged logs: entry {row['index']} of {_group(row)} was applied as one of term "
            f"{row['term_min']} and as one of term {row['term_max']}",
        )
    for row in digests.sort_by(order).to_pylist():
        holders = " and ".join(_holders(logs, row))
        yield (
            "diverged-logs",
            f"diverged logs: entry {row['index']} of {_group(row)}, of term {row['term']}, is "
            f"another one on {holders}",
        )


def diverged_replicas(last: pa.Table) -> Found:
    """Yield one sentence for each group and index at which replicas differ in content."""
    told = last.filter(last.column("content").is_valid())
    for row in _spread(told, ["group", "generation", "applied_index"], "content").to_pylist():
        same = pc.and_(
            pc.and_(
                pc.equal(told.column("group"), row["group"]),
                pc.equal(told.column("generation"), row["generation"]),
            ),
            pc.equal(told.column("applied_index"), row["applied_index"]),
        )
        nodes = " and ".join(sorted(told.filter(same).column("node").to_pylist()))
        yield (
            "diverged-replicas",
            f"diverged replicas: {nodes} hold different contents of {_group(row)}, though all "
            f"have applied entries up to {row['applied_index']} and no further",
        )


def two_leaders(states: pa.Table, events: pa.Table) -> Found:
    """Yield one sentence for each term of a generation in which two nodes led."""
    names = ["partition", "generation", "term", "node"]
    leading = states.filter(states.column("leading")).select(names)
    kind = pc.equal(events.column("kind"), EventKind.LEADER_ELECTED.value)
    elected = events.filter(kind).select(names).cast(leading.schema)
    both = pa.concat_tables([leading, elected])
    # An event of the first generation goes without it.
    place = both.column_names.index("generation")
    both = both.set_column(place, "generation", pc.fill_null(both.column("generation"), FIRST))
    counted = both.group_by(names[:3]).aggregate([("node", "distinct")])
    for row in counted.to_pylist():
        nodes = sorted(row["node_distinct"])
        # A store's event may tell no term, and then proves nothing about one.
        if len(nodes) > 1 and row["term"]:
            yield (
                "two-leaders",
                f"two leaders: {' and '.join(nodes)} both led "
                f"{_where(row['partition'])}{_generation(row)} in term {row['term']}",
            )


def forgotten(states: pa.Table, resets: Sequence[Reset] = ()) -> Found:
    """Yield one sentence for each restart that lost durable state."""
    before: dict[tuple[str, str], Row] = {}
    for row in _boots(states):
        replica = row["life"], row["group"]
        told = before.get(replica)
        # A reset in between may have taken the log back: what is held against it is of one.
        same = told is not None and told["generation_last"] == row["generation_first"]
        what = None
        if told is not None and same:
            left = _had_later(
                resets, row["partition_first"], row["generation_first"], row["answered_ns_first"]
            )
            what = (None if left else _lost_vote(told, row)) or _lost_entries(told, row)
        if what is not None:
            yield "forgotten-state", f"forgotten state: {row['group']} on {row['node']}: {what}"
        before[replica] = _both(told, row)


def lost_logs(events: pa.Table, faults: pa.Table, setting: Setting) -> Found:
    """Yield one sentence for each node and group of which another node reported that it has lost
    entries that it had acknowledged as durable.

    A sample of states may miss it: what was acknowledged since the last one, the leader alone
    knows. A fault that destroys data of the node that it is about excuses it once it has begun; on
    any node where the event does not tell which one that is, or the fault may do anything.
    """
    kinds, spans = by_name(setting.fault_kinds), fault_spans(faults.to_pylist())
    destroying = [
        (span, kind) for span in spans if not (kind := kinds.get(span.kind)) or kind.may_destroy
    ]
    told = events.filter(pc.equal(events["kind"], EventKind.LOST_LOG.value))
    for row in told.sort_by([("at_ns", "ascending"), ("node", "ascending")]).to_pylist():
        # Before the fault for certain: times of the store's events are mapped, with an error bound.
        last_ns, node = row["at_ns"] + row["uncertainty_ns"], row["about"]
        if not any(
            span.begin_ns <= last_ns
            and (node is None or node in span.nodes or kind is None or not kind.destroys)
            for span, kind in destroying
        ):
            yield (
                "forgotten-state",
                f"forgotten state: {row['node']} says that {row['text']} (at "
                f"{seconds(row['at_ns'])}), and no fault that destroys data had begun",
            )


def went_back(states: pa.Table, events: pa.Table, resets: Sequence[Reset] = ()) -> Found:
    """Yield one sentence for each replica and number that fell without a restart, of its node or of
    the replica: what is durable does not fall with that either.
    """
    order = [(name, "ascending") for name in ("life", "group", "boot", "asked_ns")]
    ordered = states.sort_by(order)
    same = np.ones(max(0, ordered.num_rows - 1), dtype=np.bool_)
    for name in ("life", "group", "boot", "generation"):
        same &= _repeats(ordered.column(name))
    for name in ("term", "commit_index", "applied_index"):
        values = ints(ordered, name)
        for place in np.flatnonzero(same & (values[1:] < values[:-1])):
            row, later = ordered.slice(int(place), 2).to_pylist()
            if name == "term":
                which = later["partition"], later["generation"]
                if _had_later(resets, *which, later["answered_ns"]):
                    continue
            elif _started_between(events, row, later):
                continue
            yield (
                "went-back",
                f"went back: {row['group']} on {row['node']}: {name.replace('_', ' ')} fell from "
                f"{values[place]} to {values[place + 1]} while the node ran",
            )


def _had_later(resets: Sequence[Reset], partition: int | None, generation: int, by_ns: int) -> bool:
    """Whether a later generation of ``partition`` may have begun by ``by_ns``."""
    return any(
        reset.partition == partition
        and reset.generation > generation
        and reset.earliest_ns <= by_ns
        for reset in resets
    )


def _started_between(events: pa.Table, before: Row, after: Row) -> bool:
    """Tell whether the replica of ``before`` may have been started anew by ``after``: it tells from
    where it recovered, and its node that it starts.
    """
    recovered = ("recovered_term", "recovered_index")
    if any(before[name] != after[name] for name in recovered):
        return True
    return any(
        row["partition"] == before["partition"]
        and row["node"] == before["node"]
        and row["at_ns"] + row["uncertainty_ns"] >= before["asked_ns"]
        and row["at_ns"] - row["uncertainty_ns"] <= after["answered_ns"]
        for row in rows_of(events, (EventKind.START_DECISION,))
    )


def lost_entries(states: pa.Table, last: pa.Table) -> Found:
    """Yield one sentence for each group whose last applied entry is on too few replicas."""
    voters = last.filter(last.column("voter"))
    for row in last.filter(last.column("leading")).to_pylist():
        group, size = row["group"], row["voters"]
        of_group = _of_generation(states, row)
        here = _of_generation(voters, row).to_pylist()
        # An entry that was applied after a replica had been asked need not have reached it by then.
        lacking = {
            voter["node"]: known
            for voter in here
            if voter["last_index"] < (known := _known_at(of_group, voter["asked_ns"]))
        }
        # A voter that gave no state at the end counts as one that holds the entry.
        if size - len(lacking) < size // 2 + 1:
            nodes = " and ".join(sorted(lacking))
            yield (
                "lost-entries",
                f"lost entries: {group} had applied entry {min(lacking.values())}, which is not in "
                f"the logs of {nodes}: no majority holds it",
            )


def _known_at(states: pa.Table, asked_ns: int) -> int:
    """Return the last entry that any replica is known to have applied before ``asked_ns``."""
    before = states.filter(pc.less_equal(states.column("answered_ns"), asked_ns))
    return max(before.column("applied_index").to_pylist(), default=0)


def stale_primaries(states: pa.Table) -> Found:
    """Yield one sentence for each answer of a primary that another had followed, or that shares its
    epoch.
    """
    acting = states.filter(states.column("acting"))
    for partition in sorted(acting.column("partition").unique().to_pylist()):
        claims = acting.filter(pc.equal(acting.column("partition"), partition))
        for place, later in _overtaken(claims):
            row = claims.slice(place, 1).to_pylist()[0]
            yield (
                "stale-primary",
                f"stale primary: {row['node']} would acknowledge for partition {partition} in "
                f"epoch {row['epoch']}, asked after a primary of epoch {later} had answered",
            )
        shared = claims.group_by("epoch").aggregate([("boot", "distinct"), ("node", "distinct")])
        for row in shared.to_pylist():
            if len(row["boot_distinct"]) > 1:
                nodes = " and ".join(sorted(row["node_distinct"]))
                yield (
                    "stale-primary",
                    f"stale primary: {nodes} were both primary of partition {partition} in epoch "
                    f"{row['epoch']}",
                )


def locks_left(last: pa.Table, lookup: Lookup, setting: Setting) -> Found:
    """Yield one sentence for each replica that holds locks at the end of a run that
    came to rest.

    A transaction that a client abandoned may keep its locks up to its own deadline, and a store
    then takes its time to notice: a replica that was asked earlier than that, as one of a run that
    was told to end, is not accused.
    """
    if setting.interrupted or setting.restless or "final-reads" not in dict(setting.phases):
        return
    pieces = lookup.pieces(("invoke_ns",))
    begun_ns = max(pc.max(piece["invoke_ns"]).as_py() or 0 for piece in pieces)
    due_ns = begun_ns + int((setting.op_deadline_s + QUIET_LIMIT_S) * NS_PER_S)
    for row in last.sort_by([("group", "ascending"), ("node", "ascending")]).to_pylist():
        if (row["locks"] or row["prepared"]) and row["asked_ns"] >= due_ns:
            yield (
                "lock-left",
                f"lock left: {row['group']} on {row['node']} keeps {row['locks']} locks and "
                f"{row['prepared']} prepared transactions, though every client is gone",
            )


def _spread(table: pa.Table, keys: list[str], value: str) -> pa.Table:
    """Return the groups by ``keys`` in which ``value`` has more than one value."""
    grouped = table.group_by(keys).aggregate([(value, "min"), (value, "max")])
    return grouped.filter(
        pc.not_equal(grouped.column(f"{value}_min"), grouped.column(f"{value}_max"))
    )


def _holders(logs: pa.Table, row: Row) -> list[str]:
    here = pc.equal(_of_generation(logs, row).column("index"), row["index"])
    return sorted(_of_generation(logs, row).filter(here).column("node").to_pylist())


def _of_generation(table: pa.Table, row: Row) -> pa.Table:
    """Return the rows of the group and generation of ``row``."""
    return table.filter(
        pc.and_(
            pc.equal(table.column("group"), row["group"]),
            pc.equal(table.column("generation"), row["generation"]),
        )
    )


def _by_entry(table: pa.Table, up_to: Mapping[tuple[int, int], tuple[int, int]]) -> pa.Table:
    """Return ``table`` with the generation of each row's entry in place of its replica's: the
    earliest that has the entry, where ``up_to`` says of a partition's generation which one is
    before it, and up to which index both are alike.
    """
    if not up_to:
        return table
    found = []
    for row in table.select(["partition", "generation", "index"]).to_pylist():
        generation = row["generation"]
        while (before := up_to.get((row["partition"], generation))) is not None:
            # No later generation is before another: such a report ends the search.
            if row["index"] > before[1] or before[0] >= generation:
                break
            generation = before[0]
        found.append(generation)
    place = table.column_names.index("generation")
    return table.set_column(place, "generation", pa.array(found, pa.int64()))


def _bases_told(places: pa.Table, resets: Sequence[Reset]) -> pa.Table:
    """Return the bases of ``resets`` as entries of the generations that they began."""
    groups = dict(
        zip(places.column("partition").to_pylist(), places.column("group").to_pylist(), strict=True)
    )
    rows = [
        {
            "group": groups[reset.partition],
            "index": reset.base_index,
            "term": reset.base_term,
            "partition": reset.partition,
            "generation": reset.generation,
        }
        for reset in resets
        if reset.base_index and reset.base_term and reset.partition in groups
    ]
    return pa.Table.from_pylist(rows, schema=places.schema)


def _shared(
    resets: Sequence[Reset], states: pa.Table, places: pa.Table
) -> dict[tuple[int, int], tuple[int, int]]:
    """Return, by the partition and generation of each of ``resets``, the generation before and the
    index up to which both must be alike: where the new one begins there, or up to the last entry

    - that a replica of the one before knew to be committed in the base's term or earlier: the
      leader of the base's term had it, and the base is an entry of that leader;
    - of the base's own term that was applied there: up to it both are one leader's log;
    - that began the one before: what goes on from it has that entry.

    A later leader of the generation before may have committed others in place of the rest.
    """
    bases = {(reset.partition, reset.generation): reset.base_index or 0 for reset in resets}
    found = {}
    if resets:
        known = states.select(["partition", "generation", "term", "commit_index"]).to_pylist()
        applied = places.select(["partition", "generation", "term", "index"]).to_pylist()
    for reset in resets:
        base, before = reset.base_index or 0, (reset.partition, reset.previous)
        indices = [bases[before] + 1] if before in bases else []
        if (term := reset.base_term) is not None:
            indices += [
                row["commit_index"]
                for row in known
                if (row["partition"], row["generation"]) == before and row["term"] <= term
            ]
            indices += [
                row["index"]
                for row in applied
                if (row["partition"], row["generation"]) == before and row["term"] == term
            ]
        end = min(base, max(indices, default=0))
        found[reset.partition, reset.generation] = reset.previous, end
    return found


def _group(row: Row) -> str:
    return f"{row['group']}{_generation(row)}"


def _generation(row: Row) -> str:
    """Name the generation of ``row``; the first goes without saying."""
    return f", generation {row['generation']}," if row["generation"] else ""


def _where(partition: int | None) -> str:
    return "metastorage" if partition is None else f"partition {partition}"


def _boots(states: pa.Table) -> list[Row]:
    """Return each start of each replica with its last reported and its first recovered state, in
    order.
    """
    keys = ["node", "life", "group", "boot"]
    order = [("asked_ns", "ascending")]
    # No vote is an answer, too: else that of an earlier term would stand beside the last term.
    as_told = pc.ScalarAggregateOptions(skip_nulls=False)
    recovered = [(f"recovered_{name}", "first", as_told) for name in ("term", "vote", "index")]
    told = [(name, "last", as_told) for name in ("term", "vote", "applied_index", "generation")]
    # Arrow takes first and last of a group only in one thread, where rows have an order.
    grouped = states.sort_by(order).group_by(keys, use_threads=False)
    return list(
        grouped.aggregate(
            [
                *(*told, *recovered),
                *((name, "first", as_told) for name in ("generation", "partition", "answered_ns")),
                ("asked_ns", "first"),
            ]
        )
        .sort_by([("asked_ns_first", "ascending")])
        .to_pylist()
    )


def _lost_vote(told: Row, row: Row) -> str | None:
    """Describe the term and vote of ``told`` that the start in ``row`` did not recover; ``None`` if
    both were there.
    """
    term, vote = row["recovered_term_first"], row["recovered_vote_first"]
    if term < told["term_last"]:
        return f"started in term {term} after it had told term {told['term_last']}"
    given = told["vote_last"]
    if term == told["term_last"] and given is not None and vote != given:
        return (
            f"in term {term} it had voted for {given}, and after a restart for {vote or 'nobody'}"
        )
    return None


def _lost_entries(told: Row, row: Row) -> str | None:
    """The same of the entries of its log."""
    if row["recovered_index_first"] < told["applied_index_last"]:
        return (
            f"its log ended at {row['recovered_index_first']} after a restart, though it had "
            f"applied entry {told['applied_index_last']}"
        )
    return None


def _both(told: Row | None, row: Row) -> Row:
    """Return the highest state reported up to the end of the start in ``row``."""
    if told is None or told["generation_last"] != row["generation_last"]:
        return row
    # Within one term a vote stands above none: it may be given by a later start only.
    further = max(told, row, key=lambda each: (each["term_last"], each["vote_last"] is not None))
    applied = max(told["applied_index_last"], row["applied_index_last"])
    return dict(further) | {"applied_index_last": applied}


def _repeats(column: pa.ChunkedArray) -> Bools:
    """Mark each value but the first that equals the one before."""
    flat = column.combine_chunks()
    repeats: Bools = np.asarray(pc.equal(flat[1:], flat[:-1]), dtype=np.bool_)
    return repeats


def _overtaken(claims: pa.Table) -> Iterator[tuple[int, int]]:
    """Yield the rows that were asked after an answer of a later epoch, and that epoch."""
    asked, answered = ints(claims, "asked_ns"), ints(claims, "answered_ns")
    epoch = ints(claims, "epoch")
    order = np.argsort(answered, kind="stable")
    highest: Ints = np.maximum.accumulate(epoch[order])
    before = np.searchsorted(answered[order], asked)  # answers that came before the question
    for place in np.flatnonzero(before > 0):
        later = int(highest[before[place] - 1])
        if later > epoch[place]:
            yield int(place), later


CHECKER = Replicas()
