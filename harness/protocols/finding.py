"""Findings: the proofs of a verdict, as values that checkers make and results draw.

In ``verdict.json`` a finding is one flat object: its fields, without those that are not set, and
beside them the ``details`` of its checker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from harness.history.records import MicroOp


class Dependency(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One edge of a cycle: ``source`` is before ``target``, because of ``kind`` (``ww``, ``wr``,
    ``rw``, ``process``, ``realtime``) and of ``element`` at ``key``.
    """

    kind: str
    source: int
    target: int
    key: int | None = None
    element: int | None = None


class RecordedOperation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operation as a finding shows it; ``ops`` are its micro-operations in order."""

    txn: int
    process: int
    type: str
    invoke_ns: int
    complete_ns: int
    ops: tuple[MicroOp, ...]
    kind: str | None = None
    node: str | None = None
    error: str | None = None


class ResetCause(msgspec.Struct, frozen=True, kw_only=True):
    """A forced reset behind a loss: by ``node``, which had started at ``started_ns`` to heal
    ``fault``, as far as both are known.
    """

    node: str
    at_ns: int
    started_ns: int | None
    fault: int | None
    text: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fault that explains a finding, and the forced resets where there were any: ``reset``
    discarded a write, ``under_reset`` is the last one before its acknowledgement (alone, where no
    reset was permitted: what went on behind it was outvoted).

    ``phase`` places the finding in the fault's life: ``before``, ``inject``, ``hold``, ``heal`` or
    ``after`` (verdicts of before: ``during``); ``boundary`` is the step of the fault that it is
    nearest to, ``distance_ns`` how long after it, negative before. ``no_fault``: none
    was in force while the finding's operations went on, and ``text`` says so.
    """

    text: str
    fault: int | None = None
    kind: str | None = None
    target: str | None = None
    nodes: tuple[str, ...] | None = None
    roles: tuple[str, ...] | None = None
    phase: str | None = None
    boundary: str | None = None
    distance_ns: int | None = None
    no_fault: bool = False
    reset: ResetCause | None = None
    under_reset: ResetCause | None = None

    @property
    def resets(self) -> tuple[ResetCause, ...]:
        """The resets that explain the finding."""
        return tuple(reset for reset in (self.reset, self.under_reset) if reset is not None)


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One proven anomaly. ``text`` is the broken promise, then what it means; ``txns`` are the
    transactions that show it, ``keys`` what they touched.

    ``cycle`` are its dependencies in order, the last one leading back; ``element`` and ``value``
    are what was read or written; times are on the run's axis; ``node`` is the node that broke the
    promise, ``log`` are lines of its log.
    ``details`` are further figures of the checker, by names that end with their unit (``_ns``,
    ``_s``): the report shows them, and nothing else reads them.
    """

    text: str
    txns: tuple[int, ...]
    keys: tuple[int, ...]
    operations: tuple[RecordedOperation, ...] = ()
    cycle: tuple[Dependency, ...] = ()
    explained_by: Explanation | None = None
    element: int | None = None
    value: int | None = None
    at_ns: int | None = None
    node: str | None = None
    ack_ns: int | None = None
    read_ns: int | None = None
    log: tuple[str, ...] = ()
    details: dict[str, Any] = {}


_TYPES = {f.name: f.type for f in msgspec.structs.fields(Finding) if f.name != "details"}
_LEAST: Mapping[str, Any] = {"text": "", "txns": (), "keys": ()}


def stored(finding: Finding) -> dict[str, Any]:
    """Return ``finding`` as ``verdict.json`` holds it."""
    plain: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(finding, details={}))
    # The fields last: a detail of the same name must not replace one.
    return finding.details | plain


def finding_of(example: Mapping[str, Any]) -> Finding:
    """Return the finding that an object of ``verdict.json``, or of a plug-in's checker, holds. A
    value that does not fit the field of its name is one of the ``details``.
    """
    known = {name: value for name, value in example.items() if name in _TYPES}
    rest = {str(name): value for name, value in example.items() if name not in _TYPES}
    try:
        # Nearly every finding fits as a whole; field by field costs a conversion each.
        return _made(known, rest)
    except (msgspec.ValidationError, RecursionError):
        fitting = {name for name, value in known.items() if _fits(name, value)}
        rest |= {name: value for name, value in known.items() if name not in fitting}
        return _made({name: known[name] for name in fitting}, rest)


def _made(known: Mapping[str, Any], details: dict[str, Any]) -> Finding:
    found = msgspec.convert({**_LEAST, **known}, Finding)
    # Set afterwards: details may be nested more deeply than ``convert`` follows.
    return msgspec.structs.replace(found, details=details)


def _fits(name: str, value: object) -> bool:
    try:
        msgspec.convert(value, _TYPES[name])
    except (msgspec.ValidationError, RecursionError):
        return False
    return True
