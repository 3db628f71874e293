"""The judge: holds every fact that a message states against disks, clocks and leases as they are
in the instant at which it leaves.

It is told by the network (``sent``), the disks (``inserted``, ``changed``, ``replaced``,
``deleted``, ``wiped``) and the machines (``started``, ``declared``), and knows of the store only
what its reader says. What it costs is bounded by what happens: each synced byte is read once, each
entry of a log compared once a follower.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise

from clusters.providers.sim.disk import Platter
from clusters.providers.sim.loop import true_loop
from clusters.providers.sim.machine import Clocks
from clusters.providers.sim.oracles.contents import LOG, Contents
from clusters.providers.sim.oracles.durability import Durability
from clusters.providers.sim.oracles.duties import DutyList
from clusters.providers.sim.oracles.erasures import Erasures
from clusters.providers.sim.oracles.histories import Histories
from clusters.providers.sim.oracles.isolation import (
    Locks,
    Outcomes,
    Snapshots,
    answer_clock,
    newest_read,
    timestamp_order,
)
from clusters.providers.sim.oracles.leases import Leases
from clusters.providers.sim.oracles.memberships import Configurations, Elections, Promotions
from clusters.providers.sim.oracles.resets import Resets
from clusters.providers.sim.oracles.synced_disks import Lives, SyncedDisk, SyncedLog
from clusters.providers.sim.oracles.tenures import Tenures
from clusters.providers.sim.oracles.topologies import SteadyLeader, Topologies
from clusters.providers.sim.oracles.upkeep import Upkeep
from harness.protocols.claims import (
    Acknowledgement,
    AnswerClock,
    Base,
    Claim,
    ClaimBroken,
    ClaimsReader,
    ClaimsReport,
    Command,
    CommitClaim,
    CommitLearnt,
    CopyGivenUp,
    DiskReader,
    Duties,
    EndRefused,
    Fact,
    ForcedReset,
    Inspection,
    LeaderLog,
    LeaseRenewal,
    LockGrant,
    LockRelease,
    LogEntry,
    LoggedWrites,
    LogMatch,
    LogUpdate,
    Member,
    NewestRead,
    NewGeneration,
    NewVersions,
    NodeDeparture,
    NodeJoined,
    NoOpEntry,
    Outcome,
    OutcomeDrop,
    Placement,
    PreparedLocks,
    PrimaryAct,
    PrimaryGrant,
    ReadsValid,
    RecoveredLog,
    ReplicaContent,
    SharedRead,
    SnapshotRead,
    StableMembers,
    Statement,
    StateStep,
    TermClaim,
    TimersResumed,
    TimestampOrder,
    TransactionDecided,
    TransactionEnd,
    TransactionOver,
    VoteClaim,
    term_of,
)

TALKING_S = 0.5  # between two messages of a link that is whole: it is pinged more often
EXAMPLES = 100  # of each claim are kept; the rest is counted
RECORD = "a record of its log"
_OF_TOPOLOGY = (NodeJoined, NodeDeparture, TimersResumed, Duties, Placement)


class Judge:
    """Of one simulated run. ``reader`` is the store's part."""

    def __init__(self, reader: ClaimsReader) -> None:
        self._reader = reader
        self._disks: dict[str, SyncedDisk] = {}
        self._lives = Lives()
        self._durability = Durability(self._lives)
        self._leases = Leases(reader, self._on_majority)
        self._locks, self._outcomes, self._snapshots = Locks(), Outcomes(), Snapshots()
        self._upkeep, self._tenures, self._contents = Upkeep(), Tenures(), Contents()
        self._elections, self._configurations = Elections(), Configurations()
        self._histories = Histories()
        self._promotions = Promotions(self._lives, self._histories)
        self._heard: dict[tuple[str, str], float] = {}  # by link: the last message between nodes
        self._resets = Resets(
            disks=self._disks,
            lives=self._lives,
            durability=self._durability,
            configurations=self._configurations,
            histories=self._histories,
            talking=self._talking,
        )
        self._steady = SteadyLeader()
        self._topologies = Topologies(self._leases, reader.drift, self._talking)
        self._duties = DutyList(self._talking, self._has_copy)
        self._erasures = Erasures(self._lives, self._durability)
        self._leaders: dict[int, str] = {}  # of the log that the renewals are in, by term
        self._lease_group = ""  # whose log the renewals are in
        # When the disk of each member had an entry: that of a majority is when it could be
        # committed. By member, since a disk that is read again has it no second time.
        self._synced_s: dict[tuple[str, int, int], dict[str, float]] = {}
        self._judged: Counter[Claim] = Counter()
        self._broken: Counter[Claim] = Counter()
        self._examples: list[ClaimBroken] = []
        self._rebuilding = False

    def report(self) -> ClaimsReport:
        """Everything up to now."""
        return ClaimsReport(
            judged={claim: self._judged[claim] for claim in Claim},
            broken={claim: self._broken[claim] for claim in Claim if self._broken[claim]},
            examples=tuple(self._examples),
        )

    # Programs.

    def started(
        self,
        node: str,
        boot: str,
        clocks: Clocks,
        running: Callable[[], bool],
        files: Mapping[str, bytes],
    ) -> None:
        """A program starts on the machine ``node`` with these ``files``; ``running`` says whether
        it still runs.
        """
        self._reader.configured(files)
        self._leases.started(node, boot, clocks, running)

    def declared(self, node: str, event: object) -> None:
        """The program on ``node`` declares what no message says."""
        disk = self._disks[node]
        for name, fact in self._reader.declared(node, event):
            self._weigh(disk, name, fact)

    # Messages.

    def sent(self, link: tuple[str, str], connection: int, payload: bytes) -> None:
        """A message leaves ``link[0]``; hosts without a disk of ours are clients."""
        source, to = link
        disk = self._disks.get(source)
        said: Iterable[Statement]
        if disk is None:
            for message, fact in self._reader.asked(to, connection, payload):
                self._weigh(self._disks[to], message, fact)
            return
        if to in self._disks:
            self._heard[link] = true_loop().true_time()
            said = self._reader.between(source, to, connection, payload)
        else:
            said = self._reader.answered(source, connection, payload)
        for message, fact in said:
            self._weigh(disk, f"{message} to {to}", fact)

    def ended(self, link: tuple[str, str], connection: int) -> None:
        """The connection is over for the program on ``link[0]``."""
        disk = self._disks.get(link[0])
        if disk is not None and link[1] not in self._disks:
            for message, fact in self._reader.ended(link[0], connection):
                self._weigh(disk, message, fact)

    def _weigh(self, disk: SyncedDisk, message: str, fact: Fact) -> None:
        durability = self._durability
        text: str | None
        if isinstance(fact, TermClaim):
            self._elections.voted(disk, fact)
            claim, text = Claim.HARD_STATE_SYNCED, durability.term_told(disk, fact)
        elif isinstance(fact, LeaderLog):
            durability.log_told(fact)
            if fact.group == self._lease_group:
                self._leaders[fact.term] = disk.node
            claim = Claim.COMMITTED_ON_MAJORITY
            text = self._elections.leads(disk, fact.group, fact.term)
        elif isinstance(fact, LogMatch):
            claim, text = Claim.KNOWN_AFTER_CRASH, durability.log_held(disk, fact)
        elif isinstance(fact, CommitClaim):
            before = durability.commit_index(fact.group)
            if fact.index <= before:
                return  # told with every message; once is enough
            claim, text = Claim.COMMITTED_ON_MAJORITY, durability.committed(disk, fact)
            self._committed(disk, fact, before + 1)
            commit = durability.commit_index(fact.group)
            self._histories.committed(true_loop().true_time(), fact.group, commit)
        elif isinstance(fact, CommitLearnt):
            claim, text = Claim.COMMITTED_ON_MAJORITY, durability.learnt(disk, fact)
        elif isinstance(fact, VoteClaim):
            claim, text = Claim.COMMITTED_ON_MAJORITY, durability.voted(disk, fact)
        elif isinstance(fact, PrimaryAct):
            claim = Claim.LEASE_VALID
            text, overtaken = self._leases.acted(disk.node, fact)
            self._conclude(Claim.ONE_PRIMARY, disk.node, message, overtaken)
        elif isinstance(fact, Acknowledgement):
            claim, text = Claim.DURABLE_ON_MAJORITY, durability.acknowledged(fact)
        elif isinstance(fact, RecoveredLog):
            claim, text = Claim.KNOWN_AFTER_CRASH, durability.recovered(disk, fact)
        elif isinstance(fact, AnswerClock):
            claim, text = Claim.CLOCK_CARRIED, answer_clock(fact)
        elif isinstance(fact, ReplicaContent):
            claim, text = Claim.REPLICAS_AGREE, self._contents.told(disk.node, fact)
        elif isinstance(fact, NewestRead):
            claim, text = Claim.READS_NEWEST, newest_read(fact)
        elif isinstance(fact, CopyGivenUp):
            self._erasures.begin_anew()
            return
        elif isinstance(fact, Inspection):
            told = f"of {fact.group}: {fact.problem}" if fact.problem else ""
            claim, text = Claim.INVARIANTS_HOLD, told
        else:
            self._judge_transaction(disk, message, fact)
            return
        if text is not None:
            self._conclude(claim, disk.node, message, text)

    def _judge_transaction(self, disk: SyncedDisk, message: str, fact: Fact) -> None:
        node = disk.node
        if isinstance(fact, LockGrant):
            self._conclude(Claim.LOCK_EXCLUSIVE, node, message, self._locks.locked(fact))
            late = self._tenures.granted(true_loop().true_time(), node, fact)
            self._conclude(Claim.LOCK_LET_GO, node, message, late)
        elif isinstance(fact, EndRefused):
            self._tenures.ended(fact.group, fact.txn)
        elif isinstance(fact, TransactionOver):
            self._tenures.over(true_loop().true_time(), node, fact)
        elif isinstance(fact, SharedRead):
            self._conclude(Claim.LOCK_EXCLUSIVE, node, message, self._locks.read(fact))
        elif isinstance(fact, ReadsValid):
            lost = self._locks.valid(true_loop().true_time(), fact)
            self._conclude(Claim.LOCK_KEPT, node, message, lost)
        elif isinstance(fact, LockRelease):
            self._locks.unlocked(true_loop().true_time(), fact)
            self._tenures.ended(fact.group, fact.txn)
            self._conclude(Claim.LOCK_KEPT, node, message, self._durability.undecided(fact))
        elif isinstance(fact, PreparedLocks):
            self._tenures.logged(fact.group, fact.txn)
            self._conclude(Claim.LOCK_KEPT, node, message, self._locks.prepared(fact))
        elif isinstance(fact, TransactionEnd):
            self._locks.finished(fact)
        elif isinstance(fact, TransactionDecided):
            self._tenures.decided(true_loop().true_time(), node, fact.group, fact.txn)
        elif isinstance(fact, LoggedWrites):
            self._tenures.logged(fact.group, fact.txn)
            if self._durability.is_void(fact):
                return
            shared, lost = self._locks.written(fact)
            self._conclude(Claim.LOCK_EXCLUSIVE, node, message, shared)
            self._conclude(Claim.LOCK_KEPT, node, message, lost)
        elif isinstance(fact, Outcome):
            told = self._outcomes.told(node, message, fact)
            self._conclude(Claim.ONE_OUTCOME, node, message, told)
        elif isinstance(fact, OutcomeDrop):
            self._outcomes.forgotten(fact)
            text = self._locks.forgotten(fact) or self._durability.ended(fact)
            self._conclude(Claim.ONE_OUTCOME, node, message, text)
        elif isinstance(fact, NoOpEntry):
            needless = self._upkeep.needless(true_loop().true_time(), fact)
            self._conclude(Claim.NEEDED_ENTRIES, node, message, needless)
        elif isinstance(fact, SnapshotRead):
            self._conclude(Claim.SNAPSHOT_STABLE, node, message, self._snapshots.read(fact))
        elif isinstance(fact, NewVersions):
            self._conclude(Claim.SNAPSHOT_STABLE, node, message, self._snapshots.installed(fact))
        elif isinstance(fact, TimestampOrder):
            self._conclude(Claim.SNAPSHOT_STABLE, node, message, timestamp_order(fact))

    def _committed(self, disk: SyncedDisk, fact: CommitClaim, first: int) -> None:
        """Follow what newly committed entries did."""
        for index in range(first, self._durability.commit_index(fact.group) + 1):
            mark = self._durability.mark(disk, fact.group, fact.term, index) or 0
            self._configurations.committed(fact.group, index, mark)
            since_s = sorted(self._synced_s.pop((fact.group, index, mark), {}).values())
            repeated = self._durability.repeats(fact.group, index, mark)
            cut = self._durability.is_cut(fact.group, index, mark)
            for did in self._reader.committed(fact.group, index, mark):
                if repeated and not isinstance(did, NewVersions | ReplicaContent):
                    continue  # it was told in the generation before
                if cut and isinstance(did, NewVersions):
                    continue  # of a majority that comes back to what a reset has cut off
                if isinstance(did, LeaseRenewal):
                    on_majority_s = self._on_majority_s(fact.group, since_s)
                    self._leases.renewed(on_majority_s, did)
                    self._topologies.renewed(since_s[0], on_majority_s, did.holder)
                elif isinstance(did, _OF_TOPOLOGY):
                    on_majority_s = self._on_majority_s(fact.group, since_s)
                    times_s, writer = (since_s[0], on_majority_s), self._leaders.get(term_of(mark))
                    self._judge_topology(disk, f"entry {index}", did, times_s, writer or "")
                elif isinstance(did, PrimaryGrant):
                    on_majority_s = self._on_majority_s(fact.group, since_s)
                    text = self._leases.granted(since_s[0], on_majority_s, did)
                    self._conclude(Claim.ONE_PRIMARY, disk.node, f"entry {index}", text)
                elif isinstance(did, ForcedReset):
                    now_s, holder = true_loop().true_time(), self._leases.holder(did.root)
                    text = self._resets.forced(now_s, disk.node, did, holder)
                    self._conclude(Claim.RESET_OWED, disk.node, f"entry {index}", text)
                elif isinstance(did, StableMembers):
                    text = self._resets.stable(did)
                    self._conclude(Claim.COMMITTED_ON_MAJORITY, disk.node, f"entry {index}", text)
                elif isinstance(did, StateStep):
                    text = did.problem and f"{did.what}: {did.problem}"
                    self._conclude(Claim.STATE_FOLLOWS, disk.node, f"entry {index}", text)
                elif isinstance(did, ReplicaContent):
                    text = self._contents.told(LOG, did)
                    self._conclude(Claim.REPLICAS_AGREE, disk.node, f"entry {index}", text)
                else:
                    self._judge_transaction(disk, f"entry {index} of {fact.group}", did)

        if fact.group == self._lease_group:
            self._turn(disk, fact.term)

    def _judge_topology(
        self,
        disk: SyncedDisk,
        message: str,
        fact: Fact,
        times_s: tuple[float, float],
        writer: str,
    ) -> None:
        """``times_s``: since when a disk, and since when a majority has had what ``writer`` has
        written.
        """
        logged_s, on_majority_s = times_s
        if isinstance(fact, NodeJoined):
            self._topologies.joined(on_majority_s, fact)
        elif isinstance(fact, NodeDeparture):
            text = self._topologies.departed(logged_s, writer, fact)
            self._conclude(Claim.DEPARTURE_OWED, disk.node, message, text)
        elif isinstance(fact, TimersResumed):
            text = self._topologies.resumed(logged_s, writer, fact)
            self._conclude(Claim.DOWNTIME_LEFT_OUT, disk.node, message, text)
        elif isinstance(fact, Duties):
            self._duties.changed(fact)
        elif isinstance(fact, Placement):
            self._erasures.placed(true_loop().true_time(), fact)

    def _turn(self, disk: SyncedDisk, term: int) -> None:
        """The leader of the log that the renewals are in goes on."""
        leader, message = disk.node, "what it has committed"
        passed_s = self._steady.turn(true_loop().true_time(), leader, term)
        for text in self._topologies.turn(leader, passed_s):
            self._conclude(Claim.DEPARTURE_OWED, leader, message, text)
        for text in self._duties.turn(leader, passed_s):
            self._conclude(Claim.DUTY_DONE, leader, message, text)

    def _has_copy(self, node: str, root: str) -> bool:
        disk = self._disks.get(node)
        return disk is not None and any(
            self._durability.root(group) == root
            and not log.left
            and bool(log.members)
            and bool(log.members[-1][1].voters)
            for group, log in disk.logs.items()
        )

    def _on_majority_s(self, group: str, since_s: list[float]) -> float:
        """When a majority had an entry that disks have had since ``since_s``, ascending."""
        voters = self._lives.members(group)[0][1].voters
        return since_s[min(len(voters) // 2, len(since_s) - 1)]

    def _talking(self, one: str, other: str) -> bool:
        links = (one, other), (other, one)
        since_s = true_loop().true_time() - TALKING_S
        return one == other or all(self._heard.get(link, 0.0) >= since_s for link in links)

    def _on_majority(self, index: int, mark: int) -> bool:
        return not self._lives.shortfall(self._lease_group, index, mark)

    def _conclude(self, claim: Claim, node: str, message: str, text: str | None) -> None:
        if text is None:
            return
        self._judged[claim] += 1
        if not text:
            return
        self._broken[claim] += 1
        if self._broken[claim] <= EXAMPLES:
            self._examples.append(
                ClaimBroken(
                    claim=claim,
                    node=node,
                    at_s=true_loop().true_time(),
                    message=message,
                    detail=text,
                )
            )

    # Disks.

    def inserted(self, platter: Platter) -> None:
        """The machine of ``platter`` is part of the cluster."""
        self._insert(platter, self._reader.disk())

    def _insert(self, platter: Platter, reader: DiskReader) -> None:
        self._disks[platter.node] = SyncedDisk(platter.node, reader)

    def changed(self, platter: Platter, name: str) -> None:
        """More of file ``name`` is synced, or less of it is there."""
        disk, file = self._disks[platter.node], platter.files[name]
        start = disk.ends.get(name, 0)
        if file.durable_bytes < start:
            self._rebuild(platter)
        elif file.durable_bytes > start:
            data = bytes(file.data[start : file.durable_bytes])
            disk.ends[name], facts = disk.reader.read(name, start, data)
            self._take(platter, disk, facts)

    def replaced(self, platter: Platter, name: str) -> None:
        """The whole file ``name`` is another one."""
        if self._disks[platter.node].ends.pop(name, 0):
            self._rebuild(platter)
        else:
            self.changed(platter, name)

    def deleted(self, platter: Platter, name: str) -> None:
        """File ``name`` is no more: what counted in it must stand elsewhere by now."""
        disk = self._disks[platter.node]
        named = next((group for group, log in disk.logs.items() if log.file == name), None)
        if named is not None:
            text = f"{name} is deleted, which stands for the entries of {named} that were cut off"
            self._conclude(Claim.KNOWN_AFTER_CRASH, disk.node, RECORD, text)
        if not disk.ends.get(name, 0):
            return
        before = {group: log for group, log in disk.logs.items() if not log.left}
        self._rebuild(platter)
        for group, log in before.items():
            text = _lost(log, self._disks[platter.node].log(group))
            if text:
                text = f"{name} is deleted, and with it {text} of {group}"
                self._conclude(Claim.KNOWN_AFTER_CRASH, platter.node, RECORD, text)

    def wiped(self, platter: Platter) -> None:
        """The disk is empty: the life of the member on it is over."""
        self._disks[platter.node].gone = True
        self.inserted(platter)

    def _rebuild(self, platter: Platter) -> None:
        """Read the disk as a start would: data that was read is no longer there. What its records
        did was judged when they were written; snapshots that they name may be gone since.
        """
        before = self._disks[platter.node]
        left = {name: log for name, log in before.logs.items() if log.left}
        self._insert(platter, before.reader.again())
        self._rebuilding = True
        try:
            for name in sorted(platter.files):
                self.changed(platter, name)
        finally:
            self._rebuilding = False
        # Their records may be gone: nothing of theirs is written any more.
        disk = self._disks[platter.node]
        disk.logs.update({name: log for name, log in left.items() if name not in disk.dropped})

    def _take(self, platter: Platter, disk: SyncedDisk, facts: list[Fact]) -> None:
        # A log that is written anew says once more which replica of before is gone.
        again = {f.group for f in facts if isinstance(f, Member) and _is_known(disk, f)}
        for fact in facts:
            if isinstance(fact, LogUpdate):
                if fact.dropped and not self._rebuilding and fact.group not in again:
                    self._judge_erasure(disk, fact.group)
                self._logged(platter, disk, fact)
            elif isinstance(fact, NewGeneration):
                self._began(disk, fact)
            elif isinstance(fact, Member) and fact.group:
                self._lives.replaced(disk, fact.group, fact.name)
            elif isinstance(fact, Member):
                disk.member = fact.name
                self._lives.by_member[fact.name] = disk

    def _began(self, disk: SyncedDisk, fact: NewGeneration) -> None:
        disk.logs[fact.successor] = disk.logs.setdefault(fact.group, SyncedLog()).leave()
        self._lives.changed(fact.successor)
        cut = self._durability.began(disk, fact)
        if cut is None:
            return
        self._snapshots.cut(fact.root)
        for txn in sorted(cut):
            self._cut(fact.root, txn)

    def _cut(self, root: str, txn: str) -> None:
        self._locks.cut(root, txn)
        self._outcomes.cut(txn)

    def _logged(self, platter: Platter, disk: SyncedDisk, update: LogUpdate) -> None:
        group = update.group
        if update.dropped:
            disk.dropped[group] = disk.logs.pop(group, SyncedLog())
            self._lives.changed(group)
            return
        log = disk.logs.get(group)
        if log is None:
            log = disk.logs[group] = SyncedLog()
        members, now_s = log.members[-1:], true_loop().true_time()
        self._judge_members(platter, log, update)
        if update.base is not None:
            self._durability.cut_off(group, log, update.base)
        replaced = log.take(update)
        self._histories.synced(now_s, disk.node, group, log.last_index)
        if not self._rebuilding:
            text = self._durability.replaced(update, replaced)
            self._conclude(Claim.COMMITTED_ON_MAJORITY, disk.node, RECORD, text or None)
            if update.base is not None and update.base.file:
                cut = _unsynced_snapshot(platter, update.base, group)
                self._conclude(Claim.KNOWN_AFTER_CRASH, disk.node, RECORD, cut)
        if log.members[-1:] != members:
            self._lives.changed(group)
        durability = self._durability
        for entry in update.entries:
            fresh = False
            if durability.commit_index(group) < entry.index:
                since_s = self._synced_s.setdefault((group, entry.index, entry.mark), {})
                # What a generation began with was judged in the one before.
                inherited = durability.inherits(group, entry.index, entry.mark)
                fresh = not (since_s or inherited or self._rebuilding)
                since_s.setdefault(disk.member_of(group), now_s)
            if entry.says:
                durability.logged(group, entry)
                self._configurations.logged(group, entry)
                if fresh:
                    self._promotions.logged(now_s, group, entry)
                if durability.is_cut(group, entry.index, entry.mark):
                    self._late(group, entry)
                self._renewals(group, disk.node, entry)
                if fresh:
                    for each in entry.says:
                        self._judge_transaction(disk, RECORD, each)

    def _judge_erasure(self, disk: SyncedDisk, group: str) -> None:
        text = self._erasures.erased(true_loop().true_time(), disk, group, disk.log(group))
        self._conclude(Claim.COPY_SPARED, disk.node, RECORD, text)

    def _judge_members(self, platter: Platter, log: SyncedLog, update: LogUpdate) -> None:
        """Hold the members that ``update`` names against those before them."""
        if self._rebuilding:
            return
        found, node = self._configurations, platter.node
        self._conclude(Claim.COMMITTED_ON_MAJORITY, node, RECORD, found.stepped(log, update))
        for before, after in pairwise(found.changes(log, update)):
            text = self._promotions.promoted(update.group, before, after)
            self._conclude(Claim.CAUGHT_UP, node, RECORD, text)
        if update.base is not None:
            commit = self._durability.commit_index(update.group)
            cut = found.cut(log, update.group, update.base, commit)
            self._conclude(Claim.COMMITTED_ON_MAJORITY, node, RECORD, cut)
        text = self._durability.reconfigured(log, update)
        self._conclude(Claim.COMMITTED_ON_MAJORITY, platter.node, RECORD, text)

    def _late(self, group: str, entry: LogEntry) -> None:
        """An earlier generation goes on, as those do that do not know of the reset yet."""
        for fact in entry.says:
            if isinstance(fact, Command) and fact.txn:
                self._cut(self._durability.root(group), fact.txn)

    def _renewals(self, group: str, node: str, entry: LogEntry) -> None:
        for fact in entry.says:
            if isinstance(fact, LeaseRenewal):
                self._lease_group = group
                self._leases.renewal(node, entry, fact)


def _is_known(disk: SyncedDisk, fact: Member) -> bool:
    return bool(fact.group) and disk.member_of(fact.group) == fact.name


def _lost(before: SyncedLog, after: SyncedLog) -> str:
    """What of a log is no longer on its disk, where something is missing."""
    if (after.term, after.vote) != (before.term, before.vote):
        return f"the vote of term {before.term}"
    if after.base_index < before.base_index:
        return f"the cut at entry {before.base_index}"
    if after.last_index < before.last_index:
        return f"the entries from {after.last_index + 1} to {before.last_index}"
    if after.marks and after.first > after.base_index + 1:
        return f"the entries from {after.base_index + 1} to {after.first - 1}"
    return ""


def _unsynced_snapshot(platter: Platter, base: Base, group: str) -> str:
    file = platter.files.get(base.file)
    synced = 0 if file is None else file.durable_bytes
    if synced >= base.size_bytes:
        return ""
    return (
        f"{group} is cut at entry {base.index}, and {synced} of the {base.size_bytes} bytes "
        f"of {base.file} that stand for it are synced"
    )
