"""The families of errors: misuse, a failing environment, a broken promise of firedrill itself.

An error that the store under test answers is of neither: see
``harness.protocols.client.StoreError``.
"""

import difflib


class FiredrillError(Exception):
    """Base of all errors that firedrill raises on purpose; the text is one sentence for a
    person.
    """


class UsageError(FiredrillError):
    """A request can't be done as it was made (exit code 254)."""


class PlanError(UsageError):
    """A plan or flag has an unknown, missing or contradictory key, or a value that is not
    allowed.
    """

    def __init__(self, path: str, problem: str, source: str = "plan") -> None:
        """``path`` is the dotted path of the key, ``problem`` describes the mistake, ``source``
        names the plan or flag.
        """
        super().__init__(": ".join(part for part in (source, path, problem) if part))
        self.path, self.problem = path, problem
        self.fault: int | None = None  # which one of the plan's schedule it is about


class UnknownPlugin(UsageError):
    """No installed package offers the named plug-in."""

    def __init__(self, group: str, name: str, known: tuple[str, ...]) -> None:
        offered = f"installed: {', '.join(known) or 'none'}"
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? {offered}" if near else offered
        super().__init__(f"unknown {group} {name!r} ({hint})")
        self.group, self.name, self.known = group, name, known


class BrokenPlugin(UsageError):
    """An installed plug-in can't be imported or made, or lacks a member that its protocol has."""


class MissingCapability(UsageError):
    """The plan needs a capability that this machine or provider lacks."""

    def __init__(self, needed_by: str, capability: str, remedy: str = "") -> None:
        tail = f"; {remedy}" if remedy else ""
        # As its value: an enumeration's own form is code.
        self.capability = str(capability)
        needs = f"{needed_by} needs {self.capability!r}, which is not available here"
        super().__init__(f"{needs}{tail}")


class MalformedHistory(UsageError):
    """A history or run directory does not have the format or the content that it declares."""

    def __init__(self, file: str, where: str, reason: str) -> None:
        at = f" at {where}" if where else ""
        super().__init__(f"{file}{at}: {reason}")
        self.file, self.where, self.reason = file, where, reason


class HarnessError(FiredrillError):
    """The environment failed: a daemon, a disk, a session (exit code 255)."""


class AnalysisLost(HarnessError):
    """A process that took part in an analysis died: the analysis has no verdict on the history."""


class NotStored(HarnessError):
    """The disk accepts no writes: it is full, or its files are read-only."""


class Outweighed(NotStored):
    """What is stored already is proven, and what was to replace it rests on less."""


class NotRemoved(HarnessError):
    """Some resources of a run could not be removed; ``removed`` lists those that were, a text
    each.
    """

    def __init__(self, removed: list[str], failed: dict[str, str]) -> None:
        told = "; ".join(f"{item}: {reason}" for item, reason in failed.items())
        super().__init__(f"could not be removed, unlike the rest: {told}")
        self.removed = removed


class DeadlineExceeded(HarnessError):
    """A call of the harness's own (SSH, Docker, a proxy) took longer than its limit."""

    def __init__(self, what: str, limit_s: float) -> None:
        super().__init__(f"{what} did not answer within {limit_s:g} s")
        self.limit_s = limit_s


class HarnessBug(FiredrillError):
    """This should never happen; if it does, the bug is in firedrill."""


class InvariantError(HarnessBug):
    """A condition that the code relies on does not hold."""


class Interrupted(FiredrillError):
    """The user ended the run (exit code 130 unless a violation is proven)."""
