"""What an analysis says, and the protocol of its parts.

A verdict is a pure function of a run directory: it holds no time, path, host or executor, so that
two analyses of one run are equal byte for byte.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from harness.errors import MalformedHistory
from harness.history.files import read_small
from harness.outcome import Outcome
from harness.rundir import RunDirectory

MAX_VERDICT_BYTES = 8 << 20
"""Of ``verdict.json``: a few examples of each anomaly, cut to what a person reads."""

T = TypeVar("T")


class Anomaly(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of anomaly: how many there are, and a few in full.

    ``count`` is components holding such a cycle, or distinct operations. ``examples`` are objects
    with at least ``text`` (the broken promise, then what it means), ``txns`` (list of txn ids) and
    ``keys``.
    """

    count: int
    examples: tuple[dict[str, Any], ...] = ()


class Verdict(msgspec.Struct, frozen=True, kw_only=True, rename={"not_": "not"}):
    """The verdict of a run, as ``analysis/verdict.json`` holds it.

    Only ``anomalies`` that rule out ``model`` decide the outcome; the rest stands under
    ``observed``. ``reasons`` says in sentences why the outcome is what it is. ``statistics`` holds
    counts per f, type and error; ``availability`` the gaps and the time to the first ok per fault
    window; ``coverage`` how often each kind of fault hit each role; ``controller`` whether the
    controller kept up; ``node_logs`` what they said that somebody must see.
    """

    outcome: Outcome
    model: str
    anomalies: dict[str, Anomaly] = {}
    not_: tuple[str, ...] = ()
    also_not: tuple[str, ...] = ()
    observed: dict[str, Anomaly] = {}
    reasons: tuple[str, ...] = ()
    statistics: dict[str, Any] = {}
    availability: dict[str, Any] = {}
    coverage: dict[str, Any] = {}
    controller: dict[str, Any] = {}
    node_logs: dict[str, Any] = {}


class _Outcome(msgspec.Struct):
    outcome: Outcome


def read_verdict(run: RunDirectory) -> Verdict | None:
    """The verdict of ``run``; ``None`` where it was not analyzed. Raises ``MalformedHistory``."""
    return _decoded(run, Verdict)


def read_outcome(run: RunDirectory) -> Outcome | None:
    """The outcome alone, as ``read_verdict``; the rest may be of another version."""
    found = _decoded(run, _Outcome)
    return None if found is None else found.outcome


def _decoded(run: RunDirectory, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(read_small(run.verdict, MAX_VERDICT_BYTES), type=kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = f"it can't be read: {error.strerror}"
        raise MalformedHistory(str(run.verdict), "", reason) from error
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        reason = f"expected a verdict, found {error}"
        raise MalformedHistory(str(run.verdict), "", reason) from error
