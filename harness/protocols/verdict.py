"""The verdict of an analysis, and how it is stored and read.

A verdict is a pure function of a run directory: it holds no time, path, host or executor, so that
two analyses of one run are equal byte for byte.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from harness.errors import MalformedHistory
from harness.history.files import read_small
from harness.outcome import Outcome
from harness.run.directory import RunDirectory

MAX_VERDICT_BYTES = 8 << 20
"""The limit of ``verdict.json``, which ``fitted`` keeps; a reader needs some twenty times as much
memory for the worst file of that size.
"""
CUTS = ((16_384, 20_000), (4_096, 4_000), (1_000, 500), (400, 50), (100, 10))
"""Characters of each text and entries of each list and table that a verdict that is too large is
cut to: the first pair with which it fits. 20,000 are the faults of a night, or a cycle that long.
"""
DEPTH_MAX = 16  # of cut values; the built-in checkers nest 6 deep

T = TypeVar("T")


class Anomaly(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of anomaly: its count, and a few examples in full.

    ``count`` counts components that hold such a cycle, or distinct operations. ``examples`` are
    objects with at least ``text`` (the broken promise, then what it means), ``txns`` (list of txn
    ids) and ``keys``.
    """

    count: int
    examples: tuple[dict[str, Any], ...] = ()


class Verdict(msgspec.Struct, frozen=True, kw_only=True, rename={"not_": "not"}):
    """The verdict of a run, as ``analysis/verdict.json`` holds it.

    Only ``anomalies`` that rule out ``model`` decide the outcome; the others are under
    ``observed``. ``reasons`` explains the outcome in sentences. ``statistics`` holds counts per f,
    type and error; ``availability`` the gaps and the time to the first ok per fault window;
    ``coverage`` how often each kind of fault hit each role; ``controller`` whether the controller
    kept up; ``node_logs`` the log lines that the report must show.
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


def encode(verdict: Verdict) -> bytes:
    """The verdict as ``verdict.json`` holds it: equal verdicts are equal bytes."""
    text = msgspec.json.encode(msgspec.to_builtins(verdict), order="sorted")
    return msgspec.json.format(text, indent=2) + b"\n"


def fitted(verdict: Verdict) -> Verdict:
    """Return ``verdict``, cut so that ``encode`` of it is at most ``MAX_VERDICT_BYTES``; itself if
    it already is.

    Outcome, model and counts stay, and the first of the reasons names the cut.
    """
    if _fits(verdict):
        return verdict
    for chars, entries in CUTS:
        told = (
            f"the verdict is too large to be kept whole: it has the first {chars:,} characters of "
            f"a text and the first {entries:,} entries of a list"
        )
        cut = msgspec.convert(_cut(_plain(verdict), chars, entries), Verdict)
        cut = msgspec.structs.replace(cut, reasons=(told, *cut.reasons))
        if _fits(cut):
            return cut
    told = "the verdict is too large to be kept: all but its outcome was left out"
    return Verdict(outcome=verdict.outcome, model=verdict.model[: CUTS[-1][0]], reasons=(told,))


def _fits(verdict: Verdict) -> bool:
    try:
        return len(encode(verdict)) <= MAX_VERDICT_BYTES
    except RecursionError:  # nested more deeply than by any built-in checker
        return False


def _plain(verdict: Verdict) -> dict[str, Any]:
    """One level deep: deeper values may be nested more deeply than any encoder supports."""
    fields = {field.encode_name: field.name for field in msgspec.structs.fields(Verdict)}
    plain = {stored: getattr(verdict, name) for stored, name in fields.items()}
    for name in ("anomalies", "observed"):
        plain[name] = {
            key: {"count": anomaly.count, "examples": anomaly.examples}
            for key, anomaly in plain[name].items()
        }
    return plain


def _cut(value: object, chars: int, entries: int, depth: int = 0) -> object:
    if isinstance(value, str):
        more = len(value) - chars
        return f"{value[:chars]}… ({more} more characters)" if more > 0 else value
    if depth > DEPTH_MAX and isinstance(value, (list, tuple, dict)):
        return type(value)()
    if isinstance(value, dict):
        # In an order that executors agree on; of names that are equal up to the cut, the last.
        kept = sorted(value, key=str)[:entries]
        return {_cut(k, chars, entries): _cut(value[k], chars, entries, depth + 1) for k in kept}
    if isinstance(value, (list, tuple)):
        return [_cut(each, chars, entries, depth + 1) for each in value[:entries]]
    return value


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
