"""Apache Ignite 3 as the harness's system under test: its program, its promises, and its
answers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from clusters.ignite3 import local, partition_hash, rest, settings
from clusters.ignite3.artifacts import Artifacts, driver_digest
from clusters.ignite3.bridge import Bridge
from clusters.ignite3.client import (
    AUTOCOMMIT,
    READ_ONLY,
    STALENESS_S,
    IgniteClient,
    Session,
    connect,
    dial,
)
from clusters.ignite3.error_table import CONFLICTS, CONNECTION_LOST, DRIVER_GONE, ERRORS
from clusters.ignite3.log_events import Journal
from clusters.ignite3.options import (
    TABLE,
    ZONE,
    Options,
    blocking,
    data_nodes,
    quorums,
    serves_again_s,
    statements,
    voters_of,
)
from clusters.ignite3.readmission import REST, Admission
from clusters.ignite3.role_holders import roles_of
from clusters.ignite3.waiting import POLL_S, Ends
from harness.clock import RunClock
from harness.errors import HarnessError, PlanError
from harness.history.records import StoreEvent
from harness.plan.plan import options as convert
from harness.protocols.client import READ_WRITE, StoreError
from harness.protocols.cluster import (
    Address,
    Capability,
    Cluster,
    PortSpec,
    Program,
    Provider,
    ReadsLogs,
    Roles,
)
from harness.protocols.fail_or_info import ErrorMeaning
from harness.protocols.moments import Moment
from harness.protocols.promise import Declaration, LogPattern, Promise
from harness.protocols.statement_language import StatementAnswer
from harness.tasks import together

PEER, CLIENT = "peer", "client"
LOST = (CONNECTION_LOST, DRIVER_GONE)
LOOPBACK = ("127.0.0.1", "::1", "localhost")
CONFIG_FILE = "node.conf"
PROXIES = "process"  # the provider whose links are proxies
LINKS = frozenset(
    {
        Capability.PARTITION,
        Capability.ONE_WAY_PARTITION,
        Capability.PACKET_LOSS,
        Capability.DELAY,
    }
)
LOG_FILE = "node.log"
CONNECT_LIMIT_S = 2.0
INIT_LIMIT_S, DDL_LIMIT_S = 20.0, 30.0
BATCH = 5  # nodes that boot at once: more would starve each other on a small machine
# Of a crowded host, on top of what the plan says: 7.9 s were measured after a kill of a primary,
# with a lease of 5 s that had to end.
CROWDED_S = 12.0

LOG_PATTERNS = (
    LogPattern(name="critical", regex=r"Critical system error detected"),
    LogPattern(name="forced-reset", regex=r"Force update metastore pending partitions key"),
    LogPattern(name="stale", regex=r"is stale, node should be restarted"),
    # A replica whose state machine stopped takes part in nothing until its node is restarted: seen
    # where a transaction that had committed was recorded as aborted, after a kill and a pause.
    LogPattern(name="state-machine-error", regex=r"ERROR_TYPE_STATE_MACHINE", breaks=True),
    # Told for every read of a row that a transaction left whose state a reset took away: such
    # a key is never read again. Seen after the resets of `reset-after-restart.toml`.
    LogPattern(
        name="unreadable-row",
        regex=r'Caused by: java\.lang\.NullPointerException.*"transactionMeta" is null',
    ),
    # Of a transaction whose node had died: where it was told, its locks stood for more than 86 s.
    LogPattern(name="locks-left", regex=r"First cleanup attempt failed"),
    # An update that found its partition's leader in a node that was cut off, and gave up after
    # 10 s: two transactions whose commit waited for one held their locks to the end of a drill, for
    # 86 s and more, though no fault had hit their node; in other drills these were gone sooner.
    LogPattern(name="update-given-up", regex=r"Failed to process delayed response"),
    LogPattern(name="out-of-memory", regex=r"java\.lang\.OutOfMemoryError", breaks=True),
)


def build(options: Mapping[str, object], nodes: tuple[str, ...], seed: int) -> IgniteSystem:
    """The system for a plan; ``seed`` decides nothing here. Raises ``PlanError``."""
    usual = {"replicas": min(3, len(nodes)), "system_nodes": 3 if len(nodes) >= 3 else 1}
    chosen = convert(Options, usual | dict(options), "system")
    if chosen.system_nodes > len(nodes):
        limits = f"expected 1 to {len(nodes)}, which is cluster.nodes (got {chosen.system_nodes})"
        raise PlanError("system.system_nodes", limits)
    apart = chosen.system_nodes + chosen.gateway_nodes
    if chosen.gateway_nodes and apart > len(nodes):
        most = len(nodes) - chosen.system_nodes
        limits = f"expected 0 to {most}, the nodes that hold no metastorage"
        raise PlanError("system.gateway_nodes", f"{limits} (got {chosen.gateway_nodes})")
    keepers = data_nodes(chosen, nodes)
    if not 1 <= chosen.replicas <= len(keepers):
        limits = f"expected 1 to {len(keepers)}, the nodes that hold data (got {chosen.replicas})"
        raise PlanError("system.replicas", limits)
    least, most = quorums(chosen.replicas)
    if chosen.quorum is not None and not least <= chosen.quorum <= most:
        limits = f"expected {least} to {most} of {chosen.replicas} replicas (got {chosen.quorum})"
        raise PlanError("system.quorum", limits)
    return IgniteSystem(chosen, keepers, nodes[: chosen.system_nodes])


class IgniteSystem:
    """``harness.protocols.cluster.System`` of Apache Ignite 3."""

    name = "ignite3"
    ports = (
        PortSpec(name=PEER, between_nodes=True),
        PortSpec(name=CLIENT, between_nodes=False),
        PortSpec(name=REST, between_nodes=False),
    )

    def __init__(
        self, options: Options, keepers: tuple[str, ...], metastorage: tuple[str, ...] = ()
    ) -> None:
        """``keepers`` hold data; ``metastorage`` are the nodes that the cluster begins with:
        its voters for good, since nothing here repairs it with others.
        """
        self.errors: dict[str, ErrorMeaning] = ERRORS
        self._options = options
        self._artifacts = Artifacts(options.release)
        self._keepers, self._metastorage = keepers, metastorage
        self._bridge: Bridge | None = None
        self._heard_s: dict[int, float] = {}  # by process, when it last saw data
        self._journal = Journal()
        self._reader: ReadsLogs | None = None
        self._provider: Provider | None = None

    @property
    def partitions(self) -> int:
        """How many partitions there are."""
        return self._options.partitions

    @property
    def voters(self) -> int:
        """How many voters each partition has."""
        return voters_of(self._options)

    @property
    def learners(self) -> int | None:
        """The replicas that do not vote; ``None`` where the zone moves data by itself."""
        moves = self._options.scale_down_s is not None
        return None if moves else self._options.replicas - self.voters

    @property
    def metastorage(self) -> tuple[str, ...]:
        """The nodes that the cluster begins with."""
        return self._metastorage

    @property
    def management(self) -> tuple[str, ...]:
        """The same nodes."""
        return self._metastorage

    def partition_of(self, key: int) -> int:
        """The partition of ``key``, by the hash of the release."""
        return partition_hash.partition_of(key, self._options.partitions)

    @property
    def declaration(self) -> Declaration:
        """Explicit read-write transactions are documented as serializable, and their reads go to
        the primary under a lease; all other reads are of the past. A highly available zone goes on
        without its majority, and writes that only the lost replicas had acknowledged may be gone
        then.
        """
        highly = self._options.mode == "HA"
        return Declaration(
            system=self.name,
            mode=self._options.mode,
            promises=(
                Promise(kind=READ_WRITE, model="strict-serializable"),
                Promise(kind=READ_ONLY, model="serializable", staleness_s=STALENESS_S),
                Promise(kind=AUTOCOMMIT, model="serializable", staleness_s=STALENESS_S),
            ),
            transaction_scope="cluster",
            logs=LOG_PATTERNS,
            liveness_s=CROWDED_S + serves_again_s(self._options),
            conflicts=CONFLICTS,
            forgets_without=blocking(self._options) if highly else msgspec.UNSET,
            keepers=self._keepers if highly else msgspec.UNSET,
        )

    def versions(self) -> dict[str, str]:
        """The release, and the hash of our driver of it."""
        return {"ignite3": self._options.release, "ignite3-driver": driver_digest()}

    def program(self, node: str, cluster: Cluster) -> Program:
        """One JVM, configured for its place in ``cluster``. Raises ``NotPrepared``."""
        loopback = cluster.bind[node][PEER].host in LOOPBACK
        home = str(local.home(self._artifacts)) if loopback else settings.HOME
        self._driver()  # raises for missing client parts before any node starts
        # Every node as it is dialed: the store's members learn each other's addresses by
        # themselves, so a proxy per link would be walked around.
        seeds = tuple(cluster.bind[other][PEER] for other in cluster.nodes)
        config = settings.node_config(
            self._options,
            peer=cluster.bind[node][PEER],
            client=cluster.bind[node][CLIENT],
            rest=cluster.bind[node][REST],
            seeds=seeds,
            data=node in data_nodes(self._options, cluster.nodes),
        )
        work = cluster.work_dir[node]
        return Program(
            argv=settings.command(
                self._options.heap_mib,
                f"-XX:SharedArchiveFile={home}/{settings.ARCHIVE_FILE}",
                f"{work}/{CONFIG_FILE}",
                f"{work}/data",
                node,
                cluster.bind[node][REST].host,
                home,
            ),
            files={CONFIG_FILE: config.encode()},
            log=LOG_FILE,
        )

    def require_made(self, provider: str) -> None:
        """See ``NeedsMade``. Whether there is an image its provider looks."""
        self._artifacts.driver_command()
        if provider == PROXIES:
            local.home(self._artifacts)

    def unfelt(self, provider: str) -> frozenset[Capability]:
        """See ``WalksAround``: members advertise their own addresses, and so take
        no link through a proxy.
        """
        return LINKS if provider == PROXIES else frozenset()

    async def set_up(self, cluster: Cluster, provider: Provider, deadline_s: float) -> None:
        """Start the nodes in batches, make them a cluster, then its zone and table."""
        ends, admission = Ends(deadline_s), self._admission(cluster, provider)
        self._provider = provider
        self._reader = provider if isinstance(provider, ReadsLogs) else None
        nodes = cluster.nodes
        for first in range(0, len(nodes), BATCH):
            batch = nodes[first : first + BATCH]
            await together(provider.start(node) for node in batch)
            await ends.until(partial(admission.not_up, batch))
        if others := await admission.not_of(self._options.release):
            expected = f"expected {self._options.release}, as system.release says"
            raise HarnessError(
                f"ignite3: {', '.join(others)}; {expected}: see cluster.options.image"
            )
        await ends.until(admission.not_met, admission.introduce)
        system = nodes[: self._options.system_nodes]
        at = cluster.client[system[0]][REST]
        config = settings.cluster_config(self._options)
        if why := await rest.initialise(at, system, config, ends.left_s(INIT_LIMIT_S)):
            raise HarnessError(f"ignite3: the cluster could not be initialised: {why}")
        mend = partial(admission.readmit, nodes)
        await ends.until(admission.not_in, mend)
        await self._define(cluster, ends)
        await ends.until(admission.not_whole, mend)

    async def recover(self, cluster: Cluster, provider: Provider, deadline_s: float) -> None:
        """Start nodes that are down, resume paused ones, restart those that the cluster removed;
        then wait until every partition is available.
        """
        admission = self._admission(cluster, provider)
        await admission.revive()
        mend = partial(admission.readmit, cluster.nodes)
        await mend()
        await Ends(deadline_s).until(admission.not_whole, mend)

    async def lacking(self, cluster: Cluster, limit_s: float) -> list[str]:
        """See ``harness.protocols.hardware.Replicas``: the store calls a partition available if
        each of its replicas is healthy.
        """
        if self._provider is None:
            return ["the cluster was not set up"]
        loop = asyncio.get_running_loop()
        deadline_s, admission = loop.time() + limit_s, self._admission(cluster, self._provider)
        while True:
            lacking = await admission.not_whole()
            if not lacking or loop.time() >= deadline_s:
                return lacking
            await asyncio.sleep(POLL_S)

    async def readmit(
        self, cluster: Cluster, provider: Provider, nodes: tuple[str, ...]
    ) -> tuple[str, ...]:
        """See ``harness.protocols.cluster.Readmits``."""
        return await self._admission(cluster, provider).readmit(nodes)

    def _admission(self, cluster: Cluster, provider: Provider) -> Admission:
        return Admission(cluster, provider, self._options.partitions)

    async def connect(self, cluster: Cluster, node: str, process: int) -> IgniteClient:
        """A connection to ``node``. Raises ``StoreError``."""
        address = cluster.client[node][CLIENT]
        session = self._session(process)
        return await connect(self._driver(), address, TABLE, CONNECT_LIMIT_S, session)

    def _session(self, process: int) -> Session:
        """The session of ``process``: what it may see from now on depends on what it has seen."""
        now_s = asyncio.get_running_loop().time()
        for other in [p for p, at_s in self._heard_s.items() if at_s + STALENESS_S < now_s]:
            del self._heard_s[other]  # no snapshot of today is as old
        heard_s = self._heard_s.get(process)
        return Session(
            access=self._options.access,
            not_before_s=0.0 if heard_s is None else heard_s + STALENESS_S,
            heard=partial(self._heard_s.__setitem__, process),
        )

    async def roles(self, cluster: Cluster) -> Roles:
        """The replicas that each node reports over REST, with their partitions; leaders and lease
        holders by the logs of the nodes that answered.
        """
        held: dict[str, tuple[int, ...]] = {}

        async def ask(node: str) -> None:
            states = await rest.local_states(cluster.client[node][REST], node, ZONE)
            if states is not None:
                held[node] = tuple(state.partition_id for state in states)

        async def look() -> None:
            if self._reader is not None:
                with contextlib.suppress(TimeoutError):  # else with the events known so far
                    async with asyncio.timeout(rest.LOOK_LIMIT_S):
                        await self._journal.read(self._reader, cluster.nodes, now=True)

        await together((look(), *(ask(node) for node in cluster.nodes)))
        roles = roles_of({n: held[n] for n in cluster.nodes if n in held}, self._journal.holders)
        # Without an answer there are no roles at all, by which a silent node is known.
        return msgspec.structs.replace(roles, metastorage_voters=self._metastorage if held else ())

    async def events(self, cluster: Cluster, clock: RunClock) -> list[StoreEvent]:
        """The events in the nodes' logs since the last call."""
        if self._reader is not None:
            await self._journal.read(self._reader, cluster.nodes)
        return self._journal.events(clock)

    def moments(self) -> frozenset[Moment]:
        """See ``harness.protocols.moments.TellsMoments``: those that the nodes' logs tell."""
        return frozenset({Moment.LEADER_ELECTED, Moment.PRIMARY_GRANTED, Moment.SNAPSHOT_INSTALLED})

    async def logged_events(self, node: str, logs: Path) -> list[StoreEvent]:
        """See ``harness.protocols.cluster.LogsEvents``."""
        path = logs / LOG_FILE
        try:
            content = await asyncio.to_thread(path.read_bytes)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise HarnessError(f"{path}: {error.strerror}") from error
        return self._journal.rest(node, content)

    async def statement(
        self, cluster: Cluster, node: str, text: str, limit_s: float
    ) -> StatementAnswer:
        """See ``harness.protocols.statement_language.TakesStatements``: SQL, by the client that a
        drill's clients use.
        """
        sent = False
        try:
            async with asyncio.timeout(limit_s):
                address = cluster.client[node][CLIENT]
                client = await dial(self._driver(), address, CONNECT_LIMIT_S)
                sent = True
                try:
                    names, *rows = await client.query(text) or ((),)
                finally:
                    await client.close()
        except TimeoutError:
            problem = f"{node} did not answer within {limit_s:.1f} s"
            return StatementAnswer(problem=problem, doubtful=sent)
        except StoreError as error:
            # The store refuses by name; where only the connection ended, the statement may go on.
            return StatementAnswer(problem=str(error), doubtful=sent and error.code in LOST)
        return StatementAnswer(columns=tuple(map(str, names)), rows=tuple(rows))

    def _driver(self) -> Bridge:
        if self._bridge is None:
            self._bridge = Bridge(self._artifacts.driver_command())
        return self._bridge

    async def _define(self, cluster: Cluster, ends: Ends) -> None:
        """Create the zone and the table. Each statement waits a second until its schema has reached
        all nodes, so independent statements run side by side.
        """
        address = cluster.client[cluster.nodes[0]][CLIENT]
        execute = partial(self._execute, address, ends)
        zone, *default, table = statements(self._options)
        await execute((zone,))
        await together((execute(default), execute((table,))))

    async def _execute(self, address: Address, ends: Ends, statements: Sequence[str]) -> None:
        """Execute DDL on a connection of its own. Raises ``HarnessError`` naming the statement."""
        statement, limit_s = "connecting", ends.left_s(DDL_LIMIT_S)
        try:
            async with asyncio.timeout(limit_s):
                client = await dial(self._driver(), address, CONNECT_LIMIT_S)
                try:
                    for statement in statements:
                        await client.sql(statement)
                finally:
                    await client.close()
        except TimeoutError as error:
            raise HarnessError(f"ignite3: {statement}: not done in {limit_s:.1f} s") from error
        except StoreError as error:
            raise HarnessError(f"ignite3: {statement}: {error}") from error
