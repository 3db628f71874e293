"""What firedrill itself did to a run, and what its clients met, stands in the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs
import pyarrow as pa
import pytest
from synthetic_run import BREAKS, new_run, records, valid, write_verdict

from harness.history.chunks import ChunkWriter
from harness.history.records import Complete, Invoke, MicroOp, Note, OpType, Record
from harness.history.run_directory import RunDirectory
from harness.history.seal import seal
from results.report import fault_rows, harness_actions
from results.report.harness_actions import MET_MAX, OWN_MAX
from results.report.page import page
from results.report.render import write_report
from results.report.run_data import gather

NS = 1_000_000_000
RESTARTED = Note(at_ns=13 * NS, fault=0, text="n2 had been thrown out, restarted")
LATER = Note(at_ns=14 * NS, fault=0, text="not healed yet: n3 runs but tells no roles")


def met(at_s: float, process: int, text: str) -> Note:
    return Note(at_ns=int(at_s * NS), process=process, text=text)


REFUSED = [
    met(10 + n, n, f"connects to n{n} again in 0.{n} s, after REFUSED: 10.0.0.{n}:74{n}")
    for n in (1, 2, 3)
]
KILLED = met(20, 4, "connects to n3 again in 0.05 s, after LOST: the process has ended: code -9")


def run_with(root: Path, notes: Sequence[Record]) -> RunDirectory:
    run = new_run(root)
    writer = ChunkWriter(run.chunks)
    for record in [*records(1, 10.0, 5.0, BREAKS[:1]), *notes]:
        writer.append(record)
    writer.close()
    seal(run, partition_of=lambda key: key % 8)
    return run


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return run_with(tmp_path / "run", [RESTARTED, LATER, *REFUSED, KILLED])


def test_that_firedrill_restarted_a_node_stands_beside_the_fault_it_mended(
    run: RunDirectory,
) -> None:
    (fault,) = fault_rows.rows(gather(run))

    assert fault.proofs[-1] == (
        "firedrill noted",
        "n2 had been thrown out, restarted (at 13.000 s); "
        "not healed yet: n3 runs but tells no roles (at 14.000 s)",
    )


def test_the_harness_notes_come_first_and_of_its_clients_notes_the_rarest(
    run: RunDirectory,
) -> None:
    found = harness_actions.harness_actions(gather(run))

    assert [(row.first, row.last, row.times, row.who) for row in found.rows] == [
        ("13.000", "13.000", "1", "firedrill"),
        ("14.000", "14.000", "1", "firedrill"),
        ("20.000", "20.000", "1", "client 4"),
        ("11.000", "13.000", "3", "3 clients"),
    ]
    assert [row.text for row in found.rows[2:]] == [KILLED.text, REFUSED[0].text]


def test_both_are_on_the_page(run: RunDirectory) -> None:
    write_verdict(run, valid())

    text = write_report(run).read_text()

    assert text.count("had been thrown out, restarted") == 2
    assert "the process has ended: code -9" in text


def test_a_run_without_notes_has_no_such_table(tmp_path: Path) -> None:
    text = write_report(run_with(tmp_path / "run", [])).read_text()

    assert 'id="actions"' not in text


def test_more_notes_than_a_page_takes_are_counted(tmp_path: Path) -> None:
    own = [Note(at_ns=n * NS, text=f"note {n}") for n in range(OWN_MAX + 3)]
    other = [met(1.0, 1, f"kind {chr(97 + n)}") for n in range(MET_MAX + 2)]

    found = harness_actions.harness_actions(gather(run_with(tmp_path / "run", [*own, *other])))

    assert (len(found.rows), found.more) == (OWN_MAX + MET_MAX, 5)


def test_the_head_says_how_many_of_the_ok_were_final_reads(tmp_path: Path) -> None:
    """The reason of a vacuous run counts the others: both figures must be found."""
    read = MicroOp("r", 7, None)
    begin = Invoke(
        index=10_000, process=99, kind="read-write", node="n1", intended_ns=16 * NS,
        at_ns=16 * NS, wall_ns=0, ops=(read,),
    )  # fmt: skip
    end = Complete(
        index=10_001, invoke=10_000, process=99, type=OpType.OK, at_ns=17 * NS,
        ops=(MicroOp("r", 7, ()),),
    )  # fmt: skip

    without = page(gather(run_with(tmp_path / "without", []))).tested[1]
    with_one = page(gather(run_with(tmp_path / "with", [begin, end]))).tested[1]

    assert "transactions: 52 ok, " in without
    assert "transactions: 53 ok (1 of them final reads), " in with_one


def test_the_head_says_what_refused_the_transactions_that_failed(tmp_path: Path) -> None:
    """Conflicts of clients among themselves are no failures of the store."""
    run_data = gather(run_with(tmp_path / "run", []))
    codes = ["TX-CONFLICT"] * 3 + ["A"] * 2 + ["B", "C\x1b", "D"]
    ends = ["fail"] * len(codes) + ["ok"] * (run_data.transactions.num_rows - len(codes))
    errors = codes + [None] * (len(ends) - len(codes))
    table = run_data.transactions
    for name, values in (("type", ends), ("error", errors)):
        field = table.schema.field(name)
        column = pa.array(values).cast(pa.string()).dictionary_encode().cast(field.type)
        table = table.set_column(table.schema.get_field_index(name), field, column)

    head = page(attrs.evolve(run_data, transactions=table)).tested[1]

    assert " 8 fail, 0 info (TX-CONFLICT 3, A 2, B 1 and 2 more). " in head
