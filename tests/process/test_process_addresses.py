"""The addresses of nodes are known as long as the nodes are, and in the run's own directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import execute
from cli.reaping.reaper import healed
from harness.errors import MalformedHistory, UsageError
from harness.history.manifest import write_manifest
from harness.history.run_directory import SCHEMA_VERSION, Manifest, RunDirectory, directory_mark
from harness.protocols.cluster import Address, Cluster
from harness.protocols.promise import Declaration
from harness.run.addresses import read_addresses, write_addresses

RUN_ID = "20261121-104500-drill-1a2b"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run of local processes that died: nothing of it is left but its addresses."""
    run = RunDirectory(tmp_path / "runs" / RUN_ID)
    run.undo.mkdir(parents=True)
    run.plan.write_text('[cluster]\nprovider = "process"\n')
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        run_id=RUN_ID,
        state="running",
        versions={},
        machine={},
        declaration=Declaration(system="reference", mode="SC", promises=()),
        workload="list-append",
        checkers=(),
    )
    write_manifest(run, manifest)
    client = {"n1": {"client": Address(host="127.0.0.1", port=7001)}}
    write_addresses(run, Cluster(nodes=("n1",), bind={}, peer={}, client=client, work_dir={}))
    return run


def test_they_are_read_as_they_were_written(run: RunDirectory) -> None:
    found = read_addresses(run)

    assert found.client == {"n1": {"client": Address(host="127.0.0.1", port=7001)}}


@pytest.mark.parametrize("name", [(), (RUN_ID,)], ids=["of all", "by name"])
def test_a_cleanup_forgets_them(
    run: RunDirectory, name: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusters.providers.docker.cleanup.cleanup", lambda *_, **__: [])
    monkeypatch.setattr("clusters.providers.docker.cleanup.kept_runs", list)

    assert execute(["cleanup", *name, "--runs-dir", str(run.root.parent)]) == 0

    with pytest.raises(UsageError, match="the addresses of its nodes are not known"):
        read_addresses(run)


def test_a_cleanup_that_spares_a_kept_cluster_leaves_its_addresses(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusters.providers.docker.cleanup.cleanup", lambda *_, **__: [])
    monkeypatch.setattr("clusters.providers.docker.cleanup.kept_runs", list)
    run.kept.touch()

    assert execute(["cleanup", "--runs-dir", str(run.root.parent)]) == 0
    assert read_addresses(run).nodes == ("n1",)


def test_the_reaper_forgets_them_with_the_nodes(run: RunDirectory) -> None:
    words = [
        sys.executable,
        "-m",
        "cli.reaping.reaper",
        RUN_ID,
        str(run.root),
        "process",
        str(2**22 - 1),
    ]

    assert subprocess.run(words, stdin=subprocess.DEVNULL, timeout=60).returncode == 0

    assert healed(run.root).exists()
    assert not run.addresses.exists()


def test_a_copy_of_a_run_has_no_nodes(run: RunDirectory, tmp_path: Path) -> None:
    shutil.copytree(run.root, tmp_path / "copy")
    moved = tmp_path / "moved"

    with pytest.raises(UsageError, match="it is a copy of a run"):
        read_addresses(RunDirectory(tmp_path / "copy"))
    os.rename(run.root, moved)
    assert read_addresses(RunDirectory(moved)).nodes == ("n1",)


def test_a_run_from_elsewhere_that_guesses_its_path_has_no_nodes(run: RunDirectory) -> None:
    content = run.addresses.read_text()
    own = directory_mark(run.root)
    assert own in content
    run.addresses.write_text(content.replace(own, f"0:0:{run.root.resolve()}"))

    with pytest.raises(UsageError, match="it is a copy of a run"):
        read_addresses(run)


@pytest.mark.parametrize("content", [b'{"directory": "\xff"}', b"[" * 50_000, b"{}", b"\xff"])
def test_what_is_no_list_of_addresses_is_named(run: RunDirectory, content: bytes) -> None:
    run.addresses.write_bytes(content)

    with pytest.raises(MalformedHistory, match="no addresses"):
        read_addresses(run)
