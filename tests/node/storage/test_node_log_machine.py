"""The shared log as a state machine: whatever is written, cut, killed half-way, torn or flipped,
what was acknowledged is recovered, or the damage is told; it is never silently something else.
"""

from __future__ import annotations

import contextvars
import copy
import random
from collections.abc import Iterator
from itertools import accumulate

import attrs
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from clusters.providers.sim import disk as sim_disk
from clusters.providers.sim.disk import Platter, SimDisk
from clusters.providers.sim.loop import simulate
from clusters.reference.node import bugs
from clusters.reference.node.raft.types import Entry, HardState, Mark
from clusters.reference.node.runtime import DiskError
from clusters.reference.node.storage import shared_log
from clusters.reference.node.storage.log_records import Compaction, CorruptLog, Update
from clusters.reference.node.storage.shared_log import SharedLog

GROUPS = ("p0", "p1", "p2")


@attrs.frozen
class Held:
    """What a log must hold of one group."""

    hard_state: HardState = attrs.field(factory=HardState)
    base: int = 0
    entries: tuple[Entry, ...] = ()

    @property
    def last(self) -> int:
        return self.base + len(self.entries)


Model = dict[str, Held]


def after(model: Model, update: Update) -> Model:
    """``model`` once ``update`` counts."""
    others = {group: held for group, held in model.items() if group != update.group}
    if update.dropped:
        return others
    held = model.get(update.group, Held())
    hard = held.hard_state if update.hard_state is None else update.hard_state
    base = held.base if update.cut is None else update.cut.base.index
    entries = tuple(entry for entry in held.entries if entry.index > base)
    if update.entries:
        first = update.entries[0].index
        entries = tuple(entry for entry in entries if entry.index < first) + update.entries
    return others | {update.group: Held(hard, base, entries)}


def token_of(log: SharedLog) -> Model:
    return {
        group: Held(state.hard_state, state.base.index, tuple(state.entries))
        for group, state in log.groups.items()
    }


class Dying(SimDisk):
    """Writes a part of what it is given at one change, unsynced, and nothing any more then."""

    changes_left: int | None = None
    part = 0.0

    def _dies(self) -> bool:
        if self.changes_left is not None:
            self.changes_left -= 1
        return self.changes_left is not None and self.changes_left < 0

    async def append(self, name: str, data: bytes, *, sync: bool) -> None:
        if self._dies():
            await super().append(name, data[: round(self.part * len(data))], sync=False)
            raise DiskError("killed here")
        await super().append(name, data, sync=sync)

    async def delete(self, name: str) -> None:
        if self._dies():
            raise DiskError("killed here")
        await super().delete(name)


@st.composite
def wishes(draw: st.DrawFn) -> tuple[str, str, float, list[int]]:
    """One update of a group, as far as it can be said before its state is known."""
    kinds = ["append", "append", "append", "overwrite", "vote", "cut", "drop"]
    return (
        draw(st.sampled_from(GROUPS)),
        draw(st.sampled_from(kinds)),
        draw(st.floats(0, 1)),
        draw(st.lists(st.integers(0, 90), min_size=1, max_size=4)),
    )


COMMIT = st.lists(wishes(), min_size=1, max_size=3)


