"""Exported histories: what other tools read, and the same verdict when they are imported again."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from checkers.engine.analyze import analyze
from checkers.promises.always_on import log_lines
from cli.cells import digest
from cli.export import CSV_CHOICES, operations_of, write_export
from cli.judging.child_messages import Export
from cli.main import execute
from harness.errors import HarnessError, MalformedHistory, UsageError
from harness.history.directory_locks import locked
from harness.history.due_faults import due_ns
from harness.history.load import History, load
from harness.history.manifest import read_manifest, write_manifest
from harness.history.parquet import read_key_names, write_side_table
from harness.history.regular_files import sha256
from harness.history.run_directory import RunDirectory
from harness.importers.exported import Digest, end_record, import_exported, is_exported
from harness.importers.jepsen.imported_history import import_run
from harness.importers.jepsen.operation_forms import Names, normalize
from harness.importers.jepsen.reader import forms
from harness.protocols.verdict import encode
from harness.run.log_lines import LOG_LINES
from harness.run.node_usage import USAGE, USAGE_FILE
from harness.text import seconds
from results.export import rows
from results.export.notation import Name, edn, edn_lines, json_lines
from results.export.operations import operations
from results.export.rows import csv_lines
from results.report import fault_rows
from results.report.run_data import gather

RUNS = Path(__file__).parents[1] / "evidence" / "runs"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(Path(shutil.copytree(RUNS / "sim-forgotten-vote", tmp_path / "run")))


def exported(run: RunDirectory, path: Path, notation: Any = edn_lines) -> Path:
    path.write_bytes(b"".join(notation(operations_of(load(run)))))
    return path


def test_a_run_that_is_imported_again_has_the_tables_of_the_run_byte_for_byte(
    tmp_path: Path, run: RunDirectory
) -> None:
    """So that ``replay`` of it can tell whether the history is the same. The kept run is of
    an older version, whose files were written otherwise.
    """
    once, twice = (RunDirectory(tmp_path / name) for name in ("once", "twice"))

    import_exported(exported(run, tmp_path / "once.edn"), once)
    import_exported(exported(once, tmp_path / "twice.edn"), twice)

    assert digest(once) == digest(twice)
    assert read_manifest(once).checksums.keys() == read_manifest(run).checksums.keys()


def test_a_file_without_the_indices_of_the_run_is_numbered_by_its_own(
    tmp_path: Path, run: RunDirectory
) -> None:
    """As files of older versions are."""
    path = tmp_path / "older.jsonl"
    records = [json.loads(json.dumps(op)) for op in operations_of(load(run))]
    kept, whole = Digest(), []
    for record in ({k: v for k, v in each.items() if k != "run-index"} for each in records[:-1]):
        kept.add(record)
        whole.append(record)
    path.write_text(
        "".join(json.dumps(each) + "\n" for each in (*whole, end_record(kept.end(), kept.last)))
    )
    imported = RunDirectory(tmp_path / "imported")

    history = import_exported(path, imported)

    clients = [each for each in whole if isinstance(each["process"], int)]
    begun = [each["index"] for each in clients if each["type"] == "invoke"]
    assert history.transactions()["invoke_index"].to_pylist() == begun


@pytest.mark.parametrize(
    ("name", "notation"),
    [
        ("sim-valid", json_lines),
        ("sim-forgotten-vote", edn_lines),
        ("sim-forgotten-vote", json_lines),
        # A zone waits without end before it scales down.
        ("sim-zoned", edn_lines),
        ("sim-zoned", json_lines),
    ],
)
def test_an_exported_run_that_is_imported_again_has_the_same_verdict(
    tmp_path: Path, name: str, notation: Any
) -> None:
    run = RunDirectory(Path(shutil.copytree(RUNS / name, tmp_path / "run")))
    path = exported(run, tmp_path / "history", notation)

    again = RunDirectory(tmp_path / "again")
    import_exported(path, again)

    assert is_exported(path)
    assert encode(analyze(again, executor="local")) == encode(analyze(run, executor="local"))
    for name in ("transactions", "faults", "events", "notes"):
        assert getattr(load(again), name)() == getattr(load(run), name)()


@pytest.mark.parametrize("notation", [edn_lines, json_lines])
@pytest.mark.parametrize("step", ["append", "w"])
def test_an_import_whose_keys_have_names_is_exported_and_imported_again(
    tmp_path: Path, step: str, notation: Any
) -> None:
    file = tmp_path / "names.edn"
    seen = "[1]" if step == "append" else "1"
    asked, told = "[[:r :x nil]]", f"[[:r :x {seen}]]"
    ran = [
        ("invoke", f"[[:{step} :x 1]]"),
        ("ok", f"[[:{step} :x 1]]"),
        ("invoke", asked),
        ("ok", told),
    ]
    file.write_text("".join(f"{{:type :{t}, :process 0, :f :txn, :value {v}}}\n" for t, v in ran))
    run, again = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "again")
    import_run(file, run)
    import_exported(exported(run, tmp_path / "history", notation), again)

    names = [read_key_names(each, read_manifest(each).checksums) for each in (run, again)]
    assert (
        names[0].to_pylist()
        == names[1].to_pylist()
        == [{"key": names[0]["key"][0].as_py(), "name": ":x"}]
    )
    assert encode(analyze(again, executor="local")) == encode(analyze(run, executor="local"))


@pytest.mark.parametrize("notation", [edn_lines, json_lines])
def test_a_bank_is_exported_as_transfers_and_reads_of_balances(
    tmp_path: Path, notation: Any
) -> None:
    sim = ["run", "--provider", "sim", "--executor", "local", "--no-report", "--duration", "2"]
    bank = ["--workload", "bank", "--seed", "3", "--set", "nemesis.mix=[]"]
    assert execute([*sim, *bank, "--runs-dir", str(tmp_path / "runs")]) in (0, 2)
    run = RunDirectory((tmp_path / "runs" / "latest").resolve())
    path = exported(run, tmp_path / "history", notation)

    again = RunDirectory(tmp_path / "again")
    import_exported(path, again)
    assert encode(analyze(again, executor="local")) == encode(analyze(run, executor="local"))

    # As another tool reads it: without the first balances, which are no transfer.
    clients = [line for line in path.read_text().splitlines() if "firedrill" not in line]
    theirs = [line for line in clients if "txn" not in line.replace("server-txn", "")]
    path.write_text("\n".join(theirs) + "\n")
    history = import_run(path, RunDirectory(tmp_path / "theirs"), workload="bank")
    count = load(run).transactions().num_rows
    assert history.transactions().num_rows == count - (len(clients) - len(theirs)) / 2
    assert set(history.micro_ops()["f"].to_pylist()) == {"r", "add"}


def test_lines_of_nodes_logs_that_count_survive_without_the_logs(
    run: RunDirectory, tmp_path: Path
) -> None:
    row = {"node": "n1", "file": "nodes/n1/node.log", "line": 7, "pattern": "panic"}
    lines = pa.Table.from_pylist(
        [row | {"breaks": True, "text": 'Fatal "\x1b[31m"', "total": 1}], schema=LOG_LINES
    )
    path = tmp_path / "history.edn"
    path.write_bytes(b"".join(edn_lines(operations(load(run), "", {"log_lines": lines}))))

    again = RunDirectory(tmp_path / "again")
    import_exported(path, again)

    assert log_lines(load(again)) == lines
    assert "panic" in analyze(again, executor="local").anomalies


def test_operations_have_dense_indices_and_times_that_never_go_back(run: RunDirectory) -> None:
    ops = list(operations_of(load(run)))

    assert [op["index"] for op in ops] == list(range(len(ops)))
    times = [op["time"] for op in ops]
    assert times == sorted(times)


def test_every_client_completes_what_it_invoked_and_a_tool_of_jepsens_reads_it_so(
    run: RunDirectory, tmp_path: Path
) -> None:
    path = exported(run, tmp_path / "history.edn")
    names, counts, busy = Names(), Counter[str](), dict[int, Any]()
    for found, _ in forms(path):
        for op in (normalize(form, names) for form in found):
            if not isinstance(op.process, int):
                continue
            counts[op.type] += 1
            if op.type == "invoke":
                assert op.process not in busy
                busy[op.process] = op
            else:
                assert len(op.value) == len(busy.pop(op.process).value)

    types = Counter(load(run).transactions()["type"].to_pylist())
    assert counts == types | {"invoke": types.total()}
    assert not busy


def test_each_fault_is_an_act_of_the_nemesis_that_starts_and_one_that_stops(
    run: RunDirectory,
) -> None:
    acts = [op["f"] for op in operations_of(load(run)) if op["process"] == "nemesis"]

    kinds = load(run).faults()["kind"].to_pylist()
    assert kinds
    assert Counter(acts) == Counter(
        f"{verb}-{kind}" for kind in kinds for verb in ("start", "stop") for _ in "ab"
    )


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (":f :events, :value {:kind ", ":f :events, :value {:sort ", "expected the columns"),
        (":type :ok,", ":type :okay,", "okay"),
        (":schema_version 1", ":schema_version 9", "expected schema version 1, found 9"),
        (':workload "', ':worklode "', "workload"),
        (":term 1", ':term "one"', "one"),
        (":f :end, ", ":f :ende, ", "expected a row of"),
    ],
)
def test_a_record_that_is_none_is_refused_with_its_line(
    run: RunDirectory, tmp_path: Path, old: str, new: str, reason: str
) -> None:
    path = exported(run, tmp_path / "history.edn")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))

    with pytest.raises(MalformedHistory, match=re.escape(reason)):
        import_exported(path, RunDirectory(tmp_path / "again"))
    assert not (tmp_path / "again" / "manifest.json").exists()


def test_an_exported_history_is_of_the_workload_that_its_manifest_names(
    run: RunDirectory, tmp_path: Path
) -> None:
    path = exported(run, tmp_path / "history.edn")

    with pytest.raises(UsageError, match="expected a history of bank, found one of "):
        import_exported(path, RunDirectory(tmp_path / "again"), workload="bank")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "nil"),
        (True, "true"),
        (-7, "-7"),
        (0.05, "0.05"),
        (float("nan"), "##NaN"),
        ([float("inf"), float("-inf")], "[##Inf ##-Inf]"),
        ('a "b"\n\\', '"a \\"b\\"\\n\\\\"'),
        (Name("append"), ":append"),
        (Name("two words"), '"two words"'),
        ([[Name("r"), 3, [1, 2]]], "[[:r 3 [1 2]]]"),
        ({"at_ns": 5}, "{:at_ns 5}"),
    ],
)
def test_values_are_edn(value: object, text: str) -> None:
    assert edn(value) == text


def test_the_command_offers_every_table() -> None:
    assert CSV_CHOICES == rows.CSV_TABLES


@pytest.mark.parametrize("table", rows.CSV_TABLES)
def test_a_csv_has_a_header_and_a_row_each(run: RunDirectory, table: str) -> None:
    history = load(run)
    text = b"".join(rows.csv_lines(history, table)).decode()
    found = list(csv.DictReader(io.StringIO(text)))

    name = "transactions" if table == "operations" else table
    expected = getattr(history, name)()
    assert len(found) == expected.num_rows > 0
    assert list(found[0])[: expected.num_columns] == expected.column_names
    first = expected.slice(0, 1).to_pylist()[0]
    assert found[0]["kind"] == first["kind"]


def test_a_fault_is_planned_for_when_it_is_due_as_in_the_report(run: RunDirectory) -> None:
    history = load(run)
    text = b"".join(rows.csv_lines(history, "faults")).decode()
    data = gather(run)
    drive_ns = dict(history.manifest.phases)["drive"]

    planned = [int(row["planned_ns"]) for row in csv.DictReader(io.StringIO(text))]

    assert planned == [drive_ns + int(row["at_s"] * 1e9) for row in data.planned_faults]
    shown = [f"{row.planned} s" for row in fault_rows.rows(data)]
    assert shown == [seconds(at_ns) for at_ns in planned]


@pytest.mark.parametrize(
    ("row", "due"),
    [
        ({"at_s": 2.5}, 3_500_000_000),
        ({"at_s": 2.5, "aimed": "leader-elected of n1"}, 3_500_000_000),
        ({}, 1_000_000_000),
        ({"on": "leader-elected"}, None),
        ({"at_s": float("inf")}, None),
        ({"at_s": "5"}, None),
        ("5:kill:n1", None),
    ],
)
def test_a_row_that_tells_no_offset_is_not_due(
    run: RunDirectory, row: Any, due: int | None
) -> None:
    manifest = msgspec.structs.replace(read_manifest(run), phases=(("drive", 1_000_000_000),))

    assert due_ns(manifest, [row], 0) == due
    assert due_ns(manifest, [row], 1) is None


def test_a_text_that_a_spreadsheet_would_execute_is_marked() -> None:
    assert rows.cell("=HYPERLINK(1)") == "'=HYPERLINK(1)"
    assert rows.cell(-1) == -1
    assert rows.cell(["n1", "n2"]) == "n1; n2"


@pytest.mark.parametrize("beginning", "=+-@;\t\r")
def test_a_spreadsheet_executes_no_text_and_no_element_of_a_list(beginning: str) -> None:
    text = f"{beginning}cmd|' /C calc'!A0"

    assert str(rows.cell(text)).startswith("'")
    assert str(rows.cell(["n1", text])).startswith("n1; '")


HOSTILE = "\x1b]0;owned\x07 \x9b2J \x7f \u202e \U000e0001 \r\n 日本 😀"


@pytest.mark.parametrize("notation", [edn_lines, json_lines])
def test_a_text_of_a_node_does_nothing_to_a_terminal_and_comes_back_as_it_was(
    tmp_path: Path, notation: Any
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(notation([{"process": 1, "value": HOSTILE}])))
    shown = path.read_text(encoding="utf-8").removesuffix("\n")

    assert shown.isprintable()
    assert "日本 😀" in shown
    ((found, _),) = (batch for batch in forms(path) if batch[0])
    assert found[0]["value"] == HOSTILE


def test_a_text_in_a_csv_does_nothing_to_a_terminal() -> None:
    assert str(rows.cell(HOSTILE)).isprintable()


@pytest.mark.parametrize("notation", [edn_lines, json_lines])
@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (lambda lines: lines[:-1], "none: the file was cut off"),
        (lambda lines: lines[: len(lines) // 2], "none: the file was cut off"),
        (lambda lines: [*lines[:-2], lines[-1]], r"expected \d+ records of \w+ before, found"),
        (lambda lines: [*lines[:3], *lines[4:]], r"expected \d+ records of \w+ before, found"),
        (lambda lines: [*lines, lines[-2]], "nothing behind the record that ends the run"),
        (lambda lines: [line.replace(b'"n1"', b'"n2"', 1) for line in lines], "of SHA-256"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(
    run: RunDirectory, tmp_path: Path, notation: Any, damaged: Any, reason: str
) -> None:
    path = exported(run, tmp_path / "history", notation)
    path.write_bytes(b"".join(damaged(path.read_bytes().splitlines(keepends=True))))

    with pytest.raises(MalformedHistory, match=reason):
        import_exported(path, RunDirectory(tmp_path / "again"))
    assert not (tmp_path / "again" / "manifest.json").exists()


def test_logs_that_were_gone_when_a_run_was_exported_are_missing_in_the_imported_one(
    tmp_path: Path,
) -> None:
    run = RunDirectory(Path(shutil.copytree(RUNS / "sim-valid", tmp_path / "run")))
    shutil.rmtree(run.root / "nodes")
    path = exported(run, tmp_path / "history")

    again = RunDirectory(tmp_path / "again")
    import_exported(path, again)

    verdict = analyze(again, executor="local")
    assert any("logs of n1 are missing" in reason for reason in verdict.reasons)
    assert encode(verdict) == encode(analyze(run, executor="local"))


def test_what_was_said_of_logs_that_were_not_read_is_said_of_the_imported_run(
    run: RunDirectory, tmp_path: Path
) -> None:
    with (run.node("n1") / "node.log").open("a") as log:
        log.write("later")
    path = exported(run, tmp_path / "history", json_lines)

    again = RunDirectory(tmp_path / "again")
    import_exported(path, again)

    assert load(again).logs.remarks == load(run).logs.remarks != ()
    assert encode(analyze(again, executor="local")) == encode(analyze(run, executor="local"))


@pytest.mark.parametrize("name", ["nodes/n1/added.log", "history/micro_ops-9999.parquet"])
def test_a_run_with_a_file_that_its_manifest_does_not_name_is_not_exported(
    name: str, run: RunDirectory, tmp_path: Path
) -> None:
    (run.root / name).write_text("later")

    with pytest.raises(MalformedHistory, match=f"{name} is not in the manifest"):
        exported(run, tmp_path / "history", json_lines)


def test_a_plan_that_drove_nothing_is_not_exported(tmp_path: Path) -> None:
    path = tmp_path / "recorded.edn"
    path.write_text(
        "{:type :invoke, :f :txn, :value [[:append 1 1]], :process 0, :index 0}\n"
        "{:type :ok, :f :txn, :value [[:append 1 1]], :process 0, :index 1}\n"
    )
    run = RunDirectory(tmp_path / "recorded")
    import_run(path, run)
    shutil.copy(RUNS / "sim-valid" / "plan.toml", run.plan)

    again = RunDirectory(tmp_path / "again")
    import_exported(exported(run, tmp_path / "history"), again)

    assert not again.plan.exists()
    verdict = analyze(again, executor="local")
    assert verdict.reasons == analyze(run, executor="local").reasons


def test_a_run_is_not_exported_without_what_would_explain_it(
    run: RunDirectory, tmp_path: Path
) -> None:
    table = USAGE.empty_table()
    explaining = write_side_table(run.root, USAGE_FILE, table, "the test has no table")
    manifest = msgspec.structs.replace(read_manifest(run), explaining=explaining)
    write_manifest(run, manifest)
    exported(run, tmp_path / "history")

    (run.root / USAGE_FILE).write_bytes(b"")
    with pytest.raises(MalformedHistory, match=r"usage\.parquet explains nothing here"):
        exported(run, tmp_path / "history")


def test_a_sum_of_what_no_export_holds_is_refused(run: RunDirectory, tmp_path: Path) -> None:
    (run.root / "extra.parquet").write_bytes(b"extra")
    manifest = read_manifest(run)
    sums = manifest.checksums | {"extra.parquet": sha256(run.root / "extra.parquet")}
    write_manifest(run, msgspec.structs.replace(manifest, checksums=sums))

    with pytest.raises(MalformedHistory, match=r"expected no sum of extra\.parquet"):
        exported(run, tmp_path / "history")


def test_a_run_that_is_still_driven_is_not_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "run"
    (root / "chunks").mkdir(parents=True)
    shutil.copy(RUNS / "sim-valid" / "plan.toml", root)
    manifest = read_manifest(RunDirectory(RUNS / "sim-valid"))
    write_manifest(RunDirectory(root), msgspec.structs.replace(manifest, state="running"))
    with locked(root / "chunks"):
        assert execute(["export", str(root), "--edn"]) == 254

    assert "run run is still driven: export it once it is over" in capsys.readouterr().err
    assert execute(["export", str(root), "--edn"]) == 254
    assert "recovers and judges it" in capsys.readouterr().err


def test_one_form_must_be_asked_for(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["export", str(run.root)]) == 254
    assert execute(["export", str(run.root), "--edn", "--csv", "faults"]) == 254
    assert "one of --edn, --jsonl and --csv TABLE" in capsys.readouterr().err


def test_a_file_appears_whole_and_no_other_thing_is_replaced(
    run: RunDirectory, tmp_path: Path
) -> None:
    path = tmp_path / "history.jsonl"

    assert execute(["export", str(run.root), "--jsonl", "-o", str(path)]) == 0
    assert execute(["export", str(run.root), "--jsonl", "-o", str(tmp_path)]) == 254

    lines = path.read_text().splitlines()
    assert all(json.loads(line)["index"] == place for place, line in enumerate(lines))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["history.jsonl", "run"]


def test_check_takes_an_exported_file_for_the_run_that_it_was(
    run: RunDirectory, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = exported(run, tmp_path / "history.edn")

    code = execute(["check", str(path), "--runs-dir", str(tmp_path / "runs")])

    told = capfd.readouterr()
    assert code == 1
    assert "a run that was exported: " in told.err
    assert "VIOLATION" in told.out
    assert (tmp_path / "runs" / "latest" / "report.html").exists()


@pytest.mark.parametrize("notation", [edn_lines, json_lines])
def test_no_line_of_an_export_is_lost_doubled_moved_or_changed_without_notice(
    tmp_path: Path, notation: Any
) -> None:
    run = RunDirectory(Path(shutil.copytree(RUNS / "sim-forgotten-vote", tmp_path / "run")))
    path = exported(run, tmp_path / "history", notation)
    lines = path.read_bytes().splitlines(keepends=True)
    # One of each kind of record, and the last, whose own fields no digest covers.
    kinds: dict[str, int] = {}
    for place, op in enumerate(operations_of(load(run))):
        kind = op["f"] if op["process"] == "firedrill" else op["process"]
        kinds[kind if isinstance(kind, str) else f"client {op['type']}"] = place
    assert {"manifest", "logs", "states", "nemesis", "client ok", "end"} <= kinds.keys()
    for kind, place in kinds.items():
        before, line, after = lines[:place], lines[place], lines[place + 1 :]
        swapped = [after[0], line, *after[1:]] if after else [line, before.pop()]
        changed = re.sub(rb"(:index |\"index\":)(\d+)", rb"\g<1>1\g<2>", line, count=1)
        assert changed != line
        for how, damaged in (
            ("lost", [*lines[:place], *after]),
            ("doubled", [*lines[:place], line, line, *after]),
            ("moved", [*before, *swapped]),
            ("changed", [*lines[:place], changed, *after]),
        ):
            path.write_bytes(b"".join(damaged))
            again = RunDirectory(tmp_path / f"{kind} {how}")
            with pytest.raises(MalformedHistory):
                (import_exported if is_exported(path) else import_run)(path, again)
            assert not again.manifest.exists(), (kind, how)


def test_an_export_without_its_beginning_is_not_taken_for_a_history_of_another_tool(
    run: RunDirectory, tmp_path: Path
) -> None:
    path = exported(run, tmp_path / "history.edn")
    lines = path.read_bytes().splitlines(keepends=True)
    first = next(at for at, line in enumerate(lines) if b":process :firedrill" not in line)
    path.write_bytes(b"".join(lines[first:]))

    assert not is_exported(path)
    with pytest.raises(MalformedHistory, match="a record of an exported run"):
        import_run(path, RunDirectory(tmp_path / "again"))


def piped(run: RunDirectory, to: str, **environment: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", "from cli.main import main; main()", "export", str(run.root)]
    command = f"{shlex.join([*words, '--jsonl'])} {to}"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("to", "code", "told"),
    [
        ("| true", 141, ""),
        (">/dev/full", 255, "firedrill: stdout: No space left on device\n"),
        ("| head -c 0", 141, ""),
    ],
)
def test_a_stdout_that_takes_nothing_is_told_once(
    run: RunDirectory, to: str, code: int, told: str
) -> None:
    done = piped(run, to)

    assert (done.returncode, done.stderr) == (code, told)


def test_a_run_is_exported_within_limits(run: RunDirectory) -> None:
    assert piped(run, "", FIREDRILL_MEMORY_MIB="4000").returncode == 0

    refused = piped(run, "", FIREDRILL_MEMORY_MIB="60")

    assert (refused.returncode, refused.stdout) == (255, "")
    assert "Traceback" not in refused.stderr


def test_a_run_that_changes_while_it_is_exported_is_refused(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changing(history: History, table: str) -> Iterator[bytes]:
        yield from csv_lines(history, table)
        run.events.write_bytes(run.events.read_bytes() + b"more")

    monkeypatch.setattr(sys.modules["cli.export"], "_table", changing)
    path = tmp_path / "events.csv"

    with pytest.raises(MalformedHistory, match="changed"):
        write_export(run, Export(form="events", output=str(path)))

    assert not path.exists()


def test_what_can_not_be_read_is_not_said_to_have_been_written(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_history: History, _table: str) -> Iterator[bytes]:
        yield b"at_ns\n"
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(sys.modules["cli.export"], "_table", failing)
    path = tmp_path / "events.csv"

    with pytest.raises(HarnessError, match="can't be read: Input/output error") as told:
        write_export(run, Export(form="events", output=str(path)))

    assert str(path) not in str(told.value)
    assert not path.exists()


PLANTED = """
import sys
if any("cli.judging.child" in word for word in sys.orig_argv):
    import cli.export
    def spinning(*_):
        while True:
            pass
    cli.export.write_export = spinning
"""


def test_an_export_that_takes_too_long_is_told_of_its_time_and_not_of_memory(
    run: RunDirectory, tmp_path: Path
) -> None:
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / "sitecustomize.py").write_text(PLANTED)

    ended = piped(run, "", FIREDRILL_JUDGING_S="0.5", PYTHONPATH=str(planted))

    assert (ended.returncode, ended.stdout) == (255, "")
    told = "it needs more than the 1 s of processor time that it may use"
    assert f"{told} (FIREDRILL_JUDGING_S sets the limit)" in ended.stderr
    assert "memory" not in ended.stderr
