"""Runs whose sums were made anew: what contradicts the rest of the run is named all the same."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet import encryption

from checkers.engine.analyze import UNTESTED, analyze
from harness.errors import MalformedHistory
from harness.exit_codes import Outcome
from harness.history.load import load
from harness.history.manifest import read_manifest, write_manifest
from harness.history.regular_files import sha256
from harness.history.run_directory import RunDirectory
from harness.protocols.promise import LogPattern
from harness.run.state_log import read_states

RUNS = Path(__file__).parent / "runs"
SPLITS = [f"history/micro_ops-{split:04d}.parquet" for split in range(4)]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(Path(shutil.copytree(RUNS / "sim-forgotten-vote", tmp_path / "run")))


def resum(run: RunDirectory, **fields: object) -> None:
    """Make the sums of all files anew, and change ``fields`` of the manifest."""
    manifest = read_manifest(run)
    sums = {name: sha256(run.root / name) for name in manifest.checksums}
    sizes = {name: (run.root / name).stat().st_size for name in sums}
    write_manifest(run, msgspec.structs.replace(manifest, checksums=sums, sizes=sizes, **fields))


def test_a_split_in_the_place_of_another_is_refused(run: RunDirectory) -> None:
    sizes = {name: pq.ParquetFile(run.root / name).metadata.num_rows for name in SPLITS}
    other, one = sorted(SPLITS, key=lambda name: sizes[name])[-2:]
    shutil.copy(run.root / one, run.root / other)
    resum(run)

    with pytest.raises(MalformedHistory, match=r"expected the keys of split \d of 4, found others"):
        load(run)


@pytest.mark.parametrize("checkers", [(), ("evidence",), ("availability", "statistics")])
def test_a_run_that_no_checker_of_values_judges_is_no_evidence(
    run: RunDirectory, checkers: tuple[str, ...]
) -> None:
    shutil.rmtree(run.root)
    shutil.copytree(RUNS / "sim-valid", run.root)
    assert UNTESTED not in analyze(run, executor="local").reasons
    resum(run, checkers=checkers)

    verdict = analyze(run, executor="local")

    assert verdict.outcome is Outcome.UNKNOWN
    assert UNTESTED in verdict.reasons


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: {"liveness_s": -5.0}, "expected a time of 0 s or more, found -5"),
        (lambda d: {"promises": d.promises[:1] * 2}, "expected one promise of kind"),
        (
            lambda d: {"logs": (LogPattern(name="any", regex="", breaks=True),)},
            "found one that is in every line",
        ),
    ],
)
def test_what_no_system_can_declare_is_refused(
    run: RunDirectory, change: Callable[..., dict[str, object]], reason: str
) -> None:
    declared = read_manifest(run).declaration
    resum(run, declaration=msgspec.structs.replace(declared, **change(declared)))

    with pytest.raises(MalformedHistory, match=reason):
        read_manifest(run)


def read(run: RunDirectory) -> str:
    """Read the run's history and states; return what is refused, if anything is."""
    try:
        load(run)
        read_states(run.root, read_manifest(run).checksums)
    except MalformedHistory as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", ["states.parquet", "events.parquet", SPLITS[0]])
def test_a_name_of_a_column_that_is_no_text_is_refused(run: RunDirectory, name: str) -> None:
    path = run.root / name
    content = path.read_bytes()
    column = pq.ParquetFile(path).schema.names[0].encode()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    refusals = []
    for found in re.finditer(re.escape(column), content[footer:]):
        at = footer + found.start()
        path.write_bytes(content[:at] + b"\x9b" + content[at + 1 :])
        resum(run)
        refusals.append(read(run))

    assert any("it is no Parquet file" in refusal for refusal in refusals)
    assert all(name in refusal for refusal in refusals if refusal)


def test_pages_that_can_not_be_unpacked_are_refused(run: RunDirectory) -> None:
    path = run.root / "states.parquet"
    content = path.read_bytes()
    refusals = []
    for at in range(40, 400, 9):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
        resum(run)
        refusals.append(read(run))

    assert sum(map(bool, refusals)) > 5
    assert all(path.name in refusal for refusal in refusals if refusal)


