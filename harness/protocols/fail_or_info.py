"""Where an error, or a deadline, becomes ``fail`` or ``info``.

``fail`` means that the operation certainly did not happen; what is not certain is ``info``.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping

import msgspec

from harness.history.records import OpType, Phase


class Certainty(enum.StrEnum):
    """The certainty of an error at commit: the transaction had no effect, or its outcome is
    unknown.
    """

    DEFINITE = "definite"
    INDEFINITE = "indefinite"


class ErrorMeaning(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a system's error table: the meaning of ``code`` when *commit* was already sent."""

    code: str
    at_commit: Certainty
    reason: str


def error_table(reasons: Mapping[str, str], definite: Collection[str]) -> dict[str, ErrorMeaning]:
    """Return a system's error table from the reason of each code; those of ``definite`` are
    certain at commit, all others are not.
    """
    return {
        code: ErrorMeaning(
            code=code,
            at_commit=Certainty.DEFINITE if code in definite else Certainty.INDEFINITE,
            reason=reason,
        )
        for code, reason in reasons.items()
    }


DEADLINE = "deadline"
"""The error of an operation that was given up at its deadline: no code of a store."""


def unanswered(phase: Phase) -> OpType:
    """Return ``fail`` or ``info`` for an operation that got no answer in ``phase``, at its deadline
    or for another reason.

    Before commit is sent no transaction has an effect. A one-shot transaction is sent whole, so
    that its only phase after ``begin`` is ``commit``.
    """
    return OpType.INFO if phase == "commit" else OpType.FAIL


def classify(phase: Phase, code: str, table: dict[str, ErrorMeaning]) -> OpType:
    """Return ``fail`` or ``info`` for an error of a transaction, by (code, phase).

    A code that is not in ``table`` tells no more than no answer: when in doubt, ``info`` is safe.
    """
    meaning = table.get(code)
    definite = meaning is not None and meaning.at_commit is Certainty.DEFINITE
    return OpType.FAIL if definite else unanswered(phase)
