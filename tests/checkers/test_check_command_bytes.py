"""``firedrill check FILE``: whoever judges, and however often, the same bytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FIREDRILL = Path(sys.executable).with_name("firedrill")
HISTORY = """
{:type :invoke, :f :txn, :value [[:append :x 1] [:append 2 1]], :process 0, :time 5, :index 0}
{:type :invoke, :f :txn, :value [[:r :x nil] [:r 2 nil]], :process 1, :time 6, :index 1}
{:type :ok, :f :txn, :value [[:append :x 1] [:append 2 1]], :process 0, :time 7, :index 2}
{:type :ok, :f :txn, :value [[:r :x [1]] [:r 2 []]], :process 1, :time 8, :index 3}
{:type :invoke, :f :txn, :value [[:append 2 5]], :process 0, :time 9, :index 4}
{:type :fail, :f :txn, :value [[:append 2 5]], :process 0, :time 10, :index 5, :error :no}
{:type :invoke, :f :txn, :value [[:r 2 nil]], :process 1, :time 11, :index 6}
{:type :ok, :f :txn, :value [[:r 2 [1 5]]], :process 1, :time 12, :index 7}
{:type :invoke, :f :txn, :value [[:append 3 1]], :process 2, :time 13, :index 8}
"""
"""A fractured read, an aborted read, a named key and an operation without an end."""


def verdict(history: Path, executor: str) -> bytes:
    done = subprocess.run(
        [FIREDRILL, "check", history, "--executor", executor, "--json"],
        capture_output=True,
        timeout=120,
        cwd=history.parent,
    )
    assert done.returncode == 1, done.stderr.decode()
    return done.stdout


@pytest.fixture
def history(tmp_path: Path) -> Path:
    path = tmp_path / "history.edn"
    path.write_text(HISTORY)
    return path


def test_a_history_judged_twice_gives_identical_bytes(history: Path) -> None:
    first = verdict(history, "local")
    elsewhere = history.parent / "moved" / history.name
    elsewhere.parent.mkdir()
    history.rename(elsewhere)

    assert first == verdict(elsewhere, "local")
    for found in (b'"G1a"', b'"G-single-item"', b'"strict-serializable"'):
        assert found in first


@pytest.mark.spark
def test_spark_gives_the_bytes_that_the_process_gives(history: Path) -> None:
    assert verdict(history, "spark") == verdict(history, "local")
