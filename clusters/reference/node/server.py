"""The life of a node: recover, listen, wait for the founding, run the groups, hand over."""

from __future__ import annotations

import asyncio
import logging

from clusters.reference.node import bugs, events
from clusters.reference.node.composition import Components
from clusters.reference.node.config import Config, check
from clusters.reference.node.groups.group import Group
from clusters.reference.node.markers import reached
from clusters.reference.node.metastorage.metastorage import METASTORAGE, Change
from clusters.reference.node.placement.lease_expiry import PRIMARY, RENEW_S
from clusters.reference.node.placement.rendezvous import ZONE, assignments
from clusters.reference.node.runtime import DiskError, Listener, Runtime
from clusters.reference.node.runtime.concurrency import all_of, together
from clusters.reference.node.runtime.disks import VolatileDisk
from clusters.reference.node.runtime.hybrid_clock import Hlc
from clusters.reference.node.storage.identity import directory_of, load
from clusters.reference.node.storage.shared_log import SharedLog
from clusters.reference.node.topology.bootstrap import NodeFailure
from clusters.reference.node.topology.logical import JoinRefused
from clusters.reference.node.tx.finisher import FINISH_EVERY_S

# For clients' transactions to end before a graceful stop, and then for those of others that have
# locks here: during the first this node serves as before, during the second it begins nothing.
DRAIN_CLIENTS_S = 0.5
DRAIN_PRIMARIES_S = 0.1
HAND_OVER_TIMEOUT_S = 0.5  # for a graceful stop to release the grants of its partitions
LEAD_TIMEOUT_S = 0.25  # and before that, and behind it, for others to lead in its place

log = logging.getLogger("node")


class Node:
    """One node. ``run`` is its whole life."""

    def __init__(self, config: Config, runtime: Runtime) -> None:
        """Touches nothing yet. Raises ``ConfigError``."""
        check(config)
        self._config, self._runtime = config, runtime
        self._events = events.EventLog(boot=runtime.boot, wall_ns=runtime.wall_ns)

    async def run(self) -> None:
        """Recover, open the ports, serve until cancelled (a graceful stop).

        Raises ``CorruptLog``, ``DiskError``, ``OSError`` (a port can't be had), ``NodeFailure``,
        ``InvariantBroken``.
        """
        bugs.switch_on(self._config.bugs)
        try:
            await Life(await self.recover()).run()
        except DiskError as error:
            reached("node ended by its disk")
            self._events.add(events.STORAGE_ERROR, str(error))
            raise

    async def recover(self) -> Components:
        """Read the disk and compose the node. Raises ``CorruptLog`` and ``DiskError``."""
        config, runtime = self._config, self._runtime
        disk = VolatileDisk(runtime.disk) if config.power_loss else runtime.disk
        monotonic_s = asyncio.get_running_loop().time
        clock = Hlc(wall_ns=runtime.wall_ns, monotonic_s=monotonic_s)
        shared_log = SharedLog(
            disk,
            fsync="no-fsync" not in config.bugs,
            segment_bytes=config.tuning.segment_bytes,
            record_bytes=config.tuning.record_bytes,
        )
        identity = await load(disk, config.node, runtime.random)
        await shared_log.open()
        if shared_log.torn is not None:
            self._events.add(events.TORN_TAIL, str(shared_log.torn))
        components = Components(
            config=config,
            runtime=runtime,
            disk=disk,
            log=shared_log,
            identity=identity,
            clock=clock,
            event_log=self._events,
        )
        await components.snapshots.load(components.restorable)
        return components


