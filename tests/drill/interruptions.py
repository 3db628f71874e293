"""Interrupts commands at many moments and counts the processes that they leave.

    python tests/drill/interruptions.py              40 moments of each command (see ``--help``)

Each trial is a process of its own that adopts what is orphaned below it
(``PR_SET_CHILD_SUBREAPER``), so that no process of a command, in whatever session or group, is
overlooked. What must hold is in ``wrong``: no process is left 5 s after the command's end, no
container once the last process is gone, and no traceback is shown.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

FIREDRILL = Path(sys.executable).with_name("firedrill")
ROOT = Path(__file__).resolve().parents[2]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
LEFT_LIMIT_S = 5.0
GIVEN_UP_S = 60.0  # how long is watched what is left for too long
END_LIMIT_S = 240.0  # from a signal to the command's end: a run heals, seals and judges
WHOLE_LIMIT_S = 400.0
POLL_S = 0.02
_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
DRILL = ("run", str(ROOT / "scenarios/reference/drill.toml"), "--seed=7", "--duration=6")
FAULTS = ("--set=nemesis.first_s=1", "--set=nemesis.hold_s=2", "--set=nemesis.quiet_s=1")
COMMANDS: dict[str, tuple[str, ...]] = {
    "check": ("check", "RECORDED", "--executor=local"),
    "check on Spark": ("check", "RECORDED", "--executor=spark"),
    "run, simulated": (*DRILL, *FAULTS, "--provider=sim", "--executor=local"),
    "run on processes, judged by Spark": (
        *DRILL,
        *FAULTS,
        "--provider=process",
        "--executor=spark",
    ),
    "run in containers": (*DRILL, *FAULTS, "--provider=docker", "--executor=local"),
}
"""Name and arguments of what is interrupted; a check gets a copy of a recorded run."""


@attrs.frozen(kw_only=True)
class Trial:
    """A command, and the signal that its first process gets ``after_s`` its start."""

    command: str
    signal: int
    after_s: float


@attrs.frozen(kw_only=True)
class Found:
    """How a trial ended. ``code`` is ``None`` where the command did not end; ``early`` says that it
    was over before the signal. ``end_s`` from the signal to the command's end, ``left_s`` from
    there to that of its last process.
    """

    trial: Trial
    code: int | None
    early: bool
    end_s: float
    left_s: float
    left: tuple[str, ...]
    containers: tuple[str, ...]
    said: str


def wrong(found: Found) -> str:
    """What must never be, in words; empty where all is well."""
    if found.code is None:
        return "does not end"
    if found.left_s > LEFT_LIMIT_S:
        return f"left {', '.join(found.left)} for {found.left_s:.1f} s"
    if found.containers:
        return f"left {', '.join(found.containers)}"
    return "a traceback" if "Traceback" in found.said else ""


def tried(trial: Trial, recorded: Path | None, scratch: Path) -> Found:
    """Interrupt the command of ``trial`` in this process, which must have no other child."""
    store = Path(tempfile.mkdtemp(prefix="interrupted-", dir=scratch))
    try:
        return _tried(trial, recorded, store)
    finally:
        shutil.rmtree(store, ignore_errors=True)


def _tried(trial: Trial, recorded: Path | None, store: Path) -> Found:
    _adopt_orphans()
    words = _words(trial.command, recorded, store)
    with (store / "said").open("wb") as said:
        command = subprocess.Popen(
            [FIREDRILL, *words],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            cwd=store,
            preexec_fn=_listen,
        )
    try:
        command.wait(trial.after_s)
        early = True
    except subprocess.TimeoutExpired:
        command.send_signal(trial.signal)
        early = False
    began_s, code, left = time.monotonic(), None, tuple[str, ...]()
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = command.wait(END_LIMIT_S)
    ended_s = time.monotonic()
    gone_s = ended_s
    while (there := _descendants()) and gone_s - ended_s < GIVEN_UP_S:
        if gone_s - ended_s > LEFT_LIMIT_S and not left:
            left = tuple(sorted(set(map(_line, there))))
        time.sleep(POLL_S)  # other processes end: there is nothing to wait on
        gone_s = time.monotonic()
    return Found(
        trial=trial,
        code=code,
        early=early,
        end_s=ended_s - began_s,
        left_s=gone_s - ended_s,
        left=left,
        containers=_containers(store),
        said=(store / "said").read_text(errors="replace")[-2000:],
    )


def _adopt_orphans() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _listen() -> None:
    """A shell starts what is in the background deaf to Ctrl-C, and what that starts as well."""
    for number in SIGNALS[:-1]:
        signal.signal(number, signal.SIG_DFL)


def _words(command: str, recorded: Path | None, store: Path) -> list[str]:
    words = list(COMMANDS[command])
    if "RECORDED" in words and recorded:
        shutil.copytree(recorded, store / recorded.name, symlinks=True)
        words[words.index("RECORDED")] = str(store / recorded.name)
        return words
    return [*words, f"--runs-dir={store / 'runs'}"]


def _descendants() -> list[int]:
    """Living processes below this one."""
    from harness import supervisor

    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return supervisor.descendants(os.getpid())


def _line(pid: int) -> str:
    """Its command line, or its name where it is just ending."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        return " ".join(words[:4]) or Path(f"/proc/{pid}/comm").read_text().strip()
    return str(pid)


