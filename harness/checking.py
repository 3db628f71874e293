"""What an analysis says, and the protocol of its parts.

A verdict is a pure function of a run directory: it holds no time, path, host or executor, so that
two analyses of one run are equal byte for byte.
"""

from __future__ import annotations

from typing import Any

import msgspec

from harness.outcome import Outcome


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
