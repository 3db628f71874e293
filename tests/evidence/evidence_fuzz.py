"""Damages the files of recorded runs one at a time and judges each run again.

    python tests/evidence/evidence_fuzz.py record RUNS       ten runs, with the command line's parts
    python tests/evidence/evidence_fuzz.py damage RUNS       the full size (see ``--help``)

What must hold is in ``wrong``: no traceback, no hang, no violation that turned valid, no valid run
that turned into a violation, and no damage unnoticed in a file that the verdict rests on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

LIMIT_S = 120  # of one judgement; what takes longer hangs
RECORD_LIMIT_S = 400
WORKERS = 2
REFUSED, TRACEBACK, HANG = "refused", "traceback", "hang"
TRUNCATED, FLIPPED, REMOVED, EMPTIED, SWAPPED = (
    "truncated",
    "flipped",
    "removed",
    "emptied",
    "swapped",
)
# Beside what a sealed run's manifest has sums of.
RESTS_ON = re.compile(r"manifest\.json|plan\.toml|chunks/w.*\.chunk")
OUTPUTS = ("analysis", "report.html")  # made of the rest, again


@attrs.frozen(kw_only=True)
class Recorded:
    """A recorded run, what it came to, whether it was sealed, the files that it has sums of, logs
    of nodes included, and of these those that decide nothing.
    """

    root: Path
    outcome: str
    verdict: bytes
    sealed: bool
    summed: frozenset[str]
    explaining: frozenset[str] = frozenset()

    def rests_on(self, name: str) -> bool:
        """Whether damage of ``name`` must be noticed. Logs of nodes get their sums when a run is
        sealed: those of one that never was prove nothing.
        """
        return name in self.summed or RESTS_ON.fullmatch(name) is not None


@attrs.frozen(kw_only=True)
class Damage:
    """One file of one run, and what is done to it. ``place`` is a size or a bit."""

    run: int
    name: str
    kind: str
    place: int = 0
    other: Path | None = None

    def content(self, whole: bytes) -> bytes | None:
        """What the file holds then; ``None`` where it is gone."""
        if self.kind == TRUNCATED:
            return whole[: self.place]
        if self.kind == FLIPPED:
            damaged = bytearray(whole)
            damaged[self.place // 8] ^= 1 << self.place % 8
            return bytes(damaged)
        if self.kind == SWAPPED and self.other is not None:
            return self.other.read_bytes()
        return b"" if self.kind == EMPTIED else None


@attrs.frozen(kw_only=True)
class Found:
    """What a damaged run came to; ``changed`` where the verdict is another one than before."""

    damage: Damage
    outcome: str
    changed: bool
    text: str = ""


def judge(root: Path) -> tuple[str, bytes, str]:
    """(outcome, verdict, sentence) of the run in ``root``, recovered where it was not sealed."""
    from checkers.engine.analyze import analyze
    from cli.judging.steps import _partition_of
    from harness.errors import FiredrillError, HarnessBug, InvariantError
    from harness.history.manifest import RUNNING, read_manifest
    from harness.history.run_directory import RunDirectory, require_plain
    from harness.history.seal import recover
    from harness.protocols.verdict import encode

    run = RunDirectory(root)
    signal.alarm(LIMIT_S)
    try:
        require_plain(run)
        if read_manifest(run).state == RUNNING:
            recover(run, partition_of=_partition_of(run))
        verdict = analyze(run, executor="local")
        return verdict.outcome.value, encode(verdict), "; ".join(verdict.reasons)
    except TimeoutError as error:
        return HANG, b"", str(error)
    except (HarnessBug, InvariantError) as error:
        return TRACEBACK, b"", f"{type(error).__name__}: {error}"
    except FiredrillError as error:
        return REFUSED, b"", str(error)
    except Exception as error:  # what is no sentence of ours is what is looked for
        return TRACEBACK, b"", f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)


def _too_long(*_: object) -> None:
    raise TimeoutError(f"not judged within {LIMIT_S} s")


def recorded(roots: Iterable[Path], scratch: Path) -> tuple[Recorded, ...]:
    """The runs in ``roots``, each judged once as it is. Raises ``ValueError`` for one that can't
    be.
    """
    from harness.history.manifest import RUNNING, read_manifest
    from harness.history.run_directory import RunDirectory

    signal.signal(signal.SIGALRM, _too_long)
    found = []
    for root in roots:
        manifest = read_manifest(RunDirectory(root))
        copy = copied(root, scratch / f"as-it-is-{root.name}")
        outcome, verdict, text = judge(copy)
        shutil.rmtree(copy)
        if outcome in (REFUSED, TRACEBACK, HANG):
            raise ValueError(f"{root}: expected a run that can be judged, found {outcome}: {text}")
        found.append(
            Recorded(
                root=root,
                outcome=outcome,
                verdict=verdict,
                sealed=manifest.state != RUNNING,
                summed=frozenset((*manifest.checksums, *(manifest.logs or ()))),
                explaining=frozenset(manifest.explaining or ()),
            )
        )
    return tuple(found)


def files_of(run: Recorded) -> list[str]:
    """The files that are damaged: all that are not made of the others."""
    names = (
        path.relative_to(run.root).as_posix() for path in run.root.rglob("*") if path.is_file()
    )
    return sorted(name for name in names if not name.startswith(OUTPUTS))


def copied(root: Path, into: Path) -> Path:
    """A copy that shares its files: they are replaced, never written into."""
    ignored = shutil.ignore_patterns(*OUTPUTS)
    shutil.copytree(root, into, copy_function=os.link, ignore=ignored, symlinks=True)
    return into


def damages(
    runs: Sequence[Recorded], draw: random.Random, *, truncations: int, flips: int
) -> list[Damage]:
    """So many of each, most of them in files that verdicts rest on, and every file once removed,
    emptied, where it holds anything, and swapped with that of another run.
    """
    files = [files_of(run) for run in runs]
    found: list[Damage] = []
    for number, names in enumerate(files):
        for name in names:
            found.append(Damage(run=number, name=name, kind=REMOVED))
            if (runs[number].root / name).stat().st_size:
                found.append(Damage(run=number, name=name, kind=EMPTIED))
            if other := _counterpart(runs, files, number, name, draw):
                found.append(Damage(run=number, name=name, kind=SWAPPED, other=other))
    weighed = [_weighed(run, names) for run, names in zip(runs, files, strict=True)]
    for kind, count in ((TRUNCATED, truncations), (FLIPPED, flips)):
        for _ in range(count):
            number = draw.randrange(len(runs))
            name = draw.choice(weighed[number])
            size = (runs[number].root / name).stat().st_size
            place = draw.randrange(size * 8 if kind == FLIPPED else size)
            found.append(Damage(run=number, name=name, kind=kind, place=place))
    return found


def _weighed(run: Recorded, names: Sequence[str]) -> list[str]:
    """Files with anything in them, those that the verdict rests on ten times."""
    some = [name for name in names if (run.root / name).stat().st_size]
    return [name for name in some for _ in range(10 if run.rests_on(name) else 1)]


def _counterpart(
    runs: Sequence[Recorded],
    files: Sequence[Sequence[str]],
    number: int,
    name: str,
    draw: random.Random,
) -> Path | None:
    """A file of that name of another run, else one of its kind; with other bytes."""
    mine = (runs[number].root / name).read_bytes()
    others = [
        (other != name, runs[place].root / other)
        for place, names in enumerate(files)
        for other in names
        if place != number and Path(other).suffix == Path(name).suffix
    ]
    draw.shuffle(others)
    ordered = (path for _, path in sorted(others, key=lambda pair: pair[0]))
    return next((path for path in ordered if path.read_bytes() != mine), None)


def tried(runs: Sequence[Recorded], damage: Damage, scratch: Path) -> Found:
    """Judge the run with that damage, in a copy below ``scratch``."""
    run = runs[damage.run]
    copy = copied(run.root, scratch / f"damaged-{os.getpid()}")
    try:
        target = copy / damage.name
        content = damage.content(target.read_bytes())
        target.unlink()
        if content is not None:
            target.write_bytes(content)
        outcome, verdict, text = judge(copy)
    finally:
        shutil.rmtree(copy)
    return Found(damage=damage, outcome=outcome, changed=verdict != run.verdict, text=text)


def wrong(run: Recorded, found: Found) -> str:
    """What must never be, in a word; empty where all is well."""
    if found.outcome in (TRACEBACK, HANG):
        return found.outcome
    if found.outcome == "valid" and run.outcome != "valid":
        return f"{run.outcome} turned valid"
    if found.outcome == "violation" and run.outcome != "violation":
        return f"{run.outcome} turned violation"
    if found.damage.name in run.explaining and found.outcome != run.outcome:
        return f"{run.outcome} turned {found.outcome} by what decides nothing"
    if not found.changed and run.rests_on(found.damage.name):
        return "unnoticed"
    return ""


_shared: tuple[tuple[Recorded, ...], Path] | None = None


def _tried(damage: Damage) -> Found:
    if _shared is None:
        raise RuntimeError("a worker without runs")
    return tried(_shared[0], damage, _shared[1])


def all_tried(
    runs: tuple[Recorded, ...], found: Sequence[Damage], scratch: Path, workers: int
) -> Iterator[Found]:
    """Every damage, by as many processes, in whatever order they end."""
    global _shared
    _shared = (runs, scratch)
    signal.signal(signal.SIGALRM, _too_long)
    if workers == 1:
        yield from map(_tried, found)
        return
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        yield from pool.imap_unordered(_tried, found, chunksize=8)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record")
    record.add_argument("runs", type=Path)
    record.add_argument("--no-containers", action="store_true")
    damage = commands.add_parser("damage")
    damage.add_argument("runs", type=Path)
    damage.add_argument("--truncations", type=int, default=3000)
    damage.add_argument("--flips", type=int, default=3000)
    damage.add_argument("--seed", type=int, default=1)
    damage.add_argument("--workers", type=int, default=WORKERS)
    given = parser.parse_args()
    if given.command == "record":
        record_all(given.runs, containers=not given.no_containers)
        return 0
    return _damage_all(given)


def _damage_all(given: argparse.Namespace) -> int:
    scratch = given.runs / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    roots = sorted(path for path in given.runs.iterdir() if (path / "manifest.json").is_file())
    runs = recorded(roots, scratch)
    for run in runs:
        size = sum((run.root / name).stat().st_size for name in files_of(run))
        told = "" if run.sealed else ", never sealed"
        print(f"{run.root.name}: {run.outcome}{told}, {len(files_of(run))} files, {size} bytes")
    draw = random.Random(given.seed)
    planned = damages(runs, draw, truncations=given.truncations, flips=given.flips)
    counts: Counter[tuple[str, str]] = Counter()
    worst: list[Any] = []
    began_s = time.monotonic()
    for done, found in enumerate(all_tried(runs, planned, scratch, given.workers), start=1):
        run = runs[found.damage.run]
        counts[found.damage.kind, f"{run.outcome} -> {found.outcome}"] += 1
        if said := wrong(run, found):
            worst.append((said, run.root.name, found.damage, found.text[:300]))
            print(f"WRONG: {worst[-1]}", flush=True)
        if done % 500 == 0:
            print(f"{done} of {len(planned)} in {time.monotonic() - began_s:.0f} s", flush=True)
    for (kind, how), count in sorted(counts.items()):
        print(f"{kind:10} {how:24} {count}")
    print(f"{len(planned)} damages, {len(worst)} wrong: {dict(Counter(w[0] for w in worst))}")
    shutil.rmtree(scratch)
    return 1 if worst else 0


SHORT = [
    "--no-report",
    "--executor",
    "local",
    "--set",
    "check.min_ok=20",
    "--set",
    "drive.concurrency=4",
    "--set",
    "system.partitions=2",
    "--duration",
    "13",
]
KILL = "--schedule 3:kill:n1:3"
# One fault of the three: a damaged run is judged thousands of times, so that must be quick.
LOSE = (
    "scenarios/reference/ack-before-quorum.toml --duration 10"
    " --schedule '3:partition:leader of any partition:4'"
)
RECIPES: tuple[tuple[str, str], ...] = (
    ("sim-valid", f"--provider sim --nodes 3 --seed 3 {KILL}"),
    ("sim-zoned", f"--provider sim --nodes 4 --seed 10 --set system.system_nodes=3 {KILL}"),
    ("sim-register", f"--provider sim --nodes 3 --seed 4 --workload register {KILL}"),
    ("sim-bank", f"--provider sim --nodes 3 --seed 5 --workload bank {KILL}"),
    ("sim-lost-write", f"{LOSE} --provider sim --seed 6 --set drive.concurrency=4"),
    ("sim-forgotten-vote", "scenarios/reference/vote-not-persisted.toml --provider sim --seed 7"),
    ("process-valid", f"--provider process --nodes 3 --seed 8 {KILL}"),
    ("process-violation", f"{LOSE} --provider process"),
    ("process-two-drivers", f"--provider process --nodes 3 --set drive.drivers=2 {KILL}"),
    ("process-killed", f"--provider process --nodes 3 {KILL}"),
    ("two-drivers-killed", f"--provider process --nodes 3 --set drive.drivers=2 {KILL}"),
    ("docker-valid", f"--provider docker --nodes 3 --seed 9 {KILL}"),
    ("docker-violation", f"{LOSE} --provider docker"),
)
"""Name and arguments of ``firedrill run``; of ``-killed`` the controller dies while it drives."""


def record_all(runs: Path, *, containers: bool) -> None:
    """Record every recipe below ``runs``; a run that is there stays."""
    runs.mkdir(parents=True, exist_ok=True)
    for name, arguments in RECIPES:
        if (runs / name).exists() or (name.startswith("docker") and not containers):
            continue
        own = runs / "recording" / name
        own.mkdir(parents=True, exist_ok=True)
        words = shlex.split(arguments)
        plan = [words.pop(0)] if words[0].endswith(".toml") else []
        short = [] if plan else SHORT
        firedrill = str(Path(sys.executable).with_name("firedrill"))
        command = [firedrill, "run", *plan, *words, *short, "--runs-dir", str(own)]
        if plan:
            command += ["--no-report", "--executor", "local"]
        outcome = _recorded(command, own, kill=name.endswith("-killed"))
        roots = (path.parent for path in own.glob("*/manifest.json"))
        (root,) = (path for path in roots if not path.is_symlink())
        (runs / name).mkdir()
        for path in sorted(root.iterdir()):
            shutil.move(path, runs / name)
        for node in sorted((runs / name / "nodes").iterdir()):
            shutil.rmtree(node / "work", ignore_errors=True)  # the store's own data
        print(f"{name}: {json.dumps(outcome)}", flush=True)
    shutil.rmtree(runs / "recording", ignore_errors=True)


def _recorded(command: Sequence[str], own: Path, *, kill: bool) -> int:
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    if not kill:
        return process.wait(RECORD_LIMIT_S)
    until_s = time.monotonic() + RECORD_LIMIT_S
    while time.monotonic() < until_s and process.poll() is None:
        if sum(path.stat().st_size for path in own.glob("*/chunks/*.chunk")) > 60_000:
            break
        time.sleep(0.1)
    process.kill()
    process.wait()
    firedrill, runs_dir = command[0], str(own)
    with contextlib.suppress(subprocess.TimeoutExpired):
        cleanup = [firedrill, "cleanup", "--runs-dir", runs_dir]
        subprocess.run(cleanup, timeout=60, capture_output=True, check=False)
    return -signal.SIGKILL


if __name__ == "__main__":
    sys.exit(main())
