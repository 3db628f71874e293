"""Text from anybody: either a history, or one named error with the line, in bounded memory."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import subprocess
import sys
import tarfile
import tempfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jepsen_files import (
    LAYOUTS,
    edn_lines,
    generated,
    json_array,
    json_lines,
    small,
    txn,
    write,
)

from harness.errors import MalformedHistory
from harness.history.tables import NO_COMPLETION
from harness.importers.jepsen import import_limits
from harness.importers.jepsen.imported_history import read_jepsen

EDN_OP = "{:type :invoke, :f :txn, :process 0, :value [[:append 1 %s]]}\n"
JSON_OP = '{"type":"invoke","f":"txn","process":0,"value":[["append",1,%s]]}\n'
EMPTY_READ = "".join(
    f"{{:type :{type_}, :f :txn, :process 0, :value [[:r 1 nil]]}}\n" for type_ in ("invoke", "ok")
)
DEEP = "[" * 200_000
LONG = "7" * 1_000_000
ROOM_BYTES = 200 << 20
TOKENS = (
    '{ } [ ] ( ) #{ #_ #x " \\ \\a \\u0041 ; : , :a "b" nil 1 1.5 \n \r \\" ^ \' @ ` ~ \u00e9 \t ""'
)


BOMB_CPU_S, BOMB_MIB = 2.0, 300
SPIN_S = 0.13  # of a machine on which the bar is ``BOMB_CPU_S``; a slower one may take longer
NEMESIS = "{:type :info, :f :start, :process :nemesis}\n"
# What follows them is refused before its ratio is.
LIST = "{:type :ok, :process 0, :f :txn, :value [[:r 1 ["
JSON_LIST = '{"type":"ok","process":0,"f":"txn","value":[["r",1,['
BOMBS: dict[str, tuple[str, str, int, str]] = {
    "discards": (EDN_OP % 1, "#_ 1 ", 4_000_000, "discarded forms between operations"),
    "lines": (EDN_OP % 1, "\n", 20_000_000, "discarded forms between operations"),
    "commas": (EDN_OP % 1, ",", 20_000_000, "discarded forms between operations"),
    "comments": (EDN_OP % 1, ";\n", 12_000_000, "discarded forms between operations"),
    "lines of JSON": (JSON_OP % 1, "\n", 20_000_000, "discarded forms between operations"),
    "an array's blanks": ("[" + JSON_OP % 1, " ", 20_000_000, "forms between operations"),
    "discards within": ("{:type ", "#_ 1 ", 4_000_000, "more than 1000 discarded forms"),
    "tags": ("{:type ", "#a ", 4_000_000, "more than 64 tags in a row"),
    "blanks within": ("{:type ", " ", 20_000_000, "bytes, which no history does"),
    "comments within": ("{:type ", ";\n", 12_000_000, "words, brackets and blanks between"),
    "one list": ("{:type [", "1 ", 12_000_000, "bytes, which no history does"),
    "one list in a line": (LIST, "1 ", 100_000_000, "an operation of more than 8388608 bytes"),
    "one list of JSON": (JSON_LIST, "1,", 100_000_000, "an operation of more than 8388608 bytes"),
    "lists": (LIST, "[]", 100_000_000, "words, brackets and blanks between"),
    "maps": (LIST, "{}", 100_000_000, "words, brackets and blanks between"),
    "sets": (LIST, "#{} ", 50_000_000, "words, brackets and blanks between"),
    "a string": ('{:error "', '\\"', 100_000_000, "bytes that are not its integers"),
    "lists of JSON": (JSON_LIST, "[],", 60_000_000, "bytes that are not its integers"),
    "objects of JSON": (JSON_LIST, '{"a":1},', 25_000_000, "bytes that are not its integers"),
    "numbers of JSON": (JSON_LIST, "1.5,", 50_000_000, "numbers that are no integers"),
    "remarks": (EDN_OP % 1, NEMESIS, 400_000, "more operations of no client than"),
    "remarks in a line": (EDN_OP % 1, NEMESIS.strip(), 400_000, "more operations of no client"),
}
TRIES = 3  # and of them the best: what else the machine does only ever adds
# What reading one file costs in a process of its own, as a command is one: its reason, the seconds
# of CPU that it would take where the bar is one, and its peak in MiB.
MEASURED = """
import json, sys, time
from pathlib import Path
from harness.errors import MalformedHistory
from harness.importers.jepsen.imported_history import read_jepsen

begun = time.process_time()
sum(number for number in range(5_000_000))
slow = max(1.0, (time.process_time() - begun) / float(sys.argv[2]))
begun = time.process_time()
try:
    read_jepsen(Path(sys.argv[1]))
    reason = ""
except MalformedHistory as error:
    reason = error.reason
