"""The families of errors: misuse, a failing environment, a broken promise of ours.

What the store under test answers is neither: see ``harness.protocols.client.StoreError``.
"""

import difflib


class FiredrillError(Exception):
    """Anything firedrill raises on purpose; the text is one sentence for a person."""


class UsageError(FiredrillError):
    """What was asked for can't be done as asked (exit code 254)."""


class PlanError(UsageError):
    """A plan says something that it can't say."""

    def __init__(self, path: str, problem: str, source: str = "plan") -> None:
        """``path`` is the dotted path of the key, ``problem`` what is wrong with it, ``source``
        where it was said.
        """
        super().__init__(": ".join(part for part in (source, path, problem) if part))
        self.path, self.problem = path, problem


class UnknownPlugin(UsageError):
    """No installed package offers what was named."""

    def __init__(self, group: str, name: str, known: tuple[str, ...]) -> None:
        offered = f"installed: {', '.join(known) or 'none'}"
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? {offered}" if near else offered
        super().__init__(f"unknown {group} {name!r} ({hint})")
        self.group, self.name, self.known = group, name, known


class BrokenPlugin(UsageError):
    """An installed plugin can't be imported or made, or lacks what its protocol asks for."""


class MissingCapability(UsageError):
    """The plan needs what this machine or provider can't do."""

    def __init__(self, needed_by: str, capability: str, remedy: str = "") -> None:
        tail = f"; {remedy}" if remedy else ""
        super().__init__(f"{needed_by} needs {capability!r}, which is not available here{tail}")
        self.capability = capability


class MalformedHistory(UsageError):
    """A history or run directory is not what it claims to be."""

    def __init__(self, file: str, where: str, reason: str) -> None:
        at = f" at {where}" if where else ""
        super().__init__(f"{file}{at}: {reason}")
        self.file, self.where, self.reason = file, where, reason


class HarnessError(FiredrillError):
    """The environment failed under us: a daemon, a disk, a session (exit code 255)."""


class AnalysisLost(HarnessError):
    """A process that took part in an analysis died: nothing is said about the history."""


class NotStored(HarnessError):
    """The disk takes nothing: it is full, or what lies on it can only be read."""


class NotRemoved(HarnessError):
    """Some of what a run made could not be removed; ``removed`` is what was, a text each."""

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
    """Something that the code relies on does not hold."""


class Interrupted(FiredrillError):
    """The user asked for the end (exit code 130 unless a violation is proven)."""