class LogMachine(RuleBasedStateMachine):
    """``model`` is what was acknowledged, ``lasts`` what may be left where the last record goes."""

    fsync = True

    def __init__(self) -> None:
        super().__init__()
        self.platter = Platter(random.Random(1))
        self.model: Model = {}
        self.lasts: list[Model] | None = None
        self.number = 0
        self.reopen()

    def reopen(self) -> None:
        self.disk = Dying(self.platter)
        self.log = self.recovered(self.disk)

    def recovered(self, disk: SimDisk) -> SharedLog:
        log = SharedLog(disk, fsync=self.fsync)
        simulate(log.open())
        return log

    def updates(self, commit: list[tuple[str, str, float, list[int]]]) -> Iterator[Update]:
        model = self.model
        for group, kind, share, sizes in commit:
            update = self.update(model.get(group, Held()), group, kind, share, sizes)
            model = after(model, update)
            yield update

    def update(self, held: Held, group: str, kind: str, share: float, sizes: list[int]) -> Update:
        self.number += 1
        term = held.hard_state.term + 1
        if kind == "vote":
            return Update(group, HardState(term, f"n{self.number}"), ())
        if kind == "drop":
            return Update(group, None, (), dropped=True)
        if kind == "cut":
            base = held.base + round(share * (held.last - held.base))
            return Update(group, None, (), Compaction(Mark(base, 1)))
        first = held.last + 1
        if kind == "overwrite" and held.entries:
            first = held.base + 1 + round(share * (held.last - held.base - 1))
        entries = tuple(
            Entry(term, first + at, b"%d" % self.number + b"x" * size)
            for at, size in enumerate(sizes)
        )
        return Update(group, HardState(term, "n1") if share > 0.8 else None, entries)

    @rule(commit=COMMIT)
    def write(self, commit: list[tuple[str, str, float, list[int]]]) -> None:
        updates, before = [*self.updates(commit)], set(self.platter.files)
        simulate(self.log.append(updates))
        models = [*accumulate(updates, after, initial=self.model)]
        self.model = models[-1]
        # Where a segment went, because what counted in it was written again, more hangs on that.
        self.lasts = models if before <= set(self.platter.files) else None

    @rule(commit=COMMIT, changes=st.integers(0, 4), part=st.floats(0, 1))
    def be_killed_while_writing(
        self, commit: list[tuple[str, str, float, list[int]]], changes: int, part: float
    ) -> None:
        updates = [*self.updates(commit)]
        models = [*accumulate(updates, after, initial=self.model)]
        self.disk.changes_left, self.disk.part = changes, part
        try:
            simulate(self.log.append(updates))
            models = models[-1:]
        except DiskError:
            pass
        self.platter.crash()
        self.reopen()
        assert token_of(self.log) in models
        self.model, self.lasts = token_of(self.log), None

    @rule()
    def lose_power(self) -> None:
        self.platter.crash()
        self.reopen()

    @rule()
    def restart(self) -> None:
        self.reopen()

    @rule(share=st.floats(0, 1), bit=st.integers(0, 7))
    def flip_a_bit(self, share: float, bit: int) -> None:
        names = sorted(name for name, file in self.platter.files.items() if file.data)
        if not names:
            return
        platter = copy.deepcopy(self.platter)
        name = names[round(share * 7919) % len(names)]
        data = platter.files[name].data
        data[round(share * (len(data) - 1))] ^= 1 << bit
        log = SharedLog(SimDisk(platter))
        try:
            simulate(log.open())
        except CorruptLog as error:
            told = error
        else:
            told = None
        if told is not None:
            # Or a group misses what stood in a segment that is gone, because of the last record.
            assert told.file == name or self.lasts is None
            return
        assert name == names[-1]
        assert log.torn is not None
        assert self.lasts is None or token_of(log) in self.lasts

    @invariant()
    def it_holds_what_was_acknowledged(self) -> None:
        assert token_of(self.log) == self.model


LIMITS = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],  # to find a smaller example takes minutes
    suppress_health_check=list(HealthCheck),
)
PATIENT = settings(LIMITS, max_examples=1000, report_multiple_bugs=False)


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_log, "SEGMENT_BYTES", 500)
    monkeypatch.setattr(shared_log, "COMMIT_BYTES", 150)
    monkeypatch.setattr(sim_disk, "SECTOR_BYTES", 32)


def test_what_was_acknowledged_is_recovered_or_the_damage_is_told() -> None:
    run_state_machine_as_test(LogMachine, settings=LIMITS)


class Unsynced(LogMachine):
    """The same log with the planted bug ``no-fsync``."""

    fsync = False


def test_the_machine_finds_a_log_that_is_not_synced() -> None:
    with pytest.raises((AssertionError, CorruptLog)):
        run_state_machine_as_test(Unsynced, settings=PATIENT)


def test_the_machine_finds_a_log_that_takes_any_damage_for_a_torn_tail() -> None:
    def run() -> None:
        bugs.switch_on(["torn-tail-accepted"])
        run_state_machine_as_test(LogMachine, settings=PATIENT)

    with pytest.raises(AssertionError):
        contextvars.copy_context().run(run)