spent = (time.process_time() - begun) / slow
# Not ru_maxrss: it counts what the parent had before this program was started.
status = Path("/proc/self/status").read_text()
print(json.dumps([reason, spent, int(status.partition("VmHWM:")[2].split()[0]) // 1024]))
"""


def bomb(path: Path, head: str, unit: str, count: int) -> Path:
    """A small file that expands to ``head`` and ``count`` times ``unit``."""
    each = 100_000
    # A file of several members is as good as one of one, and made at once.
    member = gzip.compress(unit.encode() * each)
    path.write_bytes(gzip.compress(head.encode()) + member * (count // each))
    return path


def measured(path: Path) -> tuple[str, float, int]:
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(path), str(SPIN_S)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    reason, spent_s, peak_mib = json.loads(done.stdout)
    return reason, spent_s, peak_mib


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_that_expands_to_nothing_is_refused_at_once(name: str, tmp_path: Path) -> None:
    *made_of, refusal = BOMBS[name]
    path = bomb(tmp_path / "history", *made_of)
    for _ in range(TRIES):
        reason, spent_s, peak_mib = measured(path)
        assert refusal in reason
        if spent_s < BOMB_CPU_S and peak_mib < BOMB_MIB:
            return
    assert spent_s < BOMB_CPU_S
    assert peak_mib < BOMB_MIB


def test_what_stands_between_operations_may_be_as_much_as_they_are(tmp_path: Path) -> None:
    comment = ";" + "x" * 70 + "\n#_ [1 2]\n"
    lines = edn_lines(generated(200)).splitlines(keepends=True)
    plain = read_jepsen(write(tmp_path, "".join(lines)))

    found = read_jepsen(write(tmp_path, comment.join(lines)))

    assert found.micro_ops().equals(plain.micro_ops())


def zipped(text: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("history.edn", text)
    return made.getvalue()


def tarred(text: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as file:
        member = tarfile.TarInfo("history.edn")
        member.size = len(text)
        file.addfile(member, io.BytesIO(text.encode()))
    return made.getvalue()


def refusal(tmp_path: Path, content: bytes | str) -> MalformedHistory:
    path = tmp_path / "hostile"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    tracemalloc.start()
    try:
        with pytest.raises(MalformedHistory) as refused:
            read_jepsen(path)
        assert tracemalloc.get_traced_memory()[1] < ROOM_BYTES
    finally:
        tracemalloc.stop()
    assert len(str(refused.value)) < 1000
    return refused.value


def tolerated(content: bytes) -> list[dict[str, Any]]:
    """The transactions that reading ``content`` gives, each with its steps, none where the named
    error comes; and nothing else does.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "history"
        path.write_bytes(content)
        try:
            history = read_jepsen(path)
        except MalformedHistory:
            return []
        rows = history.transactions().to_pylist()
        steps: dict[int, list[dict[str, Any]]] = {}
        for step in history.micro_ops().sort_by("pos").to_pylist():
            steps.setdefault(step["txn"], []).append(step)
        return [row | {"ops": steps.get(row["txn"], [])} for row in rows]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "expected operations in EDN or JSON"),
        ("[]", "expected operations of clients"),
        ("\x7fELF", "expected operations in EDN or JSON"),
        (EDN_OP % DEEP, "nested more than 64 deep"),
        (JSON_OP % DEEP, "nested too deep"),
        (DEEP, "expected operations in EDN or JSON"),
        ("[{" + DEEP, "nested more than"),
        (EDN_OP % LONG, "expected an integer of 64 bits"),
        (JSON_OP % LONG, "expected an integer of 64 bits"),
        (EDN_OP % 2**63, "expected an integer of 64 bits"),
        (JSON_OP % 2**63, "expected an integer of 64 bits"),
        (EDN_OP % "1.5", "expected an integer of 64 bits"),
        (JSON_OP % "1.5", "expected an integer of 64 bits"),
        (JSON_OP % "1e3", "expected an integer of 64 bits"),
        (JSON_OP % "NaN", "expected an integer of 64 bits"),
        (EDN_OP % "2/3", "expected an integer of 64 bits"),
        (EDN_OP % "##Inf", "expected an integer of 64 bits"),
        (EDN_OP % "007", "is no number"),
        (EDN_OP % '"x"', "expected an integer of 64 bits"),
        (EDN_OP % "nil", "expected an integer of 64 bits"),
        (JSON_OP % "true", "expected an integer of 64 bits"),
        (EDN_OP.replace("append", "frob") % 1, "append, r or w"),
        (
            JSON_OP.replace('"append",1', '"append"') % 1,
            r"expected a micro-operation [f key value]",
        ),
        (JSON_OP.replace('"append",1', '"append",1.5') % 1, "expected a key"),
        (JSON_OP.replace('"append",1', '"append","\\u001b"') % 1, "expected a key that can be"),
        (JSON_OP.replace('"append",1', '"append","\\ud800"') % 1, "expected a key that can be"),
        (EDN_OP.replace(":process 0,", "") % 1, "has no process"),
        (EDN_OP.replace("invoke", "begin") % 1, "expected the type invoke, ok, fail or info"),
        (EDN_OP.replace(":txn", ":enqueue") % 1, "expected f to be txn"),
        (EDN_OP.replace(":f", ":process 1, :f") % 1, "stands twice in one map"),
        (JSON_OP.replace('"f"', '"process":1,"f"') % 1, "stands twice in one object"),
        (JSON_OP.replace('"f"', '":process":1,"f"') % 1, "stands twice in one operation"),
        (EDN_OP.replace(":f", ":index 1.5, :f") % 1, "expected an index"),
        (EDN_OP.replace(":f", ":time 9223372036854775807, :f") % 1, "expected a time"),
        (EDN_OP.replace("]]", "]") % 1, "expected ']', found '}'"),
        ('{:type "' + "x" * 10_000_000, "more than 2097152 bytes that are not its integers"),
        ('{"type":"' + "x" * 10_000_000, "more than 2097152 bytes that are not its integers"),
        (LIST + "1\n" * 5_000_000, "more than 8388608 bytes; is a quote or a bracket left open"),
        ("[" + (JSON_OP % 1) + (JSON_OP % 2) + "]", "expected ',' or ']'"),
        ("[" + (JSON_OP % 1) + ",]", "not before an operation"),
        ("[" + (EDN_OP % 1) + "]\n" + (EDN_OP % 2), "something follows"),
        ("[" + (JSON_OP % 1) + "] 1", "something follows"),
        ((EDN_OP % 1) + "[1 2]\n", "expected an operation, which is a map"),
        ((JSON_OP % 1) + "[1,2]\n", "expected an operation, which is a map"),
        (b"{:type \xff\xfe}\n", "it is no UTF-8"),
        ((JSON_OP % 1).encode() + b'{"type":"\xc3', "it is no UTF-8"),
        (gzip.compress((EDN_OP % 1).encode(), mtime=0)[:-6], "it is no whole gzip"),
        (
            gzip.compress(gzip.compress((EDN_OP % 1).encode(), mtime=0), mtime=0),
            "found gzip within gzip (gunzip it once)",
        ),
        (bz2.compress((EDN_OP % 1).encode()), "found bzip2 (bunzip2 unpacks it)"),
        (lzma.compress((EDN_OP % 1).encode()), "found xz (unxz unpacks it)"),
        (b"\x28\xb5\x2f\xfd\x04\x00", "found zstd (unzstd unpacks it)"),
        (zipped(EDN_OP % 1), "found zip (unzip unpacks it)"),
        (tarred(EDN_OP % 1), "found a tar archive (tar -x unpacks it)"),
        (gzip.compress(tarred(EDN_OP % 1), mtime=0), "found a tar archive"),
        ((EDN_OP % 1).encode("utf-16"), "found UTF-16 (iconv -f UTF-16 -t UTF-8 converts it)"),
        ((EDN_OP % 1).encode("utf-16-le"), "found UTF-16 (iconv -f UTF-16LE -t UTF-8"),
        ((EDN_OP % 1).encode("utf-16-be"), "found UTF-16 (iconv -f UTF-16BE -t UTF-8"),
        ((JSON_OP % 1).encode("utf-32"), "found UTF-32 (iconv -f UTF-32 -t UTF-8"),
        (b"JEPSEN\0\0", "found Jepsen's own format (firedrill check takes the history.edn beside"),
        (b"PAR1\x15", "found Parquet (firedrill check takes the directory of a run)"),
        (
            gzip.compress((EDN_OP % 1).encode() + b" " * (100 << 20), mtime=0),
            "beyond the size of the",
        ),
        (gzip.compress(EMPTY_READ.encode() * 60_000, mtime=0), "bytes, which no history does"),
    ],
)
def test_what_is_no_history_is_refused_for_its_reason(
    tmp_path: Path, content: bytes | str, reason: str
) -> None:
    assert reason in refusal(tmp_path, content).reason


