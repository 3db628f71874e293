"""Faults of a schedule that no run could bring about, told before anything starts.

Only what is certain beforehand is refused. A role may move, a fault that waits for its moment may
come at any time, a drawn target may meet a free node, a procedure may be over early, and a
statement may change how many replicas there are: such plans may work, and are left to the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import attrs

from cli.untestable import some
from harness.errors import PlanError
from harness.plan.plan import Plan, node_names
from harness.protocols import targets
from harness.protocols.cluster import (
    System,
    TellsLearners,
    TellsManagement,
    TellsMetastorage,
    TellsVoters,
)
from harness.protocols.fault_kinds import PROCEDURES, FaultKind
from harness.protocols.faults import Fault, PlannedFault
from harness.protocols.targets import Form, Target

_ENDS = re.compile(r"<>|>")  # of a link, each of which is a target


@attrs.frozen(kw_only=True)
class Impossible:
    """The faults of a ``plan`` whose schedule somebody wrote. Of the system, where it tells them:
    how many ``voters`` and ``learners`` each partition has, and the nodes that vote in
    ``metastorage`` and in the group of cluster ``management`` at first.
    """

    plan: Plan
    faults: Mapping[str, Fault]
    voters: int | None
    learners: int | None
    metastorage: tuple[str, ...] | None
    management: tuple[str, ...] | None

    @classmethod
    def of(cls, plan: Plan, system: System, faults: Mapping[str, Fault]) -> Self:
        """Those of ``plan`` on ``system``, with the kinds of faults that it names."""
        return cls(
            plan=plan,
            faults=faults,
            voters=system.voters if isinstance(system, TellsVoters) else None,
            learners=system.learners if isinstance(system, TellsLearners) else None,
            metastorage=system.metastorage if isinstance(system, TellsMetastorage) else None,
            management=system.management if isinstance(system, TellsManagement) else None,
        )

    def refuse(self) -> None:
        """Raise ``PlanError`` for the first such fault."""
        for error in (*self._of_no_node(), *self._of_busy_nodes(), *self._of_taken_majorities()):
            raise error

    # -- targets that are no node

    def _of_no_node(self) -> Iterator[PlanError]:
        for number, fault in enumerate(self._schedule):
            for end in _ENDS.split(fault.target):
                target = _parsed(end)
                why = "" if target is None else self._why_none(target)
                if why:
                    text = f"expected a target that some node is: {why} (got {fault.target!r})"
                    yield PlanError(f"nemesis.schedule[{number}].target", text)

    def _why_none(self, target: Target) -> str:
        """Why ``target`` is no node at any time of the run; empty where it may be one."""
        form, nodes = target.form, self.plan.cluster.nodes
        if form is Form.MANAGEMENT_LEADER and self.management == ():
            return "this store has no group of cluster management"
        if form is Form.LEARNER and self.learners == 0 and not self._may_move():
            return "every replica of a partition votes: aim at `follower of partition P`"
        if form in targets.OF_VOTERS:
            voters = self.voters
            # One of them leads.
            others = voters if voters is None or form is not Form.FOLLOWER else voters - 1
            if others is not None and not targets.how_many(form, others):
                some = "1 voter" if voters == 1 else f"{voters} voters"
                return "" if self._may_move() else f"a partition has {some}"
        elif form in targets.OF_METASTORAGE and self.metastorage:
            voters = len(self.metastorage)
            if not targets.how_many(form, voters) and not self._may_move():
                some = "1 node votes" if voters == 1 else f"{voters} nodes vote"
                return f"{some} in metastorage"
        elif form in (Form.HALF, Form.FIRST_HALF) and nodes == 1:
            return "the cluster has 1 node"
        return ""

    def _may_move(self) -> bool:
        """Tell whether a fault of the schedule may change which nodes vote."""
        kinds = (self.faults[fault.kind].kind for fault in self._schedule)
        return any(kind.destroys or kind.may_move_data for kind in kinds)

    # -- nodes that another fault holds for longer than the nemesis waits

    def _of_busy_nodes(self) -> Iterator[PlanError]:
        from nemesis.exclusion import share_mechanism
        from nemesis.waits import Limits

        wait_s = Limits().wait_s + self.plan.drive.overtime_s
        for number, fault in enumerate(self._schedule):
            target = self._meant(fault)
            if target is None:
                continue
            path = f"nemesis.schedule[{number}].target"
            held = self._held(fault.at_s, fault.at_s + wait_s, number)
            down = {node for _, by, nodes in held if self._kind(by).takes_down for node in nodes}
            joins = self._may_move()
            if targets.by_role(target) and down.issuperset(self._nodes) and not joins:
                text = f"expected a target other than a role: from {fault.at_s:g} s on no node "
                text += f"tells roles for {wait_s:g} s, the longest wait: all are down"
                yield PlanError(path, f"{text} (got {fault.target!r})")
            for other, by, nodes in held:
                # Of nodes that are all held any is.
                every = set(nodes).issuperset(self._nodes) and not self._may_move()
                mine = self._nodes if every else targets.certain(target, self._nodes)
                both = sorted(set(mine) & set(nodes))
                if both and share_mechanism(self._kind(fault), self._kind(by)):
                    on = "any node" if every else some(both)
                    text = f"expected nodes that no fault of the same mechanism holds: {on} is "
                    text += f"under {by.kind} (nemesis.schedule[{other}]) until {_end_s(by):g} s, "
                    text += f"and from {fault.at_s:g} s on it is waited for {wait_s:g} s at most"
                    yield PlanError(path, f"{text} (got {fault.target!r})")

    def _held(
        self, since_s: float, until_s: float, number: int
    ) -> list[tuple[int, PlannedFault, tuple[str, ...]]]:
        """The faults, with their nodes, that for certain hold from ``since_s`` to behind
        ``until_s``, and come before that of ``number``.
        """
        found = []
        for other, fault in enumerate(self._schedule):
            target = self._meant(fault)
            if target is None or not self._lasts(fault) or other == number:
                continue
            before = (fault.at_s, other) < (since_s, number)
            nodes = targets.certain(target, self._nodes)
            if before and nodes and _end_s(fault) > until_s:
                found.append((other, fault, nodes))
        return found

    def _lasts(self, fault: PlannedFault) -> bool:
        """Tell whether the fault holds its nodes to its end: what goes in steps may be over before,
        and what changes members is over once it came about.
        """
        return fault.kind not in PROCEDURES and not self._kind(fault).may_move_data

    def _meant(self, fault: PlannedFault) -> Target | None:
        """Return the target of a fault that comes at its time, at a member; else nothing is
        certain of it.
        """
        kind = self._kind(fault)
        timed = fault.on is None and not kind.strikes_one and not kind.of_spares
        return _parsed(fault.target) if timed else None

    # -- majorities that what destroys data has to leave

    def _of_taken_majorities(self) -> Iterator[PlanError]:
        from nemesis.majority_guard import SPARED_LIMIT_S

        wait_s = SPARED_LIMIT_S + self.plan.drive.overtime_s
        for number, fault in enumerate(self._schedule):
            target = self._meant(fault)
            if target is None or not self._kind(fault).destroys:
                continue
            own = set(targets.certain(target, self._nodes))
            held = self._held(fault.at_s, fault.at_s + wait_s, number)
            out = own.union(*(nodes for _, by, nodes in held if self._takes(by)))
            for group, voters in self._groups():
                left = [node for node in voters if node not in out]
                if own.intersection(voters) and len(left) <= len(voters) // 2:
                    path = f"nemesis.schedule[{number}].target"
                    text = "expected nodes whose data can go, with a majority of every group left "
                    text += f"up and whole: of {group} only {some(left) or 'no voter'} would be"
                    yield PlanError(path, f"{text} (got {fault.target!r})")

    def _takes(self, fault: PlannedFault) -> bool:
        kind = self._kind(fault)
        return kind.takes_down or kind.destroys

    def _groups(self) -> Iterator[tuple[str, Sequence[str]]]:
        """The groups whose voters are known, as far as no fault of the schedule changes them."""
        kinds = (self._kind(fault) for fault in self._schedule)
        if any(kind.may_move_data for kind in kinds):
            return
        if self.metastorage:
            yield "metastorage", self.metastorage
        if self.voters == len(self._nodes):
            yield "every partition", self._nodes

    # -- words

    @property
    def _schedule(self) -> tuple[PlannedFault, ...]:
        return self.plan.nemesis.schedule

    @property
    def _nodes(self) -> tuple[str, ...]:
        return node_names(self.plan)

    def _kind(self, fault: PlannedFault) -> FaultKind:
        return self.faults[fault.kind].kind


def _parsed(text: str) -> Target | None:
    """The target; ``None`` for a kind with a language of its own."""
    try:
        return targets.parse(text)
    except PlanError:
        return None


def _end_s(fault: PlannedFault) -> float:
    return fault.at_s + fault.hold_s