def _containers(store: Path) -> tuple[str, ...]:
    """What the daemon has of the runs in ``store``."""
    found = list[str]()
    for run in (store / "runs").glob("*"):
        if run.is_symlink() or not shutil.which("docker"):
            continue
        for kind in (
            ["ps", "--all", "--format={{.Names}}"],
            ["network", "ls", "--format={{.Name}}"],
        ):
            label = f"--filter=label=firedrill.run={run.name}"
            listed = subprocess.run(
                ["docker", *kind, label], capture_output=True, text=True, timeout=60
            )
            found += listed.stdout.split()
    return tuple(sorted(found))


def moments(command: str, whole_s: float, count: int, seed: int) -> list[Trial]:
    """A moment of each of ``count`` equal parts of the command's time, every signal as often."""
    draw = random.Random(f"{seed} {command}")
    signals = itertools.islice(itertools.cycle(SIGNALS), count)
    times = [whole_s * (part + draw.random()) / count for part in range(count)]
    draw.shuffle(times)
    return [
        Trial(command=command, signal=number, after_s=round(after_s, 3))
        for number, after_s in zip(signals, times, strict=True)
    ]


_shared: tuple[Path | None, Path] | None = None


def _in_a_process(trial: Trial) -> Found:
    if _shared is None:
        raise RuntimeError("a worker without a directory")
    return tried(trial, *_shared)


def all_tried(
    trials: Sequence[Trial], recorded: Path | None, scratch: Path, jobs: int
) -> Iterator[Found]:
    """Every trial in a process of its own, ``jobs`` at a time, in the order in which they end."""
    global _shared
    _shared = (recorded, scratch)
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(_in_a_process, trials, chunksize=1)


def recording(scratch: Path) -> Path:
    """A run to check."""
    store = scratch / "recorded"
    words = [
        *DRILL,
        *FAULTS,
        "--provider=sim",
        "--no-report",
        "--executor=local",
        f"--runs-dir={store}",
    ]
    subprocess.run([FIREDRILL, *words], timeout=WHOLE_LIMIT_S, capture_output=True, check=False)
    (run,) = (path for path in store.iterdir() if path.is_dir() and not path.is_symlink())
    return run


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--command", action="append", choices=list(COMMANDS))
    parser.add_argument("--moments", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    worst = 0
    with tempfile.TemporaryDirectory(prefix="firedrill-interrupted-") as kept:
        scratch = Path(kept)
        recorded = recording(scratch)
        for command in given.command or COMMANDS:
            never = Trial(command=command, signal=0, after_s=WHOLE_LIMIT_S)
            began_s = time.monotonic()
            (whole,) = all_tried([never], recorded, scratch, 1)
            whole_s = time.monotonic() - began_s - whole.left_s
            print(f"{command}: {whole_s:.1f} s, exit {whole.code} {wrong(whole)}", flush=True)
            trials = moments(command, whole_s, given.moments, given.seed)
            worst += _told(command, all_tried(trials, recorded, scratch, given.jobs))
    return 1 if worst else 0


def _told(command: str, trials: Iterator[Found]) -> int:
    """Print what came of ``trials`` of a command, a line a signal; how many were wrong."""
    by_signal: dict[int, list[Found]] = defaultdict(list)
    count = 0
    for found in trials:
        by_signal[found.trial.signal].append(found)
        if reason := wrong(found):
            count += 1
            print(f"WRONG: {reason}: {found.trial}: {found.said[-300:]!r}", flush=True)
    for number, each in sorted(by_signal.items()):
        codes = sorted({str(found.code) for found in each if not found.early})
        print(
            f"{command:34} {signal.Signals(number).name:8} {len(each):3} moments,"
            f" {sum(found.early for found in each)} after its end,"
            f" {sum(bool(wrong(found)) for found in each)} wrong,"
            f" exit {' '.join(codes)},"
            f" ends within {max(found.end_s for found in each):.1f} s,"
            f" last process {max(found.left_s for found in each):.2f} s after that",
            flush=True,
        )
    return count


if __name__ == "__main__":
    sys.exit(main())
