"""Nodes that end, or panic, without a fault that explains it; and what does explain it."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from checker_histories import STRICT, Fault, a, last_marks, ok, r, records

from checkers.engine.analyze import analyze
from checkers.promises import stays_up
from checkers.promises.stays_up import KEPT_MAX, scan
from harness.errors import MalformedHistory
from harness.history import evidence
from harness.history.chunks import ChunkWriter
from harness.history.load import load
from harness.history.manifest import read_manifest, write_manifest
from harness.history.records import EventKind, PhaseMark, Record, StoreEvent
from harness.history.regular_files import sha256
from harness.history.run_directory import SCHEMA_VERSION, Manifest, RunDirectory
from harness.history.seal import recover, seal
from harness.protocols.cluster import NODE_LOG_BYTES
from harness.protocols.fault_kinds import RecordedFaultKind
from harness.protocols.promise import LogPattern
from harness.protocols.verdict import Verdict, encode

MS = 1_000_000
GOOD = [ok(a(1, 1)), ok(r(1, 1)), ok(a(1, 2), start=90 * MS, finish=91 * MS)]
PATTERNS = (
    LogPattern(name="panic", regex="^panic: |^Traceback ", breaks=True),
    LogPattern(name="error", regex=" ERROR "),
)


def exit_of(
    node: str, at_ns: int, text: str = "ended without being told to: exited with 3"
) -> Record:
    return StoreEvent(
        kind=EventKind.NODE_EXITED,
        node=node,
        wall_ns=at_ns,
        boot="b1",
        at_ns=at_ns,
        uncertainty_ns=5 * MS,
        text=text,
    )


def write(
    root: Path,
    *events: Record,
    logs: dict[str, bytes] | None = None,
    faults: list[Fault] | None = None,
    arsenal: tuple[RecordedFaultKind, ...] = (RecordedFaultKind(kind="kill"),),
    patterns: tuple[LogPattern, ...] | None = PATTERNS,
    out_of_room: bool = False,
    sealed: bool = True,
) -> RunDirectory:
    root.mkdir(parents=True)
    run = RunDirectory(root)
    run.plan.write_text("[check]\nmin_ok = 1\n")
    declared = STRICT
    if patterns is not None:
        declared = msgspec.structs.replace(STRICT, logs=patterns)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        run_id="paper",
        state="running",
        versions={},
        machine={},
        declaration=declared,
        workload="list-append",
        checkers=("list-append", "statistics", "evidence"),
        arsenal=arsenal,
        out_of_room=out_of_room or msgspec.UNSET,
        checksums={run.plan.name: sha256(run.plan)},
    )
    write_manifest(run, manifest)
    writer = ChunkWriter(run.chunks)
    writer.append(PhaseMark(name="drive", at_ns=0))
    written = (*records(GOOD, faults), *events)
    for record in (*written, *last_marks(written)):
        writer.append(record)
    writer.close()
    for node, content in (logs or {}).items():
        run.node(node).mkdir(parents=True)
        (run.node(node) / "node.log").write_bytes(content)
    if sealed:
        seal(run, partition_of=lambda key: key % 2)
    return run


def judged(run: RunDirectory) -> Verdict:
    found = analyze(run, executor="local")
    assert encode(found) == encode(analyze(run, executor="local"))
    return found


def test_an_exit_that_nobody_asked_for_breaks_stays_up_and_shows_the_log(tmp_path: Path) -> None:
    log = b"fine\n2026 ERROR disk: no space\npanic: index 7\n"

    found = judged(write(tmp_path / "run", exit_of("n2", 50 * MS), logs={"n2": log}))

    assert found.outcome == "violation"
    (example,) = found.anomalies["node-exit"].examples
    assert example.text == (
        "stays-up: n2 ended without being told to: exited with 3 (between 0.045 s and 0.050 s)"
    )
    assert example.log == (
        "nodes/n2/node.log:2: 2026 ERROR disk: no space",
        "nodes/n2/node.log:3: panic: index 7",
    )
    assert found.anomalies["panic"].count == 1
    assert any("breaks the promise stays-up" in reason for reason in found.reasons)
    assert found.not_ == (), "a node that ends says nothing about the lattice"


def test_of_a_node_that_said_nothing_that_matters_the_last_words_are_shown(tmp_path: Path) -> None:
    log = b"".join(b"step %d\n" % n for n in range(4000)) + b"\nBus error\n"

    found = judged(write(tmp_path / "run", exit_of("n2", 50 * MS), logs={"n2": log, "n1": log}))

    (example,) = found.anomalies["node-exit"].examples
    assert example.log == (
        *(f"nodes/n2/node.log: step {n}" for n in range(3996, 4000)),
        "nodes/n2/node.log: Bus error",
    )
    assert found.node_logs == {}


def test_a_line_of_level_error_is_told_and_decides_nothing(tmp_path: Path) -> None:
    run = write(tmp_path / "run", logs={"n1": b"x ERROR a\ny ERROR b\n", "n2": b"fine\n"})

    found = judged(run)

    assert found.outcome == "valid"
    assert found.node_logs["n1"]["error"].lines == 2
    assert found.node_logs["n1"]["error"].first == "nodes/n1/node.log:1: x ERROR a"
    assert "n2" not in found.node_logs


def test_a_system_that_declares_nothing_of_its_nodes_is_not_judged_by_them(tmp_path: Path) -> None:
    event = exit_of("n2", 50 * MS)

    found = judged(write(tmp_path / "run", event, logs={"n2": b"panic: x\n"}, patterns=None))

    assert found.outcome == "valid"


@pytest.mark.parametrize(
    ("kind", "nodes", "explained"),
    [("torn-disk", ("n2",), True), ("torn-disk", ("n3",), False), ("kill", ("n2",), False)],
)
def test_only_a_fault_on_that_node_that_it_may_not_survive_explains_an_end(
    tmp_path: Path, kind: str, nodes: tuple[str, ...], explained: bool
) -> None:
    arsenal = (RecordedFaultKind(kind="kill"), RecordedFaultKind(kind="torn-disk", may_end=True))
    fault = Fault(kind, "one", 20 * MS, 60 * MS, nodes)
    run = write(
        tmp_path / "run",
        exit_of("n2", 50 * MS),
        logs={"n2": b"panic: EIO\n"},
        faults=[fault],
        arsenal=arsenal,
    )

    assert (judged(run).outcome == "valid") is explained


def life_of(node: str, kind: EventKind, at_ns: int) -> Record:
    return StoreEvent(
        kind=kind, node=node, wall_ns=at_ns, boot="1", at_ns=at_ns, uncertainty_ns=0, text=kind
    )


STARTED, REFUSED, STOPPED = (
    EventKind.NODE_STARTED,
    EventKind.NODE_REFUSED,
    EventKind.NODE_STOPPED,
)


@pytest.mark.parametrize(
    ("node", "life", "explained"),
    [
        ("n2", (STARTED, REFUSED, STOPPED), True),
        ("n2", (REFUSED, STOPPED), True),
        ("n2", (STARTED, STOPPED), False),  # nobody refused it
        ("n2", (STARTED, REFUSED), False),  # it did not stop: it was ended
        ("n2", (STARTED, REFUSED, STOPPED, STARTED), False),  # in a life before
        ("n2", (REFUSED, STARTED, STOPPED), False),
        ("n3", (STARTED, REFUSED, STOPPED), False),
    ],
)
def test_a_node_that_others_refuse_until_it_starts_anew_may_stop(
    tmp_path: Path, node: str, life: tuple[EventKind, ...], explained: bool
) -> None:
    events = [life_of(node, kind, (20 + at) * MS) for at, kind in enumerate(life)]
    too_late = [life_of("n2", kind, (60 + at) * MS) for at, kind in enumerate((REFUSED, STOPPED))]

    run = write(tmp_path / "run", *events, exit_of("n2", 50 * MS), *too_late)

    assert (judged(run).outcome == "valid") is explained


def test_a_fault_that_was_healed_before_explains_nothing(tmp_path: Path) -> None:
    fault = Fault("torn-disk", "one", 10 * MS, 20 * MS, ("n2",))
    arsenal = (RecordedFaultKind(kind="torn-disk", may_end=True),)

    run = write(tmp_path / "run", exit_of("n2", 50 * MS), faults=[fault], arsenal=arsenal)

    assert judged(run).anomalies["node-exit"].count == 1


def test_where_the_disk_of_the_run_was_full_ends_decide_nothing_and_are_told(
    tmp_path: Path,
) -> None:
    log = {"n2": b"panic: no space left\n"}
    run = write(tmp_path / "run", exit_of("n2", 50 * MS), logs=log, out_of_room=True)

    found = judged(run)

    assert found.outcome == "unknown"
    assert found.reasons == (
        "undecided: node-exit, panic was seen, but the disk of the run was full, and what lies on "
        "it fails for that alone",
    )
    assert set(found.observed) == {"node-exit", "panic"}


def test_logs_may_hold_anything_and_cost_little(tmp_path: Path) -> None:
    hostile = b"\x1b[31m\0\xff<script>" * 200_000 + b"panic: not at the beginning of a line\n"
    many = b"".join(b"panic: %d \xff\n" % i for i in range(500))
    run = write(tmp_path / "run", logs={"n1": hostile + many})

    rows = scan(load(run), PATTERNS).to_pylist()

    assert len(rows) == KEPT_MAX
    assert rows[0]["line"] == 2, "the long line is one line"
    assert {row["total"] for row in rows} == {500}
    assert len(hostile + many) < NODE_LOG_BYTES


def test_the_end_of_a_log_that_nobody_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stays_up, "NODE_LOG_BYTES", 20)
    run = write(
        tmp_path / "run", logs={"n1": b"panic: 1\nfine enough\npanic: 2\n", "n2": b"fine\n"}
    )

    rows = scan(load(run), PATTERNS).to_pylist()

    assert [(row["pattern"], row["node"]) for row in rows] == [("panic", "n1"), ("not-read", "n1")]
    assert rows[1]["text"] == "the last 10 bytes of the file were not looked at"


@pytest.mark.parametrize(
    ("patterns", "outcome"),
    [(PATTERNS, "unknown"), (PATTERNS[1:], "valid"), (None, "valid")],
    ids=["lines break a promise", "lines only explain", "no promise"],
)
def test_where_the_beginning_of_a_log_was_left_out_a_panic_may_be_in_it(
    tmp_path: Path, patterns: tuple[LogPattern, ...] | None, outcome: str
) -> None:
    run = write(tmp_path / "run", logs={"n1": b"fine\n"}, patterns=patterns)
    assert judged(run).outcome == "valid"
    cut = msgspec.structs.replace(read_manifest(run), logs_left_out={"nodes/n1/node.log": 1234})
    write_manifest(run, cut)

    found = judged(run)

    told = "the first 1234 bytes of nodes/n1/node.log were not collected"
    assert found.outcome == outcome
    assert (told in found.reasons) == (patterns is not None)


def test_where_the_end_of_a_log_is_beyond_what_is_read_a_panic_may_be_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write(tmp_path / "run", logs={"n1": b"all is fine\nand so on\n"})
    assert judged(run).outcome == "valid"
    monkeypatch.setattr(evidence, "NODE_LOG_BYTES", 20)

    found = judged(run)

    assert found.outcome == "unknown"
    assert "the last 2 bytes of nodes/n1/node.log are not looked at" in found.reasons


def test_a_pattern_may_be_as_bad_as_it_likes_and_ends_the_line_where_lines_end(
    tmp_path: Path,
) -> None:
    patterns = (
        LogPattern(name="slow", regex="(a+)+$", breaks=True),
        LogPattern(name="end", regex="over$"),
    )
    log = b"a" * 4000 + b"!\nall is over\nover and out\n"

    found = judged(write(tmp_path / "run", patterns=patterns, logs={"n1": log}))

    assert "panic" not in found.anomalies
    rows = scan(load(RunDirectory(tmp_path / "run")), patterns).to_pylist()
    assert [(row["pattern"], row["line"]) for row in rows] == [("end", 2)]


@pytest.mark.parametrize("regex", ["(", "(?=a)b", "(.)\\1"])
def test_a_pattern_that_is_no_expression_is_named(tmp_path: Path, regex: str) -> None:
    run = write(tmp_path / "run", patterns=(LogPattern(name="odd", regex=regex, breaks=True),))

    with pytest.raises(MalformedHistory, match="'odd'"):
        analyze(run, executor="local")


def test_links_in_a_nodes_directory_are_refused_by_name(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"panic: of somebody else\n")
    run = write(tmp_path / "run", logs={"n1": b""})
    (run.node("n1") / "other.log").symlink_to(secret)

    with pytest.raises(MalformedHistory, match=r"other\.log: it is a symbolic link"):
        load(run)


LOG = b"fine\npanic: index 7\n"


def test_a_log_that_is_gone_is_named_and_its_silence_proves_nothing(tmp_path: Path) -> None:
    run = write(tmp_path / "run", logs={"n1": b"fine\n", "n2": LOG})
    assert judged(run).outcome == "violation"

    (run.node("n2") / "node.log").unlink()
    found = judged(run)

    assert found.outcome == "unknown"
    assert found.reasons == ("logs of n2 are missing: nodes/n2/node.log",)
    shutil.rmtree(run.node("n1").parent)
    assert judged(run).reasons == (
        "logs of n1 are missing: nodes/n1/node.log",
        "logs of n2 are missing: nodes/n2/node.log",
    )


@pytest.mark.parametrize("damaged", [LOG[:-1], b"", b"F" + LOG[1:], b"panic" + LOG[5:]])
def test_a_log_that_differs_is_named(tmp_path: Path, damaged: bytes) -> None:
    run = write(tmp_path / "run", logs={"n2": LOG})
    (run.node("n2") / "node.log").write_bytes(damaged)

    with pytest.raises(MalformedHistory, match=r"n2/node\.log.*it is not what was sealed"):
        analyze(run, executor="local")


def test_what_was_added_to_a_log_after_its_sealing_is_told_and_not_read(tmp_path: Path) -> None:
    run = write(tmp_path / "run", logs={"n1": b"fine\nfine", "n2": LOG})
    before = judged(run)

    for node in ("n1", "n2"):
        with (run.node(node) / "node.log").open("ab") as stream:
            stream.write(b"\npanic: planted\n")
    after = judged(run)

    assert (after.anomalies, after.node_logs) == (before.anomalies, before.node_logs)
    assert after.reasons[len(before.reasons) :] == (
        "nodes/n1/node.log has grown since it was sealed: what was added was not read",
        "nodes/n2/node.log has grown since it was sealed: what was added was not read",
    )


def test_a_log_that_nobody_sealed_makes_a_run_unknown_and_is_not_read(tmp_path: Path) -> None:
    run = write(tmp_path / "run", logs={"n1": b"fine\n"})
    assert judged(run).outcome == "valid"

    run.node("n9").mkdir()
    (run.node("n9") / "node.log").write_bytes(LOG)
    (run.node("n1") / "planted.log").write_bytes(LOG)
    found = judged(run)

    assert (found.outcome, found.anomalies) == ("unknown", {})
    assert found.reasons == (
        "nodes/n1/planted.log is not in the manifest, and was not read",
        "nodes/n9/node.log is not in the manifest, and was not read",
    )


def test_a_run_of_a_version_that_sealed_no_logs_is_judged_by_them_and_says_so(
    tmp_path: Path,
) -> None:
    run = write(tmp_path / "run", logs={"n1": b"fine\n"})
    write_manifest(run, msgspec.structs.replace(read_manifest(run), logs=msgspec.UNSET))
    said = "the logs of the nodes have no checksums: this run was recorded without them"

    found = judged(run)
    assert (found.outcome, found.reasons) == ("valid", (said,))

    (run.node("n1") / "node.log").write_bytes(LOG)
    found = judged(run)
    assert found.outcome == "violation"
    assert said in found.reasons


def test_missing_logs_of_a_store_that_promises_nothing_about_them_decide_nothing(
    tmp_path: Path,
) -> None:
    run = write(tmp_path / "run", patterns=None, logs={"n1": LOG})
    shutil.rmtree(run.node("n1"))

    assert judged(run).outcome == "valid"


def test_a_panic_in_a_log_that_its_run_never_sealed_is_told_and_accuses_nobody(
    tmp_path: Path,
) -> None:
    logs = {"n1": b"fine\n", "n2": LOG}
    sealed = judged(write(tmp_path / "sealed", logs=logs))
    assert (sealed.outcome, set(sealed.anomalies)) == ("violation", {"panic"})

    run = write(tmp_path / "killed", logs=logs, sealed=False)
    recover(run)
    found = judged(run)

    assert (found.outcome, set(found.anomalies), set(found.observed)) == (
        "unknown",
        set(),
        {"panic"},
    )
    assert (
        "undecided: panic was seen, but the controller died before it sealed the run, so that "
        "nothing shows that the logs of the nodes are what they wrote in it"
    ) in found.reasons
    assert found.node_logs["n2"]["panic"].lines == 1


def test_an_exit_that_the_records_of_a_killed_run_show_breaks_stays_up_all_the_same(
    tmp_path: Path,
) -> None:
    run = write(tmp_path / "killed", exit_of("n2", 50 * MS), logs={"n2": LOG}, sealed=False)
    recover(run)

    found = judged(run)

    assert (found.outcome, set(found.anomalies)) == ("violation", {"node-exit"})


def test_the_sums_that_a_recovery_made_tell_damage_that_came_after_it(tmp_path: Path) -> None:
    run = write(tmp_path / "killed", logs={"n2": LOG}, sealed=False)
    recover(run)
    (run.node("n2") / "node.log").write_bytes(b"F" + LOG[1:])

    with pytest.raises(MalformedHistory, match=r"n2/node\.log.*it is not what was sealed"):
        analyze(run, executor="local")