class Life:
    """A node that has recovered, until it ends."""

    def __init__(self, components: Components) -> None:
        self._node = components
        self._config, self._events = components.config, components.event_log
        self._out_of_time: str | None = None  # why this node must lead nothing

    async def run(self) -> None:
        """Open the ports and serve until cancelled, or until something fails."""
        config, network = self._config, self._node.runtime.network
        listeners: list[Listener] = []
        try:
            for bind, serve in (
                (config.peer_bind, self._node.peers.serve),
                (config.client_bind, self._node.sessions.serve),
            ):
                listeners.append(await network.listen(bind.host, bind.port, serve))
            log.info("listening: peers on %s, clients on %s", config.peer_bind, config.client_bind)
            text = f"{config.node} started, incarnation {self._node.identity.incarnation}"
            self._events.add(events.NODE_STARTED, text)
            await self._serve()
        finally:
            self._events.add(events.NODE_STOPPED, f"{config.node} stops")
            self._node.host.stop()
            for listener in listeners:
                listener.close()

    async def _serve(self) -> None:
        """Run groups and links, until one fails or the node is told to stop."""
        work = asyncio.ensure_future(together(self._run_groups(), self._node.peers.run()))
        try:
            await asyncio.wait({work})
            work.result()
        except asyncio.CancelledError:
            await self._hand_over()
            raise
        finally:
            work.cancel()
            self._node.tasks.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _hand_over(self) -> None:
        """Let open transactions end, let others lead and release every grant, so that successors
        need wait neither for an election nor for the lease to expire. Metastorage comes first:
        grants are released and taken in it.
        """
        await self._node.sessions.drain(DRAIN_CLIENTS_S)
        metastorage = self._node.host.groups.get(METASTORAGE)
        if metastorage is not None:
            await self._let_others_lead((metastorage,))
        replicas = tuple(self._node.replicas.replicas.values())
        primaries = tuple(replica.primary for replica in replicas)
        await self._node.lease_manager.drain(primaries, DRAIN_PRIMARIES_S)
        try:
            async with asyncio.timeout(HAND_OVER_TIMEOUT_S):
                # Side by side: a primary that is closed acts no more, whoever leads.
                await all_of(
                    (
                        self._let_others_lead(tuple(replica.group for replica in replicas)),
                        self._node.lease_manager.release_all(primaries),
                    )
                )
                if self._node.zoned is not None:
                    await self._node.zoned.leave()
        except TimeoutError:
            reached("stopped before all was handed over")
            log.info("stopped before every partition was handed over")

    async def _let_others_lead(self, groups: tuple[Group, ...]) -> None:
        try:
            async with asyncio.timeout(LEAD_TIMEOUT_S):
                await self._node.host.hand_over(groups)
        except TimeoutError:
            reached("stopped while it led")
            log.info("stopped while nobody led in its place")

    async def _run_groups(self) -> None:
        """Wait until the founders of the cluster are known, then run the groups."""
        node = self._node
        await node.bootstrap.settle()
        founders = node.bootstrap.founders
        node.links.ping_all(founders)
        # Observed from here on, so that what is applied from now is seen, from revision 1.
        node.metastorage.observe("", self._metastorage_changed)
        node.host.open(
            METASTORAGE,
            partition=None,
            founders=founders if node.member in founders else (),
            machine=node.metastorage,
            restoring=node.snapshots.loaded(METASTORAGE),
            # Every node acts by what it has applied: grants would wait for a tick, twice.
            announce_commits=True,
        )
        work = [
            node.host.run(self._tick, self._reconcile),
            node.snapshots.run(),
            self._renew_and_finish(),
        ]
        if node.zoned is not None:
            work.append(node.zoned.run())
        try:
            await together(*work)
        except JoinRefused as error:
            raise NodeFailure(f"not taken in: {error}") from error

    def _metastorage_changed(self, change: Change) -> None:
        """A revision of metastorage was applied."""
        node = self._node
        node.leases.changed(change)
        for key in change.entries:
            if key.startswith(PRIMARY):
                replica = node.replicas.replicas.get(int(key.removeprefix(PRIMARY)))
                if replica is not None:
                    self._reconcile(replica.group)
        if node.zoned is not None:
            node.zoned.observed(change)
        if ZONE in change.entries:
            node.zone.check()
        changed = assignments(change.entries)
        if not changed:
            return
        node.assignments.update(changed)
        text = f"assignments of {len(changed)} partitions at revision {change.revision}"
        self._events.add(events.ASSIGNMENTS_CHANGED, text)
        for number, assignment in changed.items():
            if node.member in map(directory_of, assignment.members):
                node.replicas.assigned(number, assignment)

    def _reconcile(self, group: Group) -> None:
        """A grant of the partition changed, or its leader here may act now: not with the next tick
        only, since no primary serves it meanwhile.
        """
        number = group.partition
        replica = None if number is None else self._node.replicas.replicas.get(number)
        if replica is not None and replica.group is group:
            self._node.lease_manager.reconcile(replica.primary, group)

    def _tick(self) -> None:
        node = self._node
        node.peers.heartbeat(node.host.ticks)
        self._step_down_out_of_time()
        if node.zoned is not None:
            node.zoned.tick()
        else:
            node.zone.tick()
        node.reconfigurer.tick()
        node.lease_manager.watch_lease()
        for replica in node.replicas.replicas.values():
            node.lease_manager.reconcile(replica.primary, replica.group)
        for number in node.replicas.stopped:
            node.lease_manager.release(number)

    def _step_down_out_of_time(self) -> None:
        """Lead nothing while this node's clock and those of most others can't follow each other: no
        client could use a group that it led, and its lease would put its successors' clocks ahead.
        The wall clock is read anew while this node may be the wrong one: where it was set right, no
        restart is needed.
        """
        before, self._out_of_time = self._out_of_time, self._node.peers.out_of_time()
        if self._out_of_time is not None or self._node.peers.clock_in_doubt():
            self._node.clock.read_wall()
        if self._out_of_time is not None:
            reached("node leads nothing for its clock")
            self._node.host.step_down()
            if before is None:
                text = f"{self._config.node} leads nothing: {self._out_of_time}"
                self._events.add(events.LEASE_LOST, text)
        elif before is not None:
            log.info("the clock fits again: %s may lead", self._config.node)

    async def _renew_and_finish(self) -> None:
        while True:
            if self._out_of_time is None:
                self._node.lease_manager.renew()
            for replica in self._node.replicas.replicas.values():
                replica.finisher.turn()
            await asyncio.sleep(min(RENEW_S, FINISH_EVERY_S))
