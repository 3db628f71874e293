"""How fast a history of Jepsen's is read, checked and turned into tables.

    python benchmarks/import_jepsen.py [--txns 1000000] [--layout json-lines|edn|...] [--keep DIR]

Writes a list-append history as Elle's generator makes it (10 live keys, 32 appends a key, 20
processes, 1 to 4 steps) in each layout, imports each in a process of its own, and prints MB/s and
peak memory beside the machine's own figure. ``cpu`` is the figure to compare where other work runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from calibrator import calibrate

from harness.history.run_directory import RunDirectory
from harness.importers.jepsen.imported_history import import_run, read_jepsen

KEYS, APPENDS_A_KEY, PROCESSES = 10, 32, 20
CHILD_LIMIT_S = 3600
LAYOUTS = ("json-lines", "edn", "edn-records", "edn-vector", "json-array")
DEFAULT_LAYOUTS = LAYOUTS[:2]

Step = tuple[str, int, Any]


def main() -> None:
    """Run it; ``--measure`` is what the processes are told that it starts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--txns", type=int, default=1_000_000)
    parser.add_argument("--layout", choices=LAYOUTS, action="append")
    parser.add_argument("--seal", action="store_true", help="Also write the run directory.")
    parser.add_argument("--keep", type=Path, help="Leave the input files here, and reuse them.")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure, options.seal)
        return
    print(f"{machine()}; {calibrate()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="firedrill-benchmark-") as scratch:
        directory = options.keep or Path(scratch)
        directory.mkdir(exist_ok=True)
        for layout in options.layout or DEFAULT_LAYOUTS:
            path = directory / f"{options.txns}.{layout}"
            if not path.exists():
                write(path, layout, options.txns)
            arguments = [sys.executable, __file__, "--measure", str(path)]
            arguments += ["--seal"] if options.seal else []
            subprocess.run(arguments, check=True, timeout=CHILD_LIMIT_S)


def machine() -> str:
    """What this runs on, in a line."""
    load, cores = os.getloadavg()[0], os.cpu_count()
    python = platform.python_version()
    return f"{platform.machine()}, {cores} cores, load {load:.1f}, Python {python}"


def measure(path: Path, seal: bool) -> None:
    """Import ``path`` and print what it took."""
    before = peak_mb()
    started, cpu = time.perf_counter(), cpu_s()
    history = read_jepsen(path)
    seconds, cpu = time.perf_counter() - started, cpu_s() - cpu
    size = path.stat().st_size / 1e6
    print(
        f"{path.suffix[1:]:12} {history.transactions().num_rows:>9,} txns {size:7.1f} MB"
        f" {seconds:7.2f} s ({cpu:.2f} s cpu) {size / seconds:6.1f} MB/s"
        f" peak {peak_mb():,} MB ({before:,} before)",
        flush=True,
    )
    if seal:
        del history
        started = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="firedrill-benchmark-") as scratch:
            import_run(path, RunDirectory(Path(scratch) / "run"))
        print(
            f"{'':12} into a sealed run: {time.perf_counter() - started:.2f} s in all", flush=True
        )


def cpu_s() -> float:
    """Seconds of processor time of this process and of those that it started and that ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def peak_mb() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def write(path: Path, layout: str, txns: int) -> None:
    """A history in ``layout``."""
    render: Callable[..., str] = as_json if layout.startswith("json") else as_edn
    before, between, after = {
        "edn-vector": ("[", "\n ", "]\n"),
        "json-array": ("[", ",\n ", "]\n"),
    }.get(layout, ("", "\n", "\n"))
    mark = "#jepsen.history.Op" if layout == "edn-records" else ""
    with path.open("w") as file:
        file.write(before)
        for index, (type_, process, steps, time_ns) in enumerate(operations(txns)):
            if index:
                file.write(between)
            file.write(mark + render(type_, process, steps, time_ns, index))
        file.write(after)


def operations(txns: int) -> Iterator[tuple[str, int, list[Step], int]]:
    """Invocations and completions of a strict store whose effects come with the invocation."""
    draw = random.Random(7)
    live, fresh = list(range(KEYS)), KEYS
    lists: dict[int, list[int]] = {key: [] for key in live}
    busy: dict[int, list[Step]] = {}
    done = time_ns = 0
    while done < txns:
        process = draw.randrange(PROCESSES)
        time_ns += draw.randint(1_000, 100_000)
        if process in busy:
            yield "ok", process, busy.pop(process), time_ns
            done += 1
            continue
        steps: list[Step] = []
        for _ in range(draw.randint(1, 4)):
            slot = min(int(draw.expovariate(0.7)), KEYS - 1)
            key = live[slot]
            if draw.random() < 0.5:
                steps.append(("r", key, list(lists[key])))
                continue
            lists[key].append(len(lists[key]) + 1)
            steps.append(("append", key, len(lists[key])))
            if len(lists[key]) >= APPENDS_A_KEY:
                live[slot], fresh = fresh, fresh + 1
                lists[live[slot]] = []
        busy[process] = steps
        yield "invoke", process, [(f, k, None if f == "r" else v) for f, k, v in steps], time_ns


def as_json(type_: str, process: int, steps: list[Step], time_ns: int, index: int) -> str:
    """As issue trackers and tools exchange them: an object, no blanks."""
    value = json.dumps(steps, separators=(",", ":"))
    head = f'{{"type":"{type_}","f":"txn","value":{value},"process":{process}'
    return f'{head},"time":{time_ns},"index":{index}}}'


def as_edn(type_: str, process: int, steps: list[Step], time_ns: int, index: int) -> str:
    """As Jepsen writes it."""
    value = " ".join(f"[:{f} {key} {form(told)}]" for f, key, told in steps)
    head = f"{{:type :{type_}, :f :txn, :value [{value}], :process {process}"
    return f"{head}, :time {time_ns}, :index {index}}}"


def form(value: int | list[int] | None) -> str:
    """A value in EDN."""
    if isinstance(value, list):
        return f"[{' '.join(map(str, value))}]"
    return "nil" if value is None else str(value)


if __name__ == "__main__":
    main()
