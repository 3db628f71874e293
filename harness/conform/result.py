"""A check, and its possible results."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import attrs
import msgspec

from harness.errors import FiredrillError

if TYPE_CHECKING:
    from harness.conform.bench import Bench


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


@attrs.frozen(kw_only=True)
class Check:
    """``run`` returns its observation, or raises ``CheckFailure`` or ``NotTried``. It leaves the
    cluster whole where it returns. ``relies`` is the rule that the harness relies on, in a
    sentence.

    ``limit_s`` bounds the whole check, which fails past it.
    """

    name: str
    relies: str
    run: Callable[[Bench], Awaitable[str]]
    limit_s: float = 120.0