def test_the_line_of_a_refusal_is_the_line_of_the_operation(tmp_path: Path) -> None:
    for layout in (edn_lines, json_lines):
        lines = layout(generated(4000)).splitlines(keepends=True)
        lines[5000] = lines[5000].replace("append", "frob", 1).replace("[:r", "[:frob")
        lines[5000] = lines[5000].replace('["r"', '["frob"')

        assert refusal(tmp_path, "".join(lines)).where == "line 5001"


def test_a_field_that_is_not_known_is_passed_over_whatever_it_holds(tmp_path: Path) -> None:
    plain = read_jepsen(write(tmp_path, json_lines(small())))
    odd = [op | {"node": {"a": [1.5, {"b": LONG[:50]}]}, "error": "x" * 5000} for op in small()]

    found = read_jepsen(write(tmp_path, json_lines(odd)))

    assert found.micro_ops().equals(plain.micro_ops())
    assert (
        max(map(len, found.transactions()["error"].to_pylist())) < import_limits.MAX_TEXT_CHARS + 50
    )


def test_text_that_would_be_active_is_inert_in_errors_and_notes(tmp_path: Path) -> None:
    evil = "\x1b[2J\u202e<script>\x00"
    ops: list[dict[str, Any]] = [
        txn("invoke", 0, [["append", 1, 1]]),
        {"type": "info", "f": evil, "process": evil, "value": evil},
        txn("fail", 0, [["append", 1, 1]], error=evil),
    ]
    history = read_jepsen(write(tmp_path, json_lines(ops)))

    shown = history.notes()["text"].to_pylist() + history.transactions()["error"].to_pylist()
    assert all(text.isprintable() for text in shown)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_history_cut_anywhere_is_refused_or_a_prefix(
    layout: Callable[[list[dict[str, Any]]], str],
) -> None:
    text = layout(small()).encode()
    whole, lengths = tolerated(text), set[int]()
    for end in range(len(text)):
        found = tolerated(text[:end])
        lengths.add(len(found))
        for row, its in zip(found, whole[: len(found)], strict=True):
            begun = ("process", "invoke_ns", "invoke_index")
            assert [row[name] for name in begun] == [its[name] for name in begun]
            # What was cut off before its completion has an outcome that is not known.
            if row["error"] != NO_COMPLETION:
                assert (row["type"], row["ops"]) == (its["type"], its["ops"])
            else:
                assert row["type"] == "info"
    # A vector without its end is refused.
    in_a_vector = b"[" in text[:15]
    assert lengths <= {0, len(whole)} if in_a_vector else len(lengths) > 2


