"""The verdict of an analysis, and how it is stored and read.

A verdict is a pure function of a run directory: it holds no time, path, host or executor, so that
two analyses of one run are equal byte for byte.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from harness.errors import MalformedHistory, NotStored
from harness.exit_codes import Outcome
from harness.history.durable_files import alone_in, write_held
from harness.history.regular_files import FileStamp, read_small, sha256, stamp
from harness.history.run_directory import RunDirectory, require_plain
from harness.protocols.finding import Finding, finding_of, stored
from harness.text import brackets, inert_json, key_twice

MAX_VERDICT_BYTES = 8 << 20
MAX_BRACKETS = 500_000
"""The limits of ``verdict.json``, which ``fitted`` keeps: its bytes, and its lists and objects, of
which each takes tens of times its two brackets once it is read.
"""
SEAL_BYTES = 1 << 10
READS_MAX = 4  # of a verdict that another replaces meanwhile, each time
CUTS = ((16_384, 20_000), (4_096, 4_000), (1_000, 500), (400, 50), (100, 10))
"""Characters of each text and entries of each list and table that a verdict that is too large is
cut to: the first pair with which it fits. 20,000 are the faults of a night, or a cycle that long.
"""
DEPTH_MAX = 16  # of cut values; the built-in checkers nest 6 deep

T = TypeVar("T")


class Anomaly(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of anomaly: its count, and a few examples in full.

    ``count`` counts components that hold such a cycle, or distinct operations.
    """

    count: int
    examples: tuple[Finding, ...] = ()


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of a run: how many transactions succeeded in it, and the longest time without one.
    ``end_ns`` is ``None`` where the fault of the stretch was never healed.
    """

    start_ns: int
    end_ns: int | None
    ok: int
    longest_gap_ns: int
    longest_gap_at_ns: int


class Takeover(msgspec.Struct, frozen=True, kw_only=True):
    """The ``node`` that took over a role of a fault's target while the fault was in force, and the
    time from the beginning of its injection; both ``None`` where no node did.
    """

    role: str
    node: str | None
    after_ns: int | None


class FaultWindow(Window, frozen=True, kw_only=True):
    """The stretch in which a fault was in force. Times to the first ok transaction are ``None``
    where there was none. ``open_at_injection`` is the least number of transactions that were open
    at one moment of the injection; older verdicts have neither it nor ``takeovers``.
    """

    fault: int
    kind: str
    target: str
    nodes: tuple[str, ...] | None
    roles: tuple[str, ...] | None
    first_ok_after_inject_ns: int | None
    first_ok_after_heal_ns: int | None
    open_at_injection: int | None = None
    takeovers: tuple[Takeover, ...] = ()


class PartitionWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The longest time of each partition without an acknowledged write around a fault."""

    fault: int
    kind: str
    longest_gap_ns: tuple[int | None, ...]


class PartitionGaps(msgspec.Struct, frozen=True, kw_only=True):
    """``windows`` hold a figure for each of the numbers ``partition``, in that order."""

    partition: tuple[int, ...]
    windows: tuple[PartitionWindow, ...]


