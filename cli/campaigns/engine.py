"""Many simulated runs at once: every plan in a process of its own, on all cores, within a limit.

A child is a fork of this process, so that a seed does not pay for the imports again. It sends its
plan's result on a pipe; a child that is silent past its limit is killed, and that is its result.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import math
import os
import selectors
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs
import msgspec

from cli.campaigns.seeds import SeedResult, failed, run_seed
from harness.plan.plan import Plan

SEED_LIMIT_S = 120.0  # wall time of one seed; usual ones take a few seconds
_GRACE_S = 5  # after the limit a child whose parent is gone ends itself
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_CHUNK_BYTES = 1 << 16
_PRELOADED = (
    "checkers.engine.analyze",
    "clusters.providers.sim.provider",
    "clusters.reference.system",
    "nemesis.runner",
    "results.store.store",
)


@attrs.frozen(eq=False)
class _Child:
    pid: int
    pipe: int
    plan: Plan
    began_s: float
    others: frozenset[Path]  # runs of that name that were there before
    said: bytearray = attrs.field(factory=bytearray)


def campaign(
    plans: Iterable[Plan],
    runs_dir: Path,
    *,
    keep: bool = False,
    seed_limit_s: float = SEED_LIMIT_S,
    jobs: int | None = None,
) -> Iterator[SeedResult]:
    """Run ``plans`` (of provider ``sim``) and yield each result as it comes, in no fixed order.

    ``keep`` keeps the run directories of valid runs, too; ``jobs`` is the number of concurrent
    children, all cores by default. Closing the iterator ends the children.
    """
    _import_everything()
    waiting = iter(plans)
    free = jobs or len(os.sched_getaffinity(0))
    running: dict[int, _Child] = {}
    with selectors.DefaultSelector() as pipes:
        try:
            while True:
                while free and (plan := next(waiting, None)) is not None:
                    child = _begin(plan, runs_dir, keep, seed_limit_s)
                    running[child.pipe] = child
                    pipes.register(child.pipe, selectors.EVENT_READ)
                    free -= 1
                if not running:
                    return
                for child in _over(pipes, running, seed_limit_s):
                    pipes.unregister(child.pipe)
                    del running[child.pipe]
                    free += 1
                    yield _result(child, runs_dir, seed_limit_s)
        finally:
            for child in running.values():
                _end(child)


def _over(
    pipes: selectors.BaseSelector, running: dict[int, _Child], limit_s: float
) -> list[_Child]:
    """Wait until some child has sent its whole result, or has used up its time; return these."""
    while True:
        now_s = time.monotonic()
        late = [child for child in running.values() if now_s - child.began_s >= limit_s]
        if late:
            return late
        first_s = min(child.began_s for child in running.values())
        done = []
        for key, _ in pipes.select(first_s + limit_s - now_s):
            child = running[key.fd]
            said = os.read(child.pipe, _CHUNK_BYTES)
            child.said.extend(said)
            if not said:
                done.append(child)
        if done:
            return done


def _result(child: _Child, runs_dir: Path, limit_s: float) -> SeedResult:
    wall_s = time.monotonic() - child.began_s
    late = wall_s >= limit_s
    status = _end(child, kill=late)
    try:
        return msgspec.json.decode(bytes(child.said), type=SeedResult)
    except msgspec.DecodeError:
        run = _newest(child.plan, runs_dir, child.others)
        reason = f"no end within {limit_s:g} s" if late else f"it died ({status})"
        return failed(child.plan, reason, run, wall_s)


def _end(child: _Child, *, kill: bool = True) -> str:
    """Make sure that ``child`` has ended, and return how. A child that closed its pipe is about to
    exit and is not killed.
    """
    os.close(child.pipe)
    if kill:
        os.kill(child.pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _begin(plan: Plan, runs_dir: Path, keep: bool, limit_s: float) -> _Child:
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    others = frozenset(_runs_of(plan, runs_dir))
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _live(plan, runs_dir, others, keep, limit_s, writer)
    os.close(writer)
    return _Child(pid=pid, pipe=reader, plan=plan, began_s=time.monotonic(), others=others)


def _runs_of(plan: Plan, runs_dir: Path) -> list[Path]:
    return sorted(runs_dir.glob(f"*-{plan.name}-????"))


def _newest(plan: Plan, runs_dir: Path, others: frozenset[Path]) -> Path | None:
    """Return the run that the child of ``plan`` made, if it came to that."""
    return max((run for run in _runs_of(plan, runs_dir) if run not in others), default=None)


def _live(
    plan: Plan,
    runs_dir: Path,
    others: frozenset[Path],
    keep: bool,
    limit_s: float,
    writer: int,
) -> None:
    """Run the whole life of a child. Never returns."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its children
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _die_with_parent()
        signal.alarm(math.ceil(limit_s) + _GRACE_S)
        began_s = time.monotonic()
        try:
            result = run_seed(plan, runs_dir, keep=keep)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            run = _newest(plan, runs_dir, others)
            result = failed(plan, text, run, time.monotonic() - began_s)
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(msgspec.json.encode(result))
        code = 0
    finally:
        os._exit(code)


def _die_with_parent() -> None:
    """Let the child die with its parent: a parent that is killed takes its children with it; where
    that can't be requested (it is Linux's), their alarm ends them.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _import_everything() -> None:
    """Import the modules of a run and its verdict before the first fork, and freeze the collector's
    objects: a collection would copy their pages.
    """
    for module in _PRELOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