@pytest.mark.parametrize("layout", [edn_lines, json_lines, json_array])
def test_flipped_bits_never_break_the_reader(
    layout: Callable[[list[dict[str, Any]]], str],
) -> None:
    draw = random.Random(5)
    text = layout(generated(20)).encode()
    for _ in range(400):
        flipped = bytearray(text)
        for _ in range(draw.randint(1, 4)):
            flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
        tolerated(bytes(flipped))


@settings(max_examples=300, deadline=None)
@given(
    content=st.binary(max_size=60), head=st.sampled_from([b"", b"{:", b'{"', b"[{", b"\x1f\x8b"])
)
def test_any_bytes_are_tolerated(content: bytes, head: bytes) -> None:
    tolerated(head + content)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(TOKENS.split(" ")), max_size=30))
def test_any_tokens_are_tolerated(tokens: list[str]) -> None:
    tolerated(("{:type " + " ".join(tokens)).encode())
    tolerated(('{"type":' + " ".join(tokens)).encode())


def test_a_file_that_takes_far_longer_than_its_size_explains_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, edn_lines(generated(20)))
    slow = iter((0.0, 3600.0))

    assert read_jepsen(path, clock=lambda: 7.0).operations == 40
    with pytest.raises(MalformedHistory, match="took 3600 s of processor time"):
        read_jepsen(path, clock=lambda: next(slow))


@pytest.mark.parametrize(
    "twice",
    [
        ':value [[:r 1 [1 3]]], "value" [[:r 1 [1 2 3]]]',
        ":value [[:r 1 [1 3]]], value [[:r 1 [1 2 3]]]",
        ':type :fail, "type" :ok, :value [[:r 1 [1]]]',
    ],
)
def test_an_operation_that_says_two_things_is_refused(twice: str, tmp_path: Path) -> None:
    path = tmp_path / "history.edn"
    path.write_text(
        "{:index 0, :type :invoke, :process 0, :f :txn, :value [[:r 1 nil]]}\n"
        "{:index 1, "
        + ("" if ":type" in twice else ":type :ok, ")
        + f":process 0, :f :txn, {twice}}}\n"
    )

    with pytest.raises(MalformedHistory, match=r"the key \S+ stands twice in one map"):
        read_jepsen(path)


def test_keys_that_can_not_be_told_apart_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "history.edn"
    path.write_text(
        r'{:index 0, :type :ok, :process 0, :f :txn, :value [[:append "\ud800" 1]]}' + "\n"
    )

    with pytest.raises(MalformedHistory, match="expected a key that can be shown"):
        read_jepsen(path)