class Availability(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The gaps of a run: over the whole drive phase, for each fault that was injected, by
    partition; ``effects`` sums up what the faults met.
    """

    drive: Window | None = None
    windows: tuple[FaultWindow, ...] | None = None
    effects: dict[str, int | None] = {}
    partitions: PartitionGaps | None = None


class Coverage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How often each kind of fault hit each role, {kind: {role: faults}}: ``hit`` of ``of`` cells
    are not zero, and ``empty`` names the others.
    """

    cells: dict[str, dict[str, int]] = {}
    hit: int | None = None
    of: int | None = None
    empty: tuple[str, ...] | None = None


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Resident bytes at the beginning, at most, and at the end."""

    first: int
    most: int
    last: int


class ControllerLoad(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How late the controller's loop was while it drove, and what it used; every field is ``None``
    where it was not measured.
    """

    longest_stall_ns: int | None = None
    longest_stall_at_ns: int | None = None
    late_share: float | None = None
    cpu_share: float | None = None
    resident_bytes: Memory | None = None


class LogLines(msgspec.Struct, frozen=True, kw_only=True):
    """The lines of a node's logs that match one pattern: how many, the first, how many by file."""

    lines: int
    first: str
    files: dict[str, int] = {}


class LimitState(enum.StrEnum):
    """What a run shows of a limit. ``UNDECIDED``: it looks broken, but not for certain."""

    KEPT = "kept"
    BROKEN = "broken"
    UNDECIDED = "undecided"
    NOT_TESTED = "not tested"
    NOT_PROMISED = "not promised"


class JudgedLimit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One limit of the plan, by its dotted ``name``: what it ``allowed``, and what was
    ``measured``, in the unit that the name ends with; ``None`` where nothing was.

    The figure showed from ``start_ns`` to ``end_ns``, on ``partition`` where it is one's.
    ``broken`` counts the breaches that are certain; ``reason`` says why there is no figure, or no
    decision, or what the figure rests on.
    """

    name: str
    allowed: float
    state: LimitState
    measured: float | None = None
    broken: int = 0
    start_ns: int | None = None
    end_ns: int | None = None
    partition: int | None = None
    reason: str = ""


class Verdict(msgspec.Struct, frozen=True, kw_only=True, rename={"not_": "not"}):
    """The verdict of a run, as ``analysis/verdict.json`` holds it.

    Only ``anomalies`` that rule out ``model`` decide the outcome; the others are under
    ``observed``. ``reasons`` explains the outcome in sentences: one for each of ``anomalies``, in
    their order, then all else. ``statistics`` are counts by name: per f, type and error, and those
    of each checker. ``limits`` are those of the plan, in its order. ``node_logs`` holds by node and
    pattern the log lines that the report must show.
    """

    outcome: Outcome
    model: str
    anomalies: dict[str, Anomaly] = {}
    not_: tuple[str, ...] = ()
    also_not: tuple[str, ...] = ()
    observed: dict[str, Anomaly] = {}
    reasons: tuple[str, ...] = ()
    statistics: dict[str, Any] = {}
    limits: tuple[JudgedLimit, ...] = ()
    availability: Availability = Availability()
    coverage: Coverage = Coverage()
    controller: ControllerLoad = ControllerLoad()
    node_logs: dict[str, dict[str, LogLines]] = {}

    @property
    def other_reasons(self) -> tuple[str, ...]:
        """The reasons that quote none of ``anomalies``."""
        # One pass over both, since each may fill a verdict of megabytes.
        quoted = iter(sorted(self.anomalies.items()))
        name, anomaly = next(quoted, ("", None))
        found = []
        for reason in self.reasons:
            if anomaly is not None and reason.startswith(_quote(name, anomaly)):
                name, anomaly = next(quoted, ("", None))
            else:
                found.append(reason)
        return tuple(found)


def _quote(name: str, anomaly: Anomaly) -> str:
    return f"{name} ({anomaly.count}) breaks "


def reason_of(name: str, anomaly: Anomaly, broken: str) -> str:
    """Format the reason that quotes ``anomaly``, which breaks ``broken``."""
    return f"{_quote(name, anomaly)}{broken}: {anomaly.examples[0].text}"


def encode(verdict: Verdict) -> bytes:
    """The verdict as ``verdict.json`` holds it: equal verdicts are equal bytes."""
    # Without findings, which are stored in a flat form of their own.
    plain = msgspec.to_builtins(msgspec.structs.replace(verdict, anomalies={}, observed={}))
    for field in ("anomalies", "observed"):
        plain[field] = {
            name: {"count": anomaly.count, "examples": [stored(e) for e in anomaly.examples]}
            for name, anomaly in getattr(verdict, field).items()
        }
    text = msgspec.json.encode(plain, order="sorted")
    return inert_json(msgspec.json.format(text, indent=2)) + b"\n"


def decode(content: bytes) -> Verdict:
    """Return the verdict that ``encode`` gave; older ones lack what came later. Raises
    ``MsgspecError``, ``RecursionError`` or ``UnicodeDecodeError`` for what is none.
    """
    found = msgspec.json.decode(content, type=_Stored)
    fields = {name: getattr(found, name) for name in found.__struct_fields__}
    for name in ("anomalies", "observed"):
        fields[name] = {
            key: Anomaly(count=each.count, examples=tuple(map(finding_of, each.examples)))
            for key, each in fields[name].items()
        }
    return Verdict(**fields)


class _StoredAnomaly(msgspec.Struct):
    count: int
    examples: tuple[dict[str, Any], ...] = ()


class _Stored(Verdict, frozen=True, kw_only=True):
    """A verdict whose findings are not taken apart yet."""

    anomalies: dict[str, _StoredAnomaly] = {}  # type: ignore[assignment]
    observed: dict[str, _StoredAnomaly] = {}  # type: ignore[assignment]


def fitted(verdict: Verdict) -> Verdict:
    """Return ``verdict``, cut so that ``encode`` of it is within the limits of a verdict's file;
    itself if it already is.

    Outcome, model and counts stay, and the first of the reasons names the cut.
    """
    if _fits(verdict):
        return verdict
    for chars, entries in CUTS:
        told = (
            f"the verdict is too large to be kept whole: it has the first {chars:,} characters of "
            f"a text and the first {entries:,} entries of a list"
        )
        cut: Verdict = _cut(verdict, chars, entries)
        cut = msgspec.structs.replace(cut, reasons=(told, *cut.reasons))
        if _fits(cut):
            return cut
    told = "the verdict is too large to be kept: all but its outcome was left out"
    return Verdict(outcome=verdict.outcome, model=verdict.model[: CUTS[-1][0]], reasons=(told,))


def _fits(verdict: Verdict) -> bool:
    try:
        content = encode(verdict)
        return len(content) <= MAX_VERDICT_BYTES and brackets(content) <= MAX_BRACKETS
    except RecursionError:  # nested more deeply than by any built-in checker
        return False


def _cut(value: Any, chars: int, entries: int, depth: int = 0) -> Any:  # noqa: ANN401 (what JSON holds)
    if isinstance(value, msgspec.Struct):  # all of its fields: a reader requires them
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        cut = {name: _cut(each, chars, entries, depth + 1) for name, each in fields.items()}
        return type(value)(**cut)
    # An outcome is a text to Python; cut, or as a plain one, no reader would take it for one.
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        more = len(value) - chars
        return f"{value[:chars]}… ({more} more characters)" if more > 0 else value
    if depth > DEPTH_MAX and isinstance(value, (list, tuple, dict)):
        return type(value)()
    if isinstance(value, dict):
        # In an order that executors agree on; of names that are equal up to the cut, the last.
        kept = sorted(value, key=str)[:entries]
        return {_cut(k, chars, entries): _cut(value[k], chars, entries, depth + 1) for k in kept}
    if isinstance(value, (list, tuple)):
        return type(value)(_cut(each, chars, entries, depth + 1) for each in value[:entries])
    return value


class _Outcome(msgspec.Struct):
    outcome: Outcome


def read_verdict(run: RunDirectory) -> Verdict | None:
    """The verdict of ``run``; ``None`` where it was not analyzed. Raises ``MalformedHistory``."""
    return _decoded(run, decode)


def read_outcome(run: RunDirectory) -> Outcome | None:
    """The outcome alone, as ``read_verdict``; the rest may be of another version."""
    found = _decoded(run, msgspec.json.Decoder(_Outcome).decode)
    return None if found is None else found.outcome


def write_verdict(run: RunDirectory, verdict: Verdict) -> None:
    """Store ``verdict`` as that of ``run``. At each moment a reader finds the verdict before or
    this one, whole. Raises ``HarnessError``, ``NotStored`` where the disk takes nothing.
    """
    content = encode(verdict)
    with alone_in(run.verdict, content):
        _replace(run, content)


def write_first_verdict(run: RunDirectory, verdict: Verdict) -> bool:
    """As ``write_verdict``, where ``run`` has no readable verdict; returns whether it had none. No
    other writer comes between the look and the write.
    """
    content = encode(verdict)
    with alone_in(run.verdict, content):
        try:
            require_plain(run)
            if read_outcome(run) is not None:
                return False
        except MalformedHistory:
            pass  # what no reader takes for a verdict is replaced
        _replace(run, content)
        return True


def _replace(run: RunDirectory, content: bytes) -> None:
    """Write the verdict and its seal. A writer that dies between two writes leaves a seal of both
    verdicts, with one of them.
    """
    seal, before = _seal(run, content), _own_sum(run)
    changes = before not in ("", seal.verdict)
    first = msgspec.structs.replace(seal, before=before) if changes else seal
    write_held(run.verdict_seal, msgspec.json.encode(first))
    write_held(run.verdict, content)
    if changes:
        # The pair is whole; a disk that refuses this leaves a seal that knows the verdict before.
        with contextlib.suppress(NotStored):
            write_held(run.verdict_seal, msgspec.json.encode(seal))


class _Seal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What ties a verdict to its run: the SHA-256 of the manifest's file and of the verdict's. In
    a file of its own, since equal histories have equal verdicts, byte for byte. ``before``: that of
    the verdict that is being replaced.
    """

    manifest: str
    verdict: str
    before: str = ""


def _seal(run: RunDirectory, content: bytes) -> _Seal:
    try:
        manifest = sha256(run.manifest)
    except OSError:  # a history that was only judged has none
        manifest = ""
    return _Seal(manifest=manifest, verdict=hashlib.sha256(content).hexdigest())


def _own_sum(run: RunDirectory) -> str:
    """The SHA-256 of the verdict that ``run`` has; empty where it has none that is its own."""
    try:
        content = read_small(run.verdict, MAX_VERDICT_BYTES)
        _require_own(run, content)
    except (OSError, MalformedHistory):
        return ""
    return hashlib.sha256(content).hexdigest()


def _require_own(run: RunDirectory, content: bytes) -> None:
    """Raise ``MalformedHistory`` where ``content`` is not the verdict that was written of ``run``.
    A verdict of a version that sealed none is believed.
    """
    try:
        found = msgspec.json.decode(read_small(run.verdict_seal, SEAL_BYTES), type=_Seal)
    except FileNotFoundError:
        return
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        reason = f"expected the sums of a verdict, found {error}"
        raise MalformedHistory(str(run.verdict_seal), "", reason) from error
    own = _seal(run, content)
    if found.manifest != own.manifest or own.verdict not in (found.verdict, found.before):
        reason = "expected the verdict that was made of this run as it is, found another: check it"
        raise MalformedHistory(str(run.verdict), "", reason)


def _decoded(run: RunDirectory, decoder: Callable[[bytes], T]) -> T | None:
    """The verdict of ``run``, read again where another has taken its place between the look at it
    and that at its seal.
    """
    for _ in range(READS_MAX - 1):
        before = _stamp_of(run)
        try:
            return _decoded_once(run, decoder)
        except MalformedHistory:
            if _stamp_of(run) == before:
                raise
    return _decoded_once(run, decoder)


def _stamp_of(run: RunDirectory) -> tuple[FileStamp | None, FileStamp | None]:
    return stamp(run.verdict), stamp(run.verdict_seal)


def _decoded_once(run: RunDirectory, decoder: Callable[[bytes], T]) -> T | None:
    try:
        content = read_small(run.verdict, MAX_VERDICT_BYTES)
        if (count := brackets(content)) > MAX_BRACKETS:
            reason = f"expected at most {MAX_BRACKETS} lists and objects, found {count}"
            raise MalformedHistory(str(run.verdict), "", reason)
        found, twice = decoder(content), key_twice(content)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = f"it can't be read: {error.strerror}"
        raise MalformedHistory(str(run.verdict), "", reason) from error
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        reason = f"expected a verdict, found {error}"
        raise MalformedHistory(str(run.verdict), "", reason) from error
    if twice:
        reason = f"expected each key once in an object, found {twice[:80]!r} twice"
        raise MalformedHistory(str(run.verdict), "", reason)
    _require_own(run, content)
    return found