@pytest.fixture
def valid(run: RunDirectory) -> RunDirectory:
    shutil.rmtree(run.root)
    shutil.copytree(RUNS / "sim-valid", run.root)
    return run


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"cut_ns": 5_000_000_000}, "a run that is whole, and that it was cut at 5.000 s"),
        ({"recovered": True}, "a run that is whole, and that its controller died"),
        ({"unread": True}, "a run that is whole, and of chunks that could not be read"),
        ({"phases": ()}, "is whole, and lacks phase drive, heal, final-reads"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_manifest_that_contradicts_its_state_is_named(
    valid: RunDirectory, fields: dict[str, object], reason: str
) -> None:
    assert analyze(valid, executor="local").outcome is Outcome.VALID
    resum(valid, **fields)

    verdict = analyze(valid, executor="local")

    assert verdict.outcome is Outcome.UNKNOWN
    assert any(reason in told for told in verdict.reasons), verdict.reasons


def test_phases_that_end_before_they_begin_are_named(valid: RunDirectory) -> None:
    marks = dict(read_manifest(valid).phases)
    resum(valid, phases=tuple((marks | {"drive": marks["heal"] + 1}).items()))

    verdict = analyze(valid, executor="local")

    assert verdict.outcome is Outcome.UNKNOWN
    assert any("has phase heal behind drive" in told for told in verdict.reasons), verdict.reasons


def test_chunks_that_were_not_read_are_named_where_the_manifest_is_silent(
    valid: RunDirectory,
) -> None:
    valid.unread.mkdir()

    verdict = analyze(valid, executor="local")

    assert verdict.outcome is Outcome.UNKNOWN
    assert any("unread/ holds chunks" in told for told in verdict.reasons)


@pytest.mark.parametrize("gone", [False, True])
def test_a_plan_that_nothing_vouches_for_is_named(valid: RunDirectory, gone: bool) -> None:
    manifest = read_manifest(valid)
    left = {name: one for name, one in manifest.checksums.items() if name != valid.plan.name}
    write_manifest(valid, msgspec.structs.replace(manifest, checksums=left))
    if gone:
        valid.plan.unlink()

    verdict = analyze(valid, executor="local")

    told = "plan.toml is gone" if gone else "plan.toml is not in the manifest"
    assert verdict.outcome is Outcome.UNKNOWN
    assert any(told in reason for reason in verdict.reasons), verdict.reasons


@pytest.mark.parametrize("change", ["none", "first", "kind"])
def test_faults_that_the_table_lacks_are_named(valid: RunDirectory, change: str) -> None:
    path = valid.root / "faults.parquet"
    table = pq.read_table(path)
    assert table.num_rows
    if change == "kind":
        place = table.schema.get_field_index("kind")
        others = pa.array(["pause"] * table.num_rows, table.schema.field(place).type)
        changed = table.set_column(place, table.schema.field(place), others)
    else:
        changed = table.slice(table.num_rows if change == "none" else 1)
    pq.write_table(changed, path)
    resum(valid)

    verdict = analyze(valid, executor="local")

    assert verdict.outcome is Outcome.UNKNOWN
    assert any("the plan has fault 0, a" in told for told in verdict.reasons), verdict.reasons


class Plain(encryption.KmsClient):
    """Keeps keys as they are."""

    def __init__(self, _config: encryption.KmsConnectionConfig) -> None:
        encryption.KmsClient.__init__(self)

    def wrap_key(self, key: bytes, _name: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, wrapped: bytes, _name: str) -> bytes:
        return base64.b64decode(wrapped)


def test_a_file_with_an_encrypted_column_is_named(run: RunDirectory, tmp_path: Path) -> None:
    path = run.root / SPLITS[1]
    table = pq.read_table(path)
    config = encryption.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": ["key"]}, plaintext_footer=True,
        double_wrapping=False,
    )  # fmt: skip
    factory = encryption.CryptoFactory(Plain)
    secret = factory.file_encryption_properties(encryption.KmsConnectionConfig(), config)
    with pq.ParquetWriter(path, table.schema, encryption_properties=secret) as file:
        file.write_table(table)
    resum(run)

    # The library ends the process at such a footer, without an exception.
    firedrill = Path(sys.executable).with_name("firedrill")
    command = [str(firedrill), "check", str(run.root), "--output", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 2, done.stderr
    assert f"its process was ended by SIGABRT as it opened {path}" in done.stdout + done.stderr


@pytest.mark.parametrize("name", ["transactions", "micro_ops-0002"])
def test_a_type_of_operation_that_there_is_not_is_refused(valid: RunDirectory, name: str) -> None:
    path = valid.history / f"{name}.parquet"
    table = pq.read_table(path)
    place = table.schema.get_field_index("type")
    types = table["type"].to_pylist()
    types[len(types) // 2] = "done\x1b"
    changed = table.set_column(place, table.schema.field(place), pa.array(types))
    pq.write_table(changed, path)
    resum(valid)

    with pytest.raises(MalformedHistory, match=rf"{name}.*the types fail, info, ok, found 'done"):
        load(valid)


@pytest.mark.parametrize(
    ("name", "column"),
    [("assignments", "partition"), ("assignments", "revision"), ("topology", "kind"),
     ("claims_judged", "judged")],
)  # fmt: skip
def test_a_row_without_what_the_store_always_tells_is_refused(
    run: RunDirectory, name: str, column: str
) -> None:
    shutil.rmtree(run.root)
    shutil.copytree(RUNS / "sim-zoned", run.root)
    path = run.root / f"{name}.parquet"
    table = pq.read_table(path)
    place = table.schema.get_field_index(column)
    field = table.schema.field(place)
    values = [None, *table[column].to_pylist()[1:]]
    pq.write_table(table.set_column(place, field, pa.array(values, field.type)), path)
    resum(run)

    with pytest.raises(MalformedHistory, match=f"expected a value in each row of {column}, found"):
        analyze(run, executor="local")
