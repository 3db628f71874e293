"""Files of a run that hold what no run of ours writes: without end, absurd, forged with sums that
match, or made to steer a terminal.
"""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from crowded_runs import (
    CROWDED,
    JUDGED,
    REFUSED,
    UNKNOWN,
    VALID,
    VIOLATION,
    Attack,
    many_rows,
    unsealed,
)
from stranger_kit import (
    CPU_LIMIT_S,
    ESCAPES,
    MEMORY_LIMIT_BYTES,
    NAME,
    PLAN,
    SECRET,
    Canaries,
    Ended,
    below,
    column,
    copied,
    firedrill,
    forge,
    manifest_text,
    reached,
    rewrite,
    sound_run,
    usual,
    written_in,
)

from clusters.providers.process import procfs
from harness.history import record_frames
from harness.history.manifest import read_manifest
from harness.history.run_directory import LogSum, RunDirectory
from harness.protocols.promise import Declaration, LogPattern, Promise

OTHER = "20261122-060000-neighbour-0002"
DEEP = 200_000
DIGITS = "9" * 5_000
WHOLE = os.environ.get("FIREDRILL_STRANGERS") == "all"
VERDICT = {"outcome": "valid", "model": "strict-serializable"}


def verdict(**fields: object) -> Attack:
    def spoil(run: RunDirectory) -> None:
        run.analysis.mkdir(exist_ok=True)
        run.verdict.write_bytes(msgspec.json.encode(VERDICT | fields))

    return spoil


def text(name: str, content: bytes | str) -> Attack:
    def spoil(run: RunDirectory) -> None:
        path = run.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return spoil


def sparse(name: str, size_bytes: int) -> Attack:
    def spoil(run: RunDirectory) -> None:
        path = run.root / name
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            file.truncate(size_bytes)

    return spoil


def plan(content: str) -> Attack:
    """A plan whose sum the manifest has."""

    def spoil(run: RunDirectory) -> None:
        run.plan.write_text(content)
        forge(run)

    return spoil


def manifest(**fields: object) -> Attack:
    return lambda run: forge(run, **fields)


def raw_manifest(**fields: object) -> Attack:
    def spoil(run: RunDirectory) -> None:
        run.manifest.write_bytes(manifest_text(run, **fields))

    return spoil


def hole(name: str, size_bytes: int) -> Attack:
    """A file that takes no room, and a manifest that says it has that size."""

    def spoil(run: RunDirectory) -> None:
        sparse(name, size_bytes)(run)
        manifest = read_manifest(run)
        if name in manifest.checksums:
            sums = {"checksums": manifest.checksums, "sizes": {name: size_bytes}}
        else:
            sums = {"logs": {name: LogSum(size_bytes=size_bytes, sha256="0" * 64)}}
        forge(run, **sums)

    return spoil


def table(name: str, change: Callable[[pa.Table], pa.Table]) -> Attack:
    """A table that was changed, and a sum that matches."""

    def spoil(run: RunDirectory) -> None:
        rewrite(run.root / name, change)
        forge(run)

    return spoil


def transactions(field: str, *values: object) -> Attack:
    return table("history/transactions.parquet", lambda t: column(t, field, values))


def steps(field: str, *values: object) -> Attack:
    return table("history/micro_ops-0000.parquet", lambda t: column(t, field, values))


def processes(**fields: object) -> Attack:
    owned = {
        "run_id": NAME,
        "boot": procfs.machine_boot(),
        "processes": {"n1": {"pid": 2, "start_ticks": 1}},
    }
    return text("undo/processes.json", msgspec.json.encode(owned | fields))


def process(pid: object, start_ticks: object = 0) -> Attack:
    return processes(processes={"n1": {"pid": pid, "start_ticks": start_ticks}})


def chunk(content: bytes) -> Attack:
    """The first chunk with ``content`` after its header."""

    def spoil(chunks: Path) -> None:
        (path,) = chunks.glob("w0-*.chunk")
        path.write_bytes(path.read_bytes()[: record_frames.HEADER.size] + content)

    return unsealed(spoil)


