"""What Clojure's own EDN reader finds in an exported history is what the run holds, in the types
that jepsen.history, Elle and Knossos take for granted.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from capabilities import lacking, maven_jar

from checkers.engine.spark.java import find_java
from cli.export import operations_of
from cli.main import execute
from harness.history.load import History, load
from harness.history.run_directory import RunDirectory
from results.export.notation import edn_lines

RUNS = Path(__file__).parents[1] / "evidence" / "runs"
READER = Path(__file__).with_name("ReadHistories.clj")
CLOJURE = ("clojure:1.11.1", "spec.alpha:0.3.218", "core.specs.alpha:0.2.62")
LIMIT_S = 300.0

Told = tuple[int, str, str, Any]
"""An operation of a client: process, type, f and value."""


def clojure() -> str:
    """The class path of Clojure from Maven; skips the test where it can't be had."""
    return ":".join(str(maven_jar(f"org.clojure:{artifact}")) for artifact in CLOJURE)


def read_by_clojure(paths: Sequence[Path]) -> dict[Path, list[Told]]:
    java = find_java().home
    if java is None:
        lacking("no Java for Clojure")
    command = [str(java / "bin" / "java"), "-Xmx400m", "-XX:TieredStopAtLevel=1"]
    command.append("-Dclojure.main.report=stderr")
    command += ["-cp", clojure(), "clojure.main", str(READER), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[Path, list[Told]] = {path: [] for path in paths}
    for number, *told in map(json.loads, done.stdout.splitlines()):
        found[paths[number]].append(tuple(told))
    return found


def held(history: History) -> Iterator[Told]:
    """Yield what the tables of a run hold, in the order of its indices."""
    steps: dict[int, list[dict[str, Any]]] = {}
    ordered = history.micro_ops().sort_by([("txn", "ascending"), ("pos", "ascending")])
    for step in ordered.to_pylist():
        steps.setdefault(step["txn"], []).append(step)
    found = []
    for row in history.transactions().to_pylist():
        mops = steps.get(row["txn"], [])
        for at, type_ in ((row["invoke_index"], "invoke"), (row["complete_index"], row["type"])):
            found.append(
                (at, (row["process"], type_, *form(history.manifest.workload, type_, mops)))
            )
    yield from (told for _, told in sorted(found, key=lambda item: item[0]))


def form(workload: str, type_: str, mops: list[dict[str, Any]]) -> tuple[str, Any]:
    values = [read(mop, type_) if mop["f"] == "r" else written(mop) for mop in mops]
    if workload == "register" and len(mops) == 1:
        f = {"r": "read", "w": "write", "cas": "cas"}[mops[0]["f"]]
        return f, [mops[0]["key"], values[0]]
    if workload == "bank" and all(mop["f"] == "r" for mop in mops):
        return "read", {str(mop["key"]): value for mop, value in zip(mops, values, strict=True)}
    if workload == "bank" and len(added := [mop for mop in mops if mop["f"] == "add"]) == 2:
        payer, payee = sorted(added, key=lambda mop: mop["value"])
        return "transfer", {"from": payer["key"], "to": payee["key"], "amount": payee["value"]}
    return "txn", [[mop["f"], mop["key"], value] for mop, value in zip(mops, values, strict=True)]


def read(mop: dict[str, Any], type_: str) -> Any:
    if type_ == "invoke":
        return None
    return mop["value"] if mop["elements"] is None else mop["elements"] or None


def written(mop: dict[str, Any]) -> Any:
    """What was written; of a compare-and-set what was expected, nil where none was, as well."""
    if mop["f"] == "cas":
        *expected, new = mop["elements"]
        return [*(expected or [None]), new]
    return mop["value"]


def simulated(workload: str, directory: Path) -> RunDirectory:
    command = ["run", "--provider", "sim", "--executor", "local", "--no-report", "--duration", "3"]
    command += ["--workload", workload, "--seed", "3", "--set", "nemesis.mix=[]"]
    command += ["--runs-dir", str(directory)]
    assert execute(command) in (0, 2)
    return RunDirectory((directory / "latest").resolve())


@pytest.mark.slow
def test_clojures_own_reader_finds_in_exported_histories_what_the_runs_hold(tmp_path: Path) -> None:
    names = ("sim-forgotten-vote", "sim-valid", "sim-zoned")
    runs = {tmp_path / f"{name}.edn": RunDirectory(RUNS / name) for name in names}
    for workload in ("register", "bank"):
        runs[tmp_path / f"{workload}.edn"] = simulated(workload, tmp_path / workload)
    for path, run in runs.items():
        path.write_bytes(b"".join(edn_lines(operations_of(load(run)))))

    found = read_by_clojure(list(runs))

    for path, run in runs.items():
        assert found[path] == list(held(load(run))), path.name
        assert {type_ for _, type_, _, _ in found[path]} >= {"invoke", "ok"}
    assert {f for _, _, f, _ in found[tmp_path / "register.edn"]} >= {"read", "write", "cas"}
    assert {f for _, _, f, _ in found[tmp_path / "bank.edn"]} >= {"read", "transfer"}


def test_a_history_that_breaks_what_elle_takes_for_granted_is_refused_by_the_reader(
    tmp_path: Path,
) -> None:
    """So that the test above can fail."""
    whole = [
        line.decode()
        for line in edn_lines(operations_of(load(RunDirectory(RUNS / "sim-forgotten-vote"))))
    ]
    at = next(n for n, line in enumerate(whole) if ":type :ok" in line and ":append" in line)
    broken = {
        "a text as value": whole[at].replace(":value [[", ':value [["x" '),
        "an index that lacks": whole[at].replace(":index ", ":index 1"),
        "a type that is a text": whole[at].replace(":type :ok", ':type "ok"'),
        "no value": whole[at].replace(":value ", ":other "),
    }
    for what, line in broken.items():
        assert line != whole[at], what
        path = tmp_path / "broken.edn"
        path.write_text("".join([*whole[:at], line, *whole[at + 1 :]]))
        with pytest.raises(AssertionError, match="ExceptionInfo"):
            read_by_clojure([path])
