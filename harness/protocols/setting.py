"""The inputs of a judgement beside the tables of its history."""

from __future__ import annotations

import msgspec

from harness.history.run_directory import BankRules
from harness.plan.plan import SEARCH_LIMIT, PromisePlan
from harness.protocols.fault_kinds import FaultKind
from harness.protocols.faults import PlannedFault
from harness.protocols.generations import Reset
from harness.protocols.promise import Declaration

# Attempts of a run, by the labels that sentences of its trouble begin with.
QUIESCE, COLLECT_STATES = "quiesce", "collect states"
TO_REST = (QUIESCE, COLLECT_STATES)


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a judgement beside the tables.

    ``model`` is the consistency model that the user asked for. ``planned``: a plan drove the
    history, and it aimed to record something of every feature that it tried; ``rate_per_s`` is the
    rate of an open loop that it asked for, ``op_deadline_s`` the deadline of each of its operations
    (0 where no plan tells one). ``state``, ``interrupted``, ``trouble`` and ``phases`` are the
    manifest's. ``missing`` names evidence that is not what was sealed (gone, or added since), which
    makes the run inconclusive; ``remarks`` are reported and decide nothing. ``logs_unproven``: what
    the nodes' logs hold is no evidence. ``out_of_room``: the run's disk was full.
    ``fault_kinds`` are the kinds of faults that were possible, as the manifest
    records them. ``bank`` holds the rules given for an imported bank history, ``limits`` what the
    plan promises of the service, ``schedule`` its faults, by whose place they are numbered.
    ``resets`` are the forced resets among the events; ``judge`` sets them.
    """

    model: str
    declaration: Declaration
    planned: bool = True
    rate_per_s: float | None = None
    op_deadline_s: float = 0.0
    min_ok: int = 100
    search_limit: int = SEARCH_LIMIT
    state: str = "sealed"
    interrupted: bool = False
    trouble: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    phases: tuple[tuple[str, int], ...] = ()
    cut_ns: int | None = None
    out_of_room: bool = False
    logs_unproven: bool = False
    fault_kinds: tuple[FaultKind, ...] = ()
    bank: BankRules = BankRules()
    limits: PromisePlan = PromisePlan()
    schedule: tuple[PlannedFault, ...] = ()
    resets: tuple[Reset, ...] = ()

    @property
    def restless(self) -> bool:
        """Whether the cluster may not have come to rest: what did not end is named in ``trouble``
        by the attempt that failed.
        """
        return any(text.startswith(f"{label}: ") for label in TO_REST for text in self.trouble)

    @property
    def may_lose(self) -> bool:
        """Whether one of ``resets`` may have cost acknowledged writes."""
        return any(map(self.permits, self.resets))

    def permits(self, reset: Reset) -> bool:
        """Whether ``reset`` may cost acknowledged writes, inside its envelope: by the mode, or
        since an operator has asked for it.
        """
        return self.declaration.may_lose or reset.asked