def frame(payload: bytes) -> bytes:
    crc = record_frames.frame_crc(len(payload), payload, 0)
    return record_frames.FRAME.pack(len(payload), crc) + payload


def streams(count: int, **claimed: object) -> Attack:
    """Chunks of so many writers, and what the manifest claims of them."""

    def spoil(chunks: Path) -> None:
        for number in range(1, count):
            (chunks / record_frames.chunk_name(number, 0)).write_bytes(b"")
        if claimed:
            forge(RunDirectory(chunks.parent), **claimed)

    return unsealed(spoil)


def directories(count: int, below: str) -> Attack:
    def spoil(run: RunDirectory) -> None:
        for number in range(count):
            (run.root / below / f"d{number}").mkdir(parents=True)

    return spoil


def nested(below: str, depth: int) -> Attack:
    def spoil(run: RunDirectory) -> None:
        here = os.open(run.root, os.O_RDONLY)
        for name in (*below.split("/"), *("d" for _ in range(depth))):
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=here)
            inner = os.open(name, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = inner
        os.close(here)

    return spoil


def log_file(name: str, content: bytes = b"panic: " + ESCAPES.encode() + b"\n") -> Attack:
    def spoil(run: RunDirectory) -> None:
        path = os.fsencode(run.node("n1")) + b"/" + name.encode()
        with open(path, "wb") as file:
            file.write(content)
        forge(run)

    return spoil


def pattern(regex: str) -> Attack:
    declared = Declaration(
        system="paper",
        mode="SC",
        promises=(Promise(kind="read-write"),),
        logs=(LogPattern(name="x", regex=regex),),
    )
    return manifest(declaration=declared)


_STEERING = Declaration(
    system=ESCAPES,
    mode=ESCAPES,
    promises=(Promise(kind="read-write"),),
    logs=(LogPattern(name=ESCAPES, regex="started", breaks=True),),
)
_TELLING = {"text": ESCAPES, "txns": [0, 10**18, "x"], "keys": [ESCAPES, None]}

STEERING = "a verdict with anomalies that steer"
CONTENTS: dict[str, tuple[Attack, tuple[int, ...]]] = {
    # verdict.json: written anew by check, read by report, runs, prune, shrink
    "a deep verdict": (text("analysis/verdict.json", "[" * DEEP), JUDGED),
    "a deep verdict in a field": (
        text("analysis/verdict.json", b'{"outcome":"valid","x":' + b"[" * DEEP),
        JUDGED,
    ),
    "a deep verdict that ends": (
        text(
            "analysis/verdict.json", b'{"outcome":"valid","x":' + b"[" * DEEP + b"]" * DEEP + b"}"
        ),
        JUDGED,
    ),
    "a verdict of 3 GB": (sparse("analysis/verdict.json", 3 << 30), JUDGED),
    "a verdict of 7 MB of lists": (
        text(
            "analysis/verdict.json",
            b'{"outcome":"valid","model":"","statistics":{"x":[' + b"[]," * 2_300_000 + b"1]}}",
        ),
        JUDGED,
    ),
    "deep figures": (text("analysis/figures.json", "[" * DEEP), JUDGED),
    "figures of 3 GB": (sparse("analysis/figures.json", 3 << 30), JUDGED),
    "figures that steer and overflow": (
        text(
            "analysis/figures.json",
            msgspec.json.encode(
                {"version": 1, "ok_per_s": 1e308, "faults": {ESCAPES: {"planned": -1}}}
            ),
        ),
        JUDGED,
    ),
    "a verdict that is no UTF-8": (text("analysis/verdict.json", b'{"outcome":"\xff"}'), JUDGED),
    "a verdict with an outcome that steers": (verdict(outcome=ESCAPES), JUDGED),
    "a verdict with reasons that steer": (verdict(reasons=[ESCAPES] * 100), JUDGED),
    "a verdict with a model that steers": (verdict(model=ESCAPES), JUDGED),
    STEERING: (
        verdict(outcome="violation", anomalies={ESCAPES: {"count": 1, "examples": [_TELLING]}}),
        JUDGED,
    ),
    **{
        f"a verdict whose coverage cell is {shown!r}": (
            verdict(
                coverage={
                    "cells": {"kill": {"primary": shown, "metastorage leader": shown}},
                    "hit": shown,
                    "of": shown,
                }
            ),
            JUDGED,
        )
        for shown in ("x", None, [], {}, [[1]], 1.5, -1, True, ESCAPES, 10**18)
    },
    **{
        f"a verdict whose {part} is {shown!r:.30}": (verdict(**{part: shown}), JUDGED)
        for part in ("statistics", "availability", "coverage", "controller", "node_logs")
        for shown in (
            {"windows": [{"kind": [], "nodes": [1, None], "longest_gap_ns": "x"}], "cells": [1]},
            {"longest_stall_ns": "x", "late_share": "y", "resident_bytes": {"first": []}},
            {"partitions": {"partition": [1], "windows": [{"longest_gap_ns": 5}]}},
            {"transactions": [{"f": {"x": [ESCAPES]}}, 1, None], ESCAPES: ESCAPES},
            {"n1": {"panic": {"lines": {}, "first": []}}, "drive": {"start_ns": []}},
        )
    },
    # manifests
    "a deep manifest": (text("manifest.json", "[" * DEEP), REFUSED),
    "a manifest of 3 GB": (sparse("manifest.json", 3 << 30), REFUSED),
    "a manifest that is empty": (text("manifest.json", b""), REFUSED),
    "a manifest that is no UTF-8": (text("manifest.json", b'{"run_id":"\xff"}'), REFUSED),
    "a manifest with an integer of 5,000 digits": (
        text("manifest.json", f'{{"schema_version": {DIGITS}}}'),
        REFUSED,
    ),
    "a manifest of another version": (raw_manifest(schema_version=99), REFUSED),
    "a manifest without its digest": (raw_manifest(digest=""), REFUSED),
    "a manifest of more fields": (raw_manifest(more=1), REFUSED),
    "a manifest of 2 MB of lists": (manifest(machine={"x": [[]] * 1_000_000}), REFUSED),
    "a manifest whose digest steers": (raw_manifest(digest=ESCAPES), REFUSED),
    "splits without end": (manifest(splits=1 << 40), REFUSED),
    "no splits": (manifest(splits=0), REFUSED),
    "negative splits": (manifest(splits=-1), REFUSED),
    "more splits than files": (manifest(splits=2), REFUSED),
    "another hash of keys": (manifest(key_hash=ESCAPES), REFUSED),
    "another state": (manifest(state=ESCAPES), REFUSED),
    "an identifier that leads out": (manifest(run_id="../../outside/things"), JUDGED),
    "an identifier that steers": (manifest(run_id=ESCAPES), JUDGED),
    "a workload that steers": (manifest(workload=ESCAPES), JUDGED),
    "versions that steer": (manifest(versions={ESCAPES: ESCAPES}), JUDGED),
    "a machine that steers": (manifest(machine={ESCAPES: [ESCAPES, {"x": ESCAPES}]}), JUDGED),
    "trouble that steers": (manifest(trouble=(ESCAPES,) * 50), JUDGED),
    "trouble of 8 MB": (manifest(trouble=("x" * (8 << 20),)), JUDGED),
    "a declaration that steers": (manifest(declaration=_STEERING), JUDGED),
    "promises of nothing": (
        manifest(declaration=Declaration(system="", mode="", promises=())),
        JUDGED,
    ),
    "a model that nobody knows": (
        manifest(
            declaration=Declaration(
                system="x", mode="", promises=(Promise(kind="read-write", model=ESCAPES),)
            )
        ),
        REFUSED,
    ),
    "a checker that nobody has": (manifest(checkers=("../../outside/x",)), REFUSED),
    "a checker that steers": (manifest(checkers=(ESCAPES,)), REFUSED),
    "checkers without end": (manifest(checkers=("list-append",) * 20_000), VALID),
    "no checkers": (manifest(checkers=()), JUDGED),
    "phases without end": (
        manifest(phases=tuple((f"p{number}", number) for number in range(100_000))),
        REFUSED,
    ),
    "phases that go back": (
        manifest(phases=(("drive", 1 << 60), ("heal", -5), ("drive", 0))),
        JUDGED,
    ),
    "phases that steer": (manifest(phases=((ESCAPES, 0), (ESCAPES, 1))), JUDGED),
    "a cut before the beginning": (manifest(cut_ns=-(1 << 62)), JUDGED),
    "a sum of a file outside": (
        manifest(checksums={"../../outside/secret.txt": "0" * 64, "plan.toml": "x"}),
        REFUSED,
    ),
    "a sum of an absolute name": (manifest(checksums={"/etc/passwd": "0" * 64}), REFUSED),
    "sums that steer": (manifest(checksums={ESCAPES: ESCAPES}), REFUSED),
    "no sums": (manifest(checksums={}), REFUSED),
    "sums of 100,000 names": (
        manifest(checksums={f"x{number}": "0" * 64 for number in range(100_000)}),
        REFUSED,
    ),
    "logs that lead out": (
        raw_manifest(logs={"../../outside/things/n1.log": {"size_bytes": 1, "sha256": ""}}),
        REFUSED,
    ),
    # plans
    "a deep plan": (plan("x = " + "[" * 3_000), REFUSED),
    "a plan of dotted keys without end": (
        plan(PLAN + "\n[" + ".".join("a" * 3_000) + "]"),
        REFUSED,
    ),
    "a plan of dots": (plan(".".join("a" * 3_000) + " = 1"), REFUSED),
    "a plan with an integer of 5,000 digits": (plan(f"seed = {DIGITS}"), REFUSED),
    "a plan with an integer of 70 bits": (plan("seed = 0x3fffffffffffffffff"), REFUSED),
    "a plan of 2 MB": (plan("# " + "x" * (2 << 20)), REFUSED),
    "a plan of 3 GB": (sparse("plan.toml", 3 << 30), REFUSED),
    "a plan that is no UTF-8": (text("plan.toml", b"\xff\xfe"), REFUSED),
    "a plan that steers": (plan(PLAN + f"# {ESCAPES!r}\n"), JUDGED),
    "a plan with a key that steers": (plan('"\\u001b[2J" = 1\n' + PLAN), VALID),
    **{
        f"a plan whose min_ok is {shown}": (
            plan(PLAN.replace("min_ok = 1", f"min_ok = {shown}")),
            REFUSED,
        )
        for shown in ("-5", "0", "nan", "inf", '"many"', "[[[]]]", "1e30", DIGITS)
    },
    "a plan whose check is a number": (
        plan("check = 5"),
        REFUSED,
    ),
    # lists of processes
    **{
        f"a process of the id {shown!r}": (process(shown), JUDGED)
        for shown in (0, -1, 1, 1 << 31, 1 << 63, "x", None, 1.5, [])
    },
    "a process that began before the machine": (process(4711, -1), JUDGED),
    "a deep list of processes": (text("undo/processes.json", "[" * DEEP), JUDGED),
    "a list of processes of 3 GB": (sparse("undo/processes.json", 3 << 30), JUDGED),
    "a list of processes that is a directory": (directories(1, "undo/processes.json"), JUDGED),
    "100,000 processes": (
        processes(processes={f"n{n}": {"pid": 2, "start_ticks": n} for n in range(30_000)}),
        JUDGED,
    ),
    "processes whose nodes steer": (
        processes(processes={ESCAPES: {"pid": 3, "start_ticks": 5}}),
        JUDGED,
    ),
    "a deep intent of a fault": (text("undo/fault-000000.json", "[" * DEEP), JUDGED),
    "an intent of 3 GB": (sparse("undo/fault-000001.json", 3 << 30), JUDGED),
    # directories
    "1,000 nodes": (directories(1_000, "nodes"), JUDGED),
    "2,000 directories": (directories(2_000, "more"), JUDGED),
    "directories within each other in undo": (nested("undo", 500), JUDGED),
    "directories within each other in a node": (nested("nodes/n1/work", 1_500), JUDGED),
    "a directory in history": (directories(1, "history"), REFUSED),
    "a directory in chunks": (directories(1, "chunks"), REFUSED),
    # what nodes wrote
    "a log that steers": (log_file("evil\x1b[2J.log"), VIOLATION),
    "a log whose name ends a line": (log_file("a\nVALID: x\n.log"), VIOLATION),
    "a log with commands to a CI": (log_file("ci.log", b"::error::x\n##vso[task.x]y\n"), JUDGED),
    "a log in one line of 20 MB": (log_file("node.log", b"\x1b" * (20 << 20)), UNKNOWN),
    "a pattern that takes for ever": (pattern("(a|a)*b(.*)*\\1"), REFUSED),
    "a pattern that counts": (pattern("(x{1000}){1000}"), REFUSED),
    # tables, with sums that match
    "transactions that are not dense": (transactions("txn", 5, 7, 9), REFUSED),
    "transactions that go back": (transactions("complete_ns", -5, -6, -7), VALID),
    "times of 2^63": (transactions("invoke_ns", *[(1 << 63) - 1] * 3), UNKNOWN),
    "times of -2^63": (transactions("invoke_ns", *[-(1 << 63)] * 3), VALID),
    "indices that are equal": (transactions("invoke_index", 0, 0, 0), VALID),
    "types that are none": (transactions("type", "nope", ESCAPES, ""), REFUSED),
    "kinds that steer": (transactions("kind", ESCAPES, ESCAPES, ESCAPES), VALID),
    "nodes that steer": (transactions("node", ESCAPES, ESCAPES, ESCAPES), VALID),
    "errors that steer": (transactions("error", ESCAPES, ESCAPES, ESCAPES), VALID),
    "processes below zero": (transactions("process", -1, -1, -1), VALID),
    "steps of no transaction": (steps("txn", 10**12, -4, 99), REFUSED),
    "steps in no order": (steps("pos", 9, -9, 1 << 30), VALID),
    "steps of no known f": (steps("f", "zzz", ESCAPES, ""), UNKNOWN),
    "keys of 2^63": (steps("key", *[(1 << 63) - 1] * 3), VALID),
    "values without end": (steps("elements", None, None, list(range(200_000))), VIOLATION),
    "lists of nothing": (steps("elements", [], [None], [None, None]), UNKNOWN),
    "no rows at all": (table("history/transactions.parquet", lambda t: t.slice(0, 0)), REFUSED),
    "no steps at all": (table("history/micro_ops-0000.parquet", lambda t: t.slice(0, 0)), REFUSED),
    "other columns": (table("faults.parquet", lambda t: t.select(t.column_names[:2])), REFUSED),
    "a table that is text": (
        lambda run: (run.events.write_text("PAR1 no PAR1"), forge(run))[1],
        REFUSED,
    ),
    "a table that is empty": (lambda run: (run.events.write_bytes(b""), forge(run))[1], REFUSED),
    "a table with a footer of 2 GB": (
        lambda run: (
            run.events.write_bytes(b"PAR1" + struct.pack("<I", 0x7FFFFFFF) + b"PAR1"),
            forge(run),
        )[1],
        REFUSED,
    ),
    **CROWDED,
    "150 million equal events": (many_rows("events.parquet", 150_000_000), REFUSED),
    "150 million equal steps": (many_rows("history/micro_ops-0000.parquet", 150_000_000), REFUSED),
    "a table of 3 GB": (sparse("events.parquet", 3 << 30), REFUSED),
    "a hole of 1 TB for a table": (hole("events.parquet", 1 << 40), REFUSED),
    "a hole of 1 TB for a log": (hole("nodes/n1/node.log", 1 << 40), REFUSED),
    # chunks of a run that nobody sealed
    "a chunk of nothing": (chunk(b""), UNKNOWN),
    "a chunk that claims 4 GB": (chunk(record_frames.FRAME.pack(0xF0000000, 0)), UNKNOWN),
    "a chunk of zeros": (chunk(b"\0" * (1 << 20)), UNKNOWN),
    "a deep record": (chunk(frame(b"\x91" * 200_000)), UNKNOWN),
    "a record of 2^32 elements": (chunk(frame(b"\xdd\xff\xff\xff\xff")), UNKNOWN),
    "a chunk of 3 GB": (
        unsealed(lambda chunks: os.truncate(next(iter(chunks.glob("w0-*"))), 3 << 30)),
        REFUSED,
    ),
    "2,000 streams": (streams(2_000), REFUSED),
    "2,000 streams, and a manifest that does not count them": (
        streams(2_000, streams=msgspec.UNSET),
        REFUSED,
    ),
    "as many streams as a manifest can claim": (streams(1, streams=(1 << 63) - 1), REFUSED),
    "a billion streams that a manifest claims": (streams(1, streams=10**9), REFUSED),
    "no streams that a manifest claims": (streams(1, streams=0), REFUSED),
    "fewer streams than none that a manifest claims": (streams(1, streams=-1), REFUSED),
    "a stream of the largest number": (
        unsealed(lambda chunks: (chunks / "w99999-999999.chunk").write_bytes(b"")),
        REFUSED,
    ),
}
SLICE = 40  # of 170 cases: each takes eight commands


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return sound_run(tmp_path_factory.mktemp("strangers") / NAME)


def bounded(ended: Ended, usual: Ended, size_bytes: int, *, raw: bool = False) -> None:
    """What a command said steers nothing, and it took no more than it may. ``raw``: its output is
    the bytes of a file, as long as that and shown as escapes on a terminal alone.
    """
    shown = ended.err if raw else ended.said
    assert "unexpected" not in shown, shown
    assert "Traceback" not in shown, shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\x9b" not in shown
    assert len(shown) < 1 << 16
    assert SECRET not in ended.said
    for line in ended.said.splitlines():
        assert not line.lstrip().startswith("::"), line
    assert ended.cpu_s < usual.cpu_s + CPU_LIMIT_S, ended
    assert ended.memory_bytes < usual.memory_bytes + MEMORY_LIMIT_BYTES + size_bytes, ended


@pytest.mark.parametrize(
    "name", [n for place, n in enumerate(CONTENTS) if WHOLE or place % SLICE == 0]
)
def test_what_no_run_of_ours_writes_is_refused_by_name_or_judged_rightly(
    name: str, sound: RunDirectory, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    attack, codes = CONTENTS[name]
    canaries = Canaries(tmp_path / "outside")
    store = tmp_path / "runs"
    store.mkdir()
    # What is nested deeper than Python recurses would end the tests when pytest tidies up.
    request.addfinalizer(lambda: subprocess.run(["rm", "-rf", str(store)], check=True))
    run = copied(sound, store / NAME)
    copied(sound, store / OTHER)
    attack(run)
    size = sum(p.stat().st_blocks * 512 for p in below(run.root) if p.is_file())
    before, watch = canaries.state(), canaries.watch()

    def tried(*command: str) -> Ended:
        ended = firedrill(*command, "--runs-dir", str(store), cwd=tmp_path)
        bounded(ended, usual()[command[0]], size, raw=command[0] == "logs")
        return ended

    listed = tried("runs")
    assert listed.code == 0
    assert OTHER in listed.out
    assert tried("report", NAME).code in (0, 254)
    assert tried("logs", NAME, "n1").code in (0, 254)
    if name != STEERING:  # shrink would drive the plan of what it takes for a violation
        assert tried("shrink", NAME).code == 254
    checked = tried("check", "--executor", "local", NAME)
    assert checked.code in codes, checked.said
    assert checked.code != 1 or "panic" in checked.out or codes is not JUDGED, checked.said
    assert tried("report", NAME).code in (0, 254)
    assert tried("cleanup", "--all").code in (0, 255)
    assert reached(watch) == b""
    assert canaries.state() == before
    assert SECRET not in written_in(store)
