"""A run while it lives: from the first machine to the last, and the tasks that run beside it.

provision -> set up -> drive and break -> heal -> quiesce -> final reads -> collect

A failure on the way becomes a sentence of ``trouble``; machines are removed all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol

import attrs

from harness import plugins
from harness.clock import NS_PER_S, RunClock, cpu_s
from harness.driving.driver import Driver
from harness.driving.driver_pool import DriverPool, Load, OwnLoad
from harness.errors import FiredrillError, HarnessError
from harness.history.chunks import ChunkWriter, OpenHistory
from harness.history.durable_files import write_atomically
from harness.history.records import Heartbeat, Note, OpType, PhaseMark, Record
from harness.history.regular_files import sha256
from harness.history.run_directory import RunDirectory
from harness.plan.plan import Plan, dumps, node_names, resolved, spare_names
from harness.protocols.changes import TellsChanges
from harness.protocols.claims import JudgesClaims
from harness.protocols.cluster import (
    Cluster,
    LeasesFaults,
    LogsEvents,
    Program,
    Provider,
    System,
)
from harness.protocols.cluster_membership import Membership
from harness.protocols.conflicts import is_conflict
from harness.protocols.fault_kinds import RecordedFaultKind
from harness.protocols.faults import Nemesis, Scene
from harness.protocols.replica_states import TellsStates
from harness.protocols.resource_usage import TellsUsage
from harness.protocols.setting import COLLECT_STATES, QUIESCE
from harness.protocols.statement_language import TakesStatements
from harness.protocols.workload import Workload
from harness.run import rebalance_wait
from harness.run.addresses import forget_addresses, write_addresses
from harness.run.change_recorder import ChangeLog
from harness.run.claim_log import write_claims
from harness.run.controller_health import ControllerHealth
from harness.run.disk_budget import over_cap
from harness.run.exit_monitor import ExitMonitor, monitored
from harness.run.node_usage import UsageLog
from harness.run.progress import Progress
from harness.run.state_log import QUIET_LIMIT_S, StateLog
from harness.run.stop import SETTLE_LIMIT_S, Stop, end
from harness.tasks import together, within


class Guard(Protocol):
    """The process that heals when this process is gone. See ``cli.reaping.guard``."""

    def release(self) -> None:
        """Tell the guard that there is nothing left to heal."""


@attrs.frozen(kw_only=True)
class Parts:
    """The inputs of ``execute`` that the command line builds: the four plug-ins of a run and their
    surroundings.

    ``make_nemesis`` gets the sink of the history, since faults are recorded in it. ``wall_ns`` is
    the wall clock where that is virtual too; the machine's by default. ``open_history`` opens the
    run's stream of records in a directory. ``keep``, where it is given, is asked once the history
    is sealed whether the cluster is to be left up; its argument is ``True`` where the run broke
    off. ``guard`` is released when the cluster was taken down, or left up on purpose.
    ``fault_kinds`` lists the faults that were possible here, ``mix`` the kinds that the plan's were
    drawn from. ``driver_command`` starts a driver process (``harness.driving.protocol``), for plans
    that ask for several. ``altered``, where it is given, is what becomes of a node's program before
    it is installed.
    """

    provider: Provider
    system: System
    workload: Workload
    make_nemesis: Callable[[Callable[[Record], None]], Nemesis]
    versions: dict[str, str]
    machine: dict[str, Any]
    wall_ns: Callable[[], int] | None = None
    open_history: OpenHistory = ChunkWriter
    keep: Callable[[bool], Awaitable[bool]] | None = None
    guard: Guard | None = None
    driver_command: tuple[str, ...] = ()
    fault_kinds: tuple[RecordedFaultKind, ...] = ()
    mix: tuple[str, ...] = ()
    altered: Callable[[Program], Program] | None = None


HEARTBEAT_S = 0.25  # of a run that dies beside its driver processes no more than this is cut off
EVENT_POLL_S = 0.5  # a killed node's events since the last poll are only in its log
OVERTIME_STEP_S = 0.5  # by which clients go on for faults that are not over
POLL_LIMIT_S = 30.0  # nodes that don't answer are skipped well before
ROOM_POLL_S = 5.0  # a node that floods its log fills some hundred megabytes meanwhile
HEAL_LIMIT_S = 130.0  # the nemesis waits for what is being injected, and heals all side by side
COLLECT_LIMIT_S = 30.0  # per node; a frozen node must not hold the run
LAPSES_LIMIT_S = 60.0
TEARDOWN_LIMIT_S = 60.0
KEEP_LIMIT_S = 30.0


class Life:
    """One run while it lives: the parts, the clock, the open history, and the failures so far."""

    def __init__(
        self, *, plan: Plan, run: RunDirectory, parts: Parts, progress: Progress, stop: Stop
    ) -> None:
        self.plan, self.run, self.progress, self.stop = plan, run, progress, stop
        self.driver_command, self.altered = parts.driver_command, parts.altered
        self.keep, self.guard = parts.keep, parts.guard
        self.broke_off = self.ended = False
        self.system, self.workload = parts.system, parts.workload
        loop = asyncio.get_running_loop()
        self.clock = RunClock(loop, parts.wall_ns) if parts.wall_ns else RunClock(loop)
        # Before anything is made: a disk that refuses ends the run with nothing to clean up.
        self.writer = parts.open_history(run.chunks, run_id=run.root.name)
        self.nemesis = parts.make_nemesis(self.writer.append)
        self.exit_monitor = ExitMonitor(parts.provider, self.clock, self.writer.append)
        self.provider = monitored(parts.provider, self.exit_monitor)
        # Where time is virtual nothing is late.
        self.controller_health = None if parts.wall_ns else ControllerHealth(self.clock, cpu_s)
        self.states: StateLog | None = None
        if isinstance(parts.system, TellsStates):
            self.states = StateLog(run, parts.system, self.clock)
        self.usage: UsageLog | None = None
        if isinstance(parts.provider, TellsUsage):
            self.usage = UsageLog(run, parts.provider, self.clock)
        self.changes: ChangeLog | None = None
        if isinstance(parts.system, TellsChanges):
            self.changes = ChangeLog(run, parts.system, self.clock)
        self.checksums: dict[str, str] = {}
        self.explaining: dict[str, str] = {}
        self.logs_left_out: dict[str, int] = {}
        self.trouble: list[str] = []
        self.errors: Counter[str] = Counter()  # of operations, in this phase

    def enter(self, phase: str) -> None:
        """Begin ``phase``, in the history and on the display."""
        self.writer.append(PhaseMark(name=phase, at_ns=self.clock.now_ns()))
        self.progress.phase(phase)
        self.errors.clear()

    def completed(self, type: OpType, error: str | None) -> None:
        """One operation ended so."""
        conflict = is_conflict(self.system.declaration, type, error)
        self.progress.completed(type, error, conflict=conflict)
        if error is not None:
            self.errors[error] += 1

    def finish(self) -> None:
        """End the history. A disk that refuses even that is trouble, and no reason not to seal."""
        acts: tuple[Callable[[], None], ...] = (
            self._close_states,
            self._close_changes,
            self._close_usage,
            self._close_claims,
            self._close_controller_health,
            lambda: self.enter("seal"),
            self.writer.close,
        )
        # Each by itself: a file that the disk refuses must not keep the others from it.
        for act in acts:
            try:
                act()
            # A plug-in may have told what no table takes, and code of its own may run.
            except (Exception, SystemExit) as error:
                self.trouble.append(f"ending the history: {_told(error)}")

    def _close_states(self) -> None:
        if self.states is not None:
            self.checksums |= self.states.close()

    def _close_changes(self) -> None:
        if self.changes is not None:
            self.checksums |= self.changes.close()

    def _close_usage(self) -> None:
        if self.usage is not None:
            self.explaining |= self.usage.close()

    def _close_claims(self) -> None:
        judged = self.provider.claims() if isinstance(self.provider, JudgesClaims) else None
        if judged is not None:
            self.checksums |= write_claims(self.run.root, judged, self.clock)

    def _close_controller_health(self) -> None:
        if self.controller_health is not None:
            self.checksums |= self.controller_health.close(self.run)

    def settle_plan(self) -> dict[str, str]:
        """Write the plan again with the offsets of the faults that waited for a moment, where
        there are any, beside the plan, and return its checksum: sealing puts it into the place of
        the plan once the manifest names it.
        """
        came = self.nemesis.schedule
        if came == self.plan.nemesis.schedule:
            return {}
        try:
            write_atomically(self.run.settled_plan, dumps(resolved(self.plan, came)).encode())
        except HarnessError as error:
            self.trouble.append(f"the offsets of aimed faults are not in the plan: {error}")
            return {}
        return {self.run.plan.name: sha256(self.run.settled_plan)}

    @contextlib.contextmanager
    def within_budget(self) -> Iterator[None]:
        """Stop the run when its time budget is over."""
        if self.stop.budget_s is None:
            yield
            return
        loop = asyncio.get_running_loop()
        # As a user's first Ctrl-C: it heals and seals, where a hard stop would waste the run.
        alarm = loop.call_later(self.stop.budget_s, self.stop.ask, self.stop.budget_text)
        try:
            yield
        finally:
            alarm.cancel()

    async def live(self) -> None:
        """Run the phases between the first container and the last; remove every machine, unless the
        cluster may be kept.
        """
        try:
            membership = await self.stop.unless(self._bring_up())
            if membership is not None:
                await self._exercise(membership)
        finally:
            # Where it may stay up, the verdict decides: see ``leave_or_tear_down``.
            if self.keep is None:
                await self._tear_down()

    async def leave_or_tear_down(self) -> None:
        """After sealing, remove the machines that ``live`` left up, or leave them for good."""
        if self.ended:
            return
        known = len(self.trouble)
        try:
            if self.keep is not None and await self.keep(self.broke_off):
                with contextlib.suppress(OSError):  # only a mark for the command that prunes runs
                    self.run.kept.touch()
                self.ended = await self._attempt("keeping", KEEP_LIMIT_S, self.provider.leave())
                if self.ended and self.guard:
                    self.guard.release()
        finally:
            if not self.ended:
                with contextlib.suppress(OSError):  # the cluster goes all the same
                    self.run.kept.unlink(missing_ok=True)
                await self._tear_down()
            for text in self.trouble[known:]:  # the manifest is written
                self.progress.note(text)

    async def _tear_down(self) -> None:
        """Remove every machine. After a failure the guard is not released, and continues."""
        # Also where it fails: the guard goes on with it, and a second try would cross that.
        self.ended = True
        done = await self._attempt("teardown", TEARDOWN_LIMIT_S, self.provider.teardown())
        if done:
            forget_addresses(self.run)
        if done and self.guard:
            self.guard.release()

    async def _bring_up(self) -> Membership | None:
        """Provision machines, install programs, and wait until the cluster serves; ``None`` where
        it never does since nodes ended by themselves. Spares are not started. Raises
        ``HarnessError``.
        """
        self.enter("provision")
        # A stream that a crash of the machine lost would be taken for one that never was.
        self.writer.sync()
        names, spares = node_names(self.plan), spare_names(self.plan)
        cluster = await self.provider.provision((*names, *spares), self.system.ports)
        cluster = attrs.evolve(cluster, nodes=names, spares=spares)
        if isinstance(self.system, TakesStatements) and self.run.undo.is_dir():
            write_addresses(self.run, cluster)
        try:
            await self._set_up(cluster)
        except FiredrillError as error:  # why it does not serve stands in the nodes' logs
            looks = self.exit_monitor.look(cluster.nodes)
            await self._attempt("looking at the nodes", COLLECT_LIMIT_S, looks)
            await self._collect_logs(cluster)
            if not self.exit_monitor.exits:
                raise
            # That is the store's failure, and judged: no promise of ours that is broken.
            self.trouble.append(f"set-up: {error}")
            return None
        return Membership(cluster)

    async def _set_up(self, cluster: Cluster) -> None:
        programs = {node: self.system.program(node, cluster) for node in cluster.machines}
        if self.altered:
            programs = {node: self.altered(program) for node, program in programs.items()}
        await together(self.provider.install(node, program) for node, program in programs.items())
        self.enter("set-up")
        await self.system.set_up(cluster, self.provider, self._deadline(self.plan.limits.ready_s))

    async def _exercise(self, membership: Membership) -> None:
        """Drive and break, then heal; final reads once the cluster is quiet; collect in any
        case.
        """
        scene = Scene(
            provider=self.provider,
            system=self.system,
            membership=membership,
            clock=self.clock,
            altered=self.altered or (lambda program: program),
        )
        machines = membership.cluster.machines
        # Made before the watches, which ask it for its statistics.
        load = self._load(membership.cluster)
        membership.observe(load.use_nodes)
        watches = {
            "watching the store": asyncio.ensure_future(self._watch(membership)),
            "watching the room": asyncio.ensure_future(self._watch_room()),
            "watching the nodes": asyncio.ensure_future(self.exit_monitor.run(machines)),
        }
        if self.plan.drive.drivers > 1:
            watches["telling that it lives"] = asyncio.ensure_future(self._beat())
        if self.usage is not None:
            # Beside the other polls, since some providers take a second to answer.
            measuring = self.usage.run(lambda: membership.cluster)
            watches["measuring the nodes"] = asyncio.ensure_future(measuring)
        if self.controller_health is not None:
            watches["watching the controller"] = asyncio.ensure_future(
                self.controller_health.run(load.loop_stats)
            )
        try:
            try:
                await self._drive_and_break(scene, load)
            finally:
                self.enter("heal")
                await self._attempt("heal", HEAL_LIMIT_S, self.nemesis.heal_all(scene))
            if not self.stop.skips() and not load.trouble:
                await self._read_the_rest(scene, load)
        finally:
            # From here on nothing is left that a request to stop could skip.
            self.stop.over = True
            for what, watch in watches.items():
                await self._end(what, watch)
            # Before the logs: what clients still have open would go on writing to the nodes.
            await self._attempt("ending the load", COLLECT_LIMIT_S, load.close())
            self.trouble.extend(load.trouble)
            self.enter("collect")
            looks = self.exit_monitor.look(machines)
            await self._attempt("looking at the nodes", COLLECT_LIMIT_S, looks)
            if isinstance(self.provider, LeasesFaults):
                # Asked at the end: a lease may run out at any time, and nothing else would tell.
                asking = self._ask_for_lapses(self.provider)
                await self._attempt("asking for leases that ran out", LAPSES_LIMIT_S, asking)
            await self._collect(membership.cluster)

    async def _ask_for_lapses(self, provider: LeasesFaults) -> None:
        self.trouble.extend(await provider.lapsed())

    def _load(self, cluster: Cluster) -> Load:
        """The load: this process, or the number of driver processes that the plan asks for."""
        drive = self.plan.drive
        if drive.drivers > 1:
            return DriverPool(
                command=self.driver_command,
                count=drive.drivers,
                plan=self.run.plan,
                chunks=self.run.chunks,
                cluster=cluster,
                clock=self.clock,
                op_deadline_s=drive.op_deadline_s,
                observe=self.completed,
                run_id=self.run.root.name,
            )
        driver = Driver(
            clock=self.clock,
            system=self.system,
            cluster=cluster,
            workload=self.workload,
            write=self.writer.extend,
            concurrency=drive.concurrency,
            op_deadline_s=drive.op_deadline_s,
            observe=lambda done: self.completed(done.type, done.error),
        )
        return OwnLoad(self.plan, self.workload, driver, self.system.declaration)

    async def _drive_and_break(self, scene: Scene, load: Load) -> None:
        """The drive phase: clients and nemesis side by side, for the plan's duration."""
        # Ahead of the phase: an interpreter's start would count as a gap in the load.
        await self.stop.unless(load.enlist())
        if self.stop.skips():
            return
        self.enter("drive")
        started_ns = self.clock.now_ns()
        until_ns = started_ns + int(self.plan.drive.duration_s * NS_PER_S)
        breaking = asyncio.ensure_future(self.nemesis.run(scene, started_ns))
        prolonging = asyncio.ensure_future(self._prolong(load, breaking, until_ns))
        try:
            await self.stop.unless(load.drive(until_ns))
        finally:
            await self._end("prolonging the load", prolonging)
            if not (breaking.done() or self.stop.asked or load.trouble):
                self.trouble.append("the fault schedule was not over when the drive phase ended")
            await self._end("the nemesis", breaking)

    async def _prolong(self, load: Load, breaking: asyncio.Future[None], until_ns: int) -> None:
        """Let clients go on past ``until_ns``, within the plan's overtime, until the schedule of
        faults is over.
        """
        last_ns = until_ns + int(self.plan.drive.overtime_s * NS_PER_S)
        step_ns = int(OVERTIME_STEP_S * NS_PER_S)
        while until_ns < last_ns:
            # Ahead of the end: the load would have begun to wait for what is open.
            await self.clock.sleep_until(until_ns - step_ns // 2)
            if breaking.done():
                return
            until_ns = min(until_ns + step_ns, last_ns)
            load.prolong(until_ns)

    async def _read_the_rest(self, scene: Scene, load: Load) -> None:
        """Wait until the cluster is whole and quiet, then read every key that was touched."""
        self.enter("quiesce")
        limit_s = self.plan.limits.quiesce_s
        deadline_s = self._deadline(limit_s)
        # Also what no fault of ours did: final reads need every node, whatever ended it.
        work = self.system.recover(scene.cluster, self.provider, deadline_s)
        await self._attempt(QUIESCE, limit_s + SETTLE_LIMIT_S, work)
        if not self.stop.skips() and self.changes is not None:
            await self.stop.unless(self._await_placement(scene, self.changes))
        if self.stop.skips():
            return
        self.enter("final-reads")
        until_ns = self.clock.now_ns() + int(self.plan.limits.final_reads_s * NS_PER_S)
        done = await self.stop.unless(load.read_all(until_ns))
        if not done and not self.stop.asked:
            limit_s = self.plan.limits.final_reads_s
            why = ", ".join(f"{count} x {error}" for error, count in self.errors.most_common(2))
            text = f"final reads: not every key was read within {limit_s:g} s"
            self.trouble.append(f"{text} ({why})" if why else text)

    async def _await_placement(self, scene: Scene, changes: ChangeLog) -> None:
        """Wait until no data is on its way, no event is left to be handled and no timer of a zone
        runs, or until what is left can be judged.
        """
        healed_ns, told = self.clock.now_ns(), False
        # Stores that move no data are not asked.
        while changes.places_data:
            work = changes.fetch(scene.cluster)
            await self._attempt("fetching changes", POLL_LIMIT_S, work, tell=False)
            left, now_ns = changes.left_open(), self.clock.now_ns()
            over = now_ns >= rebalance_wait.wait_until_ns(left, healed_ns)
            if told and (over or not left):
                waited_s = (now_ns - healed_ns) / NS_PER_S
                what = f"left open: {_first(left)}" if left else "it is"
                text = f"waited {waited_s:.1f} s for data to be in its place: {what}"
                self.writer.append(Note(at_ns=now_ns, text=text))
            if over or not left:
                break
            if not told:
                self.progress.note(f"waiting for data to be in its place: {_first(left)}")
                told = True
            await asyncio.sleep(rebalance_wait.POLL_S)

    async def _watch(self, membership: Membership) -> None:
        """Fetch the store's events, sample its states and show the active faults, until cancelled.
        A poll that fails or hangs is trouble the first time only, and is repeated.
        """
        polls: dict[str, Callable[[Cluster], Coroutine[Any, Any, None]]] = {
            "fetching events": self._fetch_events
        }
        if self.states is not None:
            polls["sampling states"] = self.states.sample
        if self.changes is not None:
            polls["fetching changes"] = self.changes.fetch
        failed: dict[str, None] = {}
        while True:
            for what, poll in polls.items():
                work = poll(membership.cluster)
                if not await self._attempt(what, POLL_LIMIT_S, work, tell=what not in failed):
                    failed[what] = None
            self.progress.faults(self.nemesis.active())
            await asyncio.sleep(EVENT_POLL_S)

    async def _watch_room(self) -> None:
        """End a run that outgrows its directory. A walk over some hundred files takes a few
        milliseconds.
        """
        while True:
            await asyncio.sleep(ROOM_POLL_S)
            if full := over_cap(self.plan, self.run.root):
                self.progress.note(full)
                self.stop.ask(full)

    async def _beat(self) -> None:
        """Append heartbeats, beside driver processes, so that the time is known up to which this
        stream is whole if it is cut off. Without its faults the observations of clients would
        accuse the store.
        """
        while True:
            self.writer.append(Heartbeat(at_ns=self.clock.now_ns()))
            await asyncio.sleep(HEARTBEAT_S)

    async def _fetch_events(self, cluster: Cluster) -> None:
        for event in await self.system.events(cluster, self.clock):
            self.writer.append(event)
            self.nemesis.heard(event)

    async def _collect(self, cluster: Cluster) -> None:
        """Collect last events and every node's logs; a node that does not give them is only
        trouble.
        """
        await self._attempt("collect events", COLLECT_LIMIT_S, self._fetch_events(cluster))
        if self.states is not None:
            # What a client left open may hold its locks up to the deadline of its transaction.
            quiet_s = QUIET_LIMIT_S + self.plan.drive.op_deadline_s
            # A run that was asked to end does not wait for quiet.
            states = self.states.finish(cluster, 0.0 if self.stop.asked else quiet_s)
            await self._attempt(COLLECT_STATES, quiet_s + COLLECT_LIMIT_S, states)
        if self.changes is not None:
            # After the states: what these show was assigned before.
            await self._attempt("collect changes", COLLECT_LIMIT_S, self.changes.fetch(cluster))
        await self._collect_logs(cluster)
        if isinstance(self.system, LogsEvents):
            work = self._read_events(self.system, cluster)
            await self._attempt("read events from logs", COLLECT_LIMIT_S, work)

    async def _read_events(self, system: LogsEvents, cluster: Cluster) -> None:
        for node in cluster.machines:
            for event in await system.logged_events(node, self.run.node(node)):
                self.writer.append(event)

    async def _collect_logs(self, cluster: Cluster) -> None:
        await together(
            self._attempt(f"collect logs of {node}", COLLECT_LIMIT_S, self._collect_log(node))
            for node in cluster.machines
        )

    async def _collect_log(self, node: str) -> None:
        into = self.run.node(node)
        left_out = await self.provider.collect(node, into)
        for name, count in (left_out or {}).items():  # a plug-in's provider may return nothing
            self.logs_left_out[(into / name).relative_to(self.run.root).as_posix()] = count

    async def _end(self, what: str, task: asyncio.Future[None]) -> None:
        """End a task beside the run; that it failed before, or does not end, is trouble."""
        await end(task)
        if not task.done():
            self.trouble.append(f"{what}: went on {SETTLE_LIMIT_S:g} s after it was told to end")
        elif not task.cancelled() and (error := task.exception()):
            self.trouble.append(f"{what} broke off: {_told(error)}")

    async def _attempt(
        self, what: str, limit_s: float, work: Coroutine[Any, Any, None], *, tell: bool = True
    ) -> bool:
        """Await ``work``; a failure or a timeout is trouble (unless ``tell`` is false), and the run
        goes on. Returns whether the work was done.
        """
        try:
            await within(limit_s, work)
            return True
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The work's own: nothing has asked this task to end.
            text = f"{what}: {_told(error)}"
        # A system or provider may be a plug-in's: its bug must not keep the others from telling.
        except (Exception, SystemExit) as error:
            text = f"{what}: {_told(error)}"
        if tell:
            self.trouble.append(text)
        return False

    def _deadline(self, limit_s: float) -> float:
        return asyncio.get_running_loop().time() + limit_s


def _told(error: BaseException) -> str:
    if isinstance(error, FiredrillError):
        return str(error)
    # A socket's or a disk's, which says what it was; at its limit ``within`` raises another error.
    if isinstance(error, OSError):
        return f"it raised {type(error).__name__}: {error}"
    return f"it raised {plugins.told(error)}"


def _first(left: Sequence[rebalance_wait.Left]) -> str:
    more = f" and {len(left) - 1} more" if len(left) > 1 else ""
    return f"{left[0].text}{more}"
