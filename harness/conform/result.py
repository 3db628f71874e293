"""The possible results of a check."""

from __future__ import annotations

import enum

import msgspec

from harness.errors import FiredrillError


class CheckFailure(FiredrillError):
    """The adapter or its store breaks a rule that the harness relies on."""


class CheckHang(CheckFailure):
    """A call that was given a deadline continued long after it."""


class NotTried(FiredrillError):
    """A precondition of a check is missing here; the text names it."""


class Mark(enum.StrEnum):
    """The result of a check."""

    HOLDS = "holds"
    BROKEN = "BROKEN"
    NOT_TRIED = "not tried"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table: ``text`` describes the observation."""

    name: str
    mark: Mark
    text: str
